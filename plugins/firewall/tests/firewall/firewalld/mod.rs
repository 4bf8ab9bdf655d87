//! firewall with firewalld: a real message bus with a stand-in for each case, and the real service if it is installed.

mod stand_in;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Firewalld, Host, MessageBus, Network, Outcome, Pod, Snapshot, configs, need, skip,
};

use stand_in::{Sources, stand_in};

const NAME: &str = "org.fedoraproject.FirewallD1";

/// A pod with both families, and a bus.
struct Site {
    host: Host,
    bus: MessageBus,
    att: Attachment,
    prev: Value,
    _pod: Pod,
}

impl Site {
    fn new() -> Self {
        let (host, pod) = (Host::new(), Pod::new());
        let att = Attachment::new("one", &pod);
        let prev = Network::new(&host, configs::dual(&host)).added(&att);
        let bus = MessageBus::start(&host);
        Site { host, bus, att, prev, _pod: pod }
    }

    fn net(&self, keys: &Value) -> Network<'_> {
        let mut config = json!({ "cniVersion": configs::newest(), "name": "net46", "type": "firewall" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Network::new(&self.host, config)
    }

    fn call(&self, verb: &str, keys: &Value) -> Outcome {
        let prev = (verb != "STATUS").then_some(&self.prev);
        let call = self.net(keys).call(verb, &self.att, prev);
        call.env("DBUS_SYSTEM_BUS_ADDRESS", self.bus.address()).run()
    }

    fn sources(&self) -> Vec<String> {
        let ips = self.prev["ips"].as_array().unwrap().iter();
        let ips = ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap());
        let mut sources: Vec<String> =
            ips.map(|ip| format!("{ip}/{}", if ip.contains(':') { 128 } else { 32 })).collect();
        sources.sort();
        sources
    }
}

fn firewalld() -> Value {
    json!({ "backend": "firewalld" })
}

fn of_zone(sources: &Sources, zone: &str) -> Vec<String> {
    let sources = sources.lock().unwrap();
    sources.iter().filter(|(_, of)| *of == zone).map(|(source, _)| source.clone()).collect()
}

#[test]
fn addresses_become_sources_of_a_zone() {
    need!("ip", "dbus-daemon");
    let site = Site::new();
    let sources = stand_in(&site.bus);
    let before = Snapshot::of(&site.host);
    for (keys, zone) in [
        (firewalld(), "trusted"),
        (json!({ "backend": "firewalld", "firewalldZone": "public" }), "public"),
        (json!({ "backend": "firewalld", "firewalldZone": "" }), "trusted"),
    ] {
        assert_eq!(site.call("ADD", &keys).result(), site.prev);
        assert_eq!(of_zone(&sources, zone), site.sources());
        site.call("CHECK", &keys).success();
        // They are in the zone already.
        site.call("ADD", &keys).success();
        // firewalld has restarted and lost them.
        let kept = std::mem::take(&mut *sources.lock().unwrap());
        let error = site.call("CHECK", &keys).error();
        assert!(error.code == 103 && error.all().contains("is not in the zone"), "{error:?}");
        *sources.lock().unwrap() = kept;
        site.call("DEL", &keys).success();
        assert_eq!(sources.lock().unwrap().len(), 0);
        site.call("DEL", &keys).success();
        before.assert_same(&Snapshot::of(&site.host), "after DEL");
    }
    site.call("STATUS", &firewalld()).success();
}

#[test]
fn what_firewalld_refuses_is_an_error_and_nothing_stays() {
    need!("ip", "dbus-daemon");
    let site = Site::new();
    let sources = stand_in(&site.bus);
    let other = site.sources()[1].clone();
    sources.lock().unwrap().insert(other.clone(), "public".into());
    let error = site.call("ADD", &firewalld()).error();
    assert!(error.code == 102 && error.all().contains("ZONE_CONFLICT"), "{error:?}");
    assert_eq!(sources.lock().unwrap().len(), 1, "the first one was taken back");
    // Another program owns this source.
    site.call("DEL", &firewalld()).success();
    assert_eq!(of_zone(&sources, "public"), [other]);
    sources.lock().unwrap().clear();
    let keys = json!({ "backend": "firewalld", "firewalldZone": "nowhere" });
    let error = site.call("ADD", &keys).error();
    assert!(error.code == 5 && error.all().contains("INVALID_ZONE: nowhere"), "{error:?}");
    site.call("DEL", &keys).success();
    let bad = json!({ "backend": "firewalld", "firewalldZone": "a\u{0}b" });
    assert_eq!(site.call("ADD", &bad).error().code, 7);
    // ADD can't print the result.
    let call = site.net(&firewalld()).call("ADD", &site.att, Some(&site.prev));
    let call = call.env("DBUS_SYSTEM_BUS_ADDRESS", site.bus.address());
    assert_eq!(call.under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run().status, 1);
    assert_eq!(sources.lock().unwrap().len(), 0);
}

#[test]
fn without_firewalld() {
    need!("ip", "dbus-daemon");
    let site = Site::new();
    let before = Snapshot::of(&site.host);
    // A bus without the service, and no bus.
    let nowhere = format!("unix:path={}", site.host.dir().join("nowhere").display());
    for address in [site.bus.address(), nowhere] {
        let run = |verb: &str| {
            let prev = (verb != "STATUS").then_some(&site.prev);
            let call = site.net(&firewalld()).call(verb, &site.att, prev);
            call.env("DBUS_SYSTEM_BUS_ADDRESS", &address).run()
        };
        for (verb, code) in [("ADD", 5), ("CHECK", 5), ("STATUS", 50)] {
            let error = run(verb).error();
            assert!(error.code == code && error.all().contains("firewalld is not running"), "{error:?}");
            before.assert_same(&Snapshot::of(&site.host), verb);
        }
        run("DEL").success();
    }
}

#[test]
fn it_is_taken_where_it_runs() {
    need!("ip", "nft", "dbus-daemon");
    let site = Site::new();
    let sources = stand_in(&site.bus);
    let unset = json!({});
    // Without its table the plugin doesn't connect.
    site.call("ADD", &unset).success();
    assert_eq!(sources.lock().unwrap().len(), 0);
    site.call("DEL", &unset).success();
    site.host.nft("add table inet firewalld");
    site.call("ADD", &unset).success();
    assert_eq!(of_zone(&sources, "trusted"), site.sources());
    site.call("CHECK", &unset).success();
    site.call("STATUS", &unset).success();
    site.call("DEL", &unset).success();
    assert_eq!(sources.lock().unwrap().len(), 0);
    // A policy is in nf_tables.
    let policy = json!({ "ingressPolicy": "same-bridge" });
    site.call("ADD", &policy).success();
    assert_eq!(of_zone(&sources, "trusted"), site.sources());
    assert!(site.host.nft("list table inet cnimble").contains("forward-bridges"));
    site.call("CHECK", &policy).success();
    site.call("DEL", &policy).success();
    assert_eq!(sources.lock().unwrap().len(), 0);
    // A table without the service: nf_tables.
    let nobody = |verb: &str| {
        let call = site.net(&unset).call(verb, &site.att, Some(&site.prev));
        call.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere/bus").run()
    };
    nobody("ADD").success();
    nobody("CHECK").success();
    nobody("DEL").success();
}

#[test]
fn the_real_firewalld() {
    need!("ip", "nft", "dbus-daemon");
    let site = Site::new();
    let daemon = match Firewalld::start(&site.host, &site.bus) {
        Ok(daemon) => daemon,
        Err(why) => skip!("{why}"),
    };
    let listed = || {
        let text = daemon.command(&["--zone=trusted", "--list-sources"]);
        let mut found: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        found.sort();
        found
    };
    for keys in [firewalld(), json!({})] {
        site.call("ADD", &keys).success();
        assert_eq!(listed(), site.sources(), "{keys}");
        site.call("CHECK", &keys).success();
        site.call("ADD", &keys).success();
        site.call("DEL", &keys).success();
        assert_eq!(listed(), Vec::<String>::new(), "{keys}");
        let error = site.call("CHECK", &keys).error();
        assert_eq!(error.code, 103, "{error:?}");
        site.call("DEL", &keys).success();
    }
    let conflicting = json!({ "backend": "firewalld", "firewalldZone": "public" });
    site.call("ADD", &firewalld()).success();
    let error = site.call("ADD", &conflicting).error();
    assert!(error.code == 102, "{error:?}");
    let unknown = json!({ "backend": "firewalld", "firewalldZone": "nowhere" });
    assert!(site.call("ADD", &unknown).error().all().contains("INVALID_ZONE"));
    site.call("DEL", &firewalld()).success();
}
