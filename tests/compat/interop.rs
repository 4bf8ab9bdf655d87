//! A node that switches from the Go plugins to ours, or back, while pods are running.

use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{
    Attachment, Host, Network, PATIENCE, Pod, Snapshot, configs, leases, need_go, plugin_dir, wait_until,
};

/// Skips the test if the two sets can't be compared, and otherwise defines `go`.
macro_rules! need_both {
    ($go:ident) => {
        need_go!($go, "ip", "nft", "ping", "iptables", "iptables-legacy");
    };
}

/// The kind of state that the Go plugins leave on a node.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    MasqueradeNft,
    MasqueradeLegacy,
    SpoofCheck,
    Everything,
}

const KINDS: &[Kind] =
    &[Kind::Plain, Kind::MasqueradeNft, Kind::MasqueradeLegacy, Kind::SpoofCheck, Kind::Everything];

/// Returns the network in the newest version that both sets support.
fn network<'h>(host: &'h Host, kind: Kind) -> Network<'h> {
    let mut net = Network::new(host, configs::dual(host)).with("/cniVersion", json!("1.0.0"));
    if matches!(kind, Kind::MasqueradeNft | Kind::MasqueradeLegacy | Kind::Everything) {
        net = net.with("/ipMasq", json!(true));
    }
    if matches!(kind, Kind::SpoofCheck | Kind::Everything) {
        net = net.with("/macspoofchk", json!(true));
    }
    if kind == Kind::MasqueradeLegacy {
        net.path = Some(legacy(host));
    }
    net
}

/// Returns a PATH in which iptables is the legacy one.
fn legacy(host: &Host) -> String {
    let dir = host.dir().join("legacy");
    std::fs::create_dir_all(&dir).unwrap();
    for family in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-legacy{suffix}");
            let link = dir.join(format!("{family}{suffix}"));
            if !link.exists() {
                std::os::unix::fs::symlink(target, link).unwrap();
            }
        }
    }
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", dir.display())
}

fn state(host: &Host) -> Snapshot {
    Snapshot::of(host).without_lines("last_reserved_ip")
}

/// Runs our GC, in the version that has it.
fn gc(net: &Network<'_>, valid: Value) {
    let net = net.served_by(plugin_dir()).with("/cniVersion", json!("1.1.0"));
    net.gc(Some(valid)).success();
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Netns {
    Given,
    Empty,
    Gone,
}

#[test]
fn pods_made_by_the_go_plugins_are_torn_down() {
    need_both!(go);
    let failures = of_every_kind(|kind| torn_down(go, kind));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Runs `test` for every kind in parallel, since the Go plugins mostly sleep.
fn of_every_kind<T: Send>(test: impl Fn(Kind) -> Vec<T> + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = KINDS.iter().map(|kind| scope.spawn(|| test(*kind))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns the failures when our plugins delete pods of the Go plugins in every way.
fn torn_down(go: &Path, kind: Kind) -> Vec<String> {
    let mut failures = Vec::new();

    let host = Host::hasty();
    let net = network(&host, kind);
    let theirs = net.served_by(go);
    // A pod that stays. Its rules, its lease and its tables are part of the state.
    let neighbour = Pod::new();
    let neighbour_att = Attachment::new("neighbour", &neighbour);
    let neighbour_result = theirs.added(&neighbour_att);
    let before = state(&host);
    for netns in [Netns::Given, Netns::Empty, Netns::Gone] {
        for prev in [true, false] {
            let what = format!("{kind:?}, netns {netns:?}, prevResult {prev}");
            let pod = Pod::new();
            let mut att = Attachment::new("upgraded", &pod);
            let result = theirs.added(&att);
            assert!(before.diff(&state(&host)).lines().count() > 2, "{what}: nothing to remove");
            let veth = result["interfaces"][1]["name"].as_str().unwrap();
            if netns != Netns::Given {
                // An empty netns means that the namespace is gone or is about to be removed.
                drop(pod);
                assert!(wait_until(PATIENCE, || host.link(veth).is_null()));
                if netns == Netns::Empty {
                    att.netns = String::new();
                }
            }
            let outcome = net.del(&att, prev.then_some(&result));
            if outcome.status != 0 {
                failures.push(format!("{what}: {}", outcome.describe()));
            }
            let diff = before.diff(&state(&host));
            if !diff.is_empty() {
                failures.push(format!("{what}:\n{diff}"));
                theirs.del(&att, Some(&result));
            }
        }
    }
    assert!(neighbour.pings("10.1.2.1"), "{kind:?}");
    net.deleted(&neighbour_att, Some(&neighbour_result));
    let left = state(&host).mentions("neighbour");
    if !left.is_empty() {
        failures.push(format!("{kind:?}: the last pod: {left:#?}"));
    }
    failures
}

#[test]
fn pods_made_by_the_go_plugins_are_garbage_collected() {
    need_both!(go);
    of_every_kind::<()>(|kind| {
        let host = Host::hasty();
        let net = network(&host, kind);
        let theirs = net.served_by(go);
        let kept = Pod::new();
        let kept_att = Attachment::new("kept", &kept);
        let kept_result = theirs.added(&kept_att);
        let before = state(&host);
        let gone = Pod::new();
        let gone_att = Attachment::new("gone", &gone);
        let veth = theirs.added(&gone_att)["interfaces"][1]["name"].clone();
        drop(gone);
        assert!(wait_until(PATIENCE, || host.link(veth.as_str().unwrap()).is_null()));
        gc(&net, json!([kept_att.listed()]));
        before.assert_same(&state(&host), &format!("{kind:?}: after GC"));
        assert!(kept.pings("10.1.2.1"));
        net.check(&kept_att, &kept_result).success();
        drop(kept);
        gc(&net, json!(null));
        let left = state(&host).mentions("kept");
        assert!(left.is_empty(), "{kind:?}: {left:#?}");
        Vec::new()
    });
}

#[test]
fn pods_made_by_the_go_plugins_pass_our_check() {
    need_both!(go);
    for kind in KINDS {
        let host = Host::hasty();
        let net = network(&host, *kind);
        let pod = Pod::new();
        let att = Attachment::new("upgraded", &pod);
        let result = net.served_by(go).added(&att);
        let outcome = net.check(&att, &result);
        assert_eq!(outcome.status, 0, "{kind:?}: {}", outcome.describe());
    }
}

/// The other way round: the Go plugins know the iptables backend and the leases.
#[test]
fn our_pods_are_torn_down_by_the_go_plugins() {
    need_both!(go);
    for kind in [Kind::Plain, Kind::MasqueradeNft, Kind::MasqueradeLegacy] {
        let host = Host::hasty();
        let net = network(&host, kind).with("/ipMasqBackend", json!("iptables"));
        let neighbour = Pod::new();
        net.added(&Attachment::new("neighbour", &neighbour));
        let before = state(&host);
        for prev in [true, false] {
            let pod = Pod::new();
            let att = Attachment::new("downgraded", &pod);
            let result = net.added(&att);
            let theirs = net.served_by(go);
            let outcome = theirs.check(&att, &result);
            assert_eq!(outcome.status, 0, "{kind:?}: {}", outcome.describe());
            theirs.deleted(&att, prev.then_some(&result));
            before.assert_same(&state(&host), &format!("{kind:?}, prevResult {prev}"));
        }
    }
}

/// Both sets write the same iptables rules.
#[test]
fn the_iptables_backend_writes_what_the_reference_writes() {
    need_both!(go);
    let rules = |plugins: &Path| {
        let host = Host::hasty();
        let pod = Pod::new();
        let net = network(&host, Kind::MasqueradeNft).with("/ipMasqBackend", json!("iptables"));
        net.served_by(plugins).added(&Attachment::new("one", &pod));
        let mut rules = Vec::new();
        for command in ["iptables-save", "ip6tables-save"] {
            let text = host.sh(command);
            rules.extend(text.lines().filter(|line| line.starts_with("-A")).map(str::to_owned));
        }
        rules
    };
    let (theirs, ours) = (rules(go), rules(plugin_dir()));
    assert_eq!(theirs.len(), 6, "{theirs:#?}");
    assert_eq!(ours, theirs);
}

#[test]
fn leases_are_taken_over_both_ways() {
    need_both!(go);
    let host = Host::hasty();
    let net = Network::new(&host, configs::ipam(&host)).with("/cniVersion", json!("1.0.0"));
    let pod = Pod::new();
    let att = |name: &str| Attachment::new(name, &pod);
    let files = || leases(&host.data_dir());
    let theirs = net.served_by(go);
    // In turns: neither set assigns an address of the other.
    let mut given = Vec::new();
    for number in 0..6 {
        let by = if number % 2 == 0 { &theirs } else { &net };
        let result = by.added(&att(&format!("pod{number}")));
        given.push(result["ips"][0]["address"].as_str().unwrap().to_owned());
    }
    let expected: Vec<String> = (2..8).map(|last| format!("10.1.2.{last}/24")).collect();
    assert_eq!(given, expected);
    // The files are the same, byte for byte. (Older releases made them 0644, newer 0600.)
    let fresh = Host::hasty();
    let alone = Network::by(go, &fresh, configs::ipam(&fresh)).with("/cniVersion", json!("1.0.0"));
    for number in 0..6 {
        alone.added(&att(&format!("pod{number}")));
    }
    let same_mode = |lines: Vec<String>| lines.join("\n").replace(" 644 ", " 600 ");
    assert_eq!(same_mode(files()), same_mode(leases(&fresh.data_dir())));
    // Each set frees the addresses of the other.
    for number in 0..6 {
        let by = if number % 2 == 0 { &net } else { &theirs };
        by.check(&att(&format!("pod{number}")), &json!({"cniVersion": "1.0.0", "ips": []})).success();
        by.deleted(&att(&format!("pod{number}")), None);
    }
    assert_eq!(files().iter().filter(|line| line.contains("pod")).count(), 0, "{:#?}", files());
}

/// Both sets use the same lock at the same time.
#[test]
fn both_sets_at_the_same_time() {
    need_both!(go);
    let host = Host::hasty();
    let net = Network::new(&host, configs::ipam(&host)).with("/cniVersion", json!("1.0.0"));
    let theirs = net.served_by(go);
    let pod = Pod::new();
    let addresses: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..40)
            .map(|number| {
                let by = if number % 2 == 0 { &net } else { &theirs };
                let att = Attachment::new(&format!("pod{number}"), &pod);
                scope.spawn(move || by.added(&att)["ips"][0]["address"].to_string())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut unique = addresses.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), 40, "{addresses:?}");
}

#[test]
fn a_node_changes_sides_in_the_middle_of_pods_lives() {
    need_both!(go);
    let host = Host::hasty();
    let ours = network(&host, Kind::Everything);
    let theirs = ours.served_by(go);
    let pods: Vec<Pod> = (0..4).map(|_| Pod::new()).collect();
    let atts: Vec<Attachment> =
        pods.iter().enumerate().map(|(number, pod)| Attachment::new(&format!("pod{number}"), pod)).collect();
    let address = |result: &Value, family: usize| {
        let text = result["ips"][family]["address"].as_str().unwrap().to_owned();
        text.split('/').next().unwrap().to_owned()
    };
    let zero = theirs.added(&atts[0]);
    let one = theirs.added(&atts[1]);
    // The node is upgraded, and both old and new pods are on one bridge.
    let two = ours.added(&atts[2]);
    ours.check(&atts[0], &zero).success();
    ours.check(&atts[2], &two).success();
    for family in [0, 1] {
        assert!(pods[0].pings(&address(&two, family)), "old to new");
        assert!(pods[2].pings(&address(&one, family)), "new to old");
    }
    ours.deleted(&atts[0], Some(&zero));
    assert!(pods[1].pings(&address(&two, 0)));
    // Back again, after our plugins were set to iptables, as the documentation says.
    let iptables = ours.with("/ipMasqBackend", json!("iptables")).with("/macspoofchk", json!(false));
    let three = iptables.added(&atts[3]);
    theirs.check(&atts[1], &one).success();
    theirs.deleted(&atts[3], Some(&three));
    theirs.deleted(&atts[1], Some(&one));
    ours.deleted(&atts[2], Some(&two));
    assert_eq!(host.links(), ["br0", "lo"]);
    let now = state(&host);
    for att in &atts {
        let left = now.mentions(&att.id);
        assert!(left.is_empty(), "{left:#?}");
    }
    let left: Vec<String> = leases(&host.data_dir())
        .into_iter()
        .filter(|line| line.contains("/10.") || line.contains("/fd"))
        .filter(|line| !line.contains("last_reserved"))
        .collect();
    assert!(left.is_empty(), "{left:#?}");
}
