//! The reference's answers, files and words, and both on one directory.

use std::collections::BTreeSet;

use cnimble_tests::{go_plugins, skip};

use super::*;

/// Without intended differences: code, details and version of errors, and the empty `dns` of old releases in 1.0.0.
fn answer(output: &Output) -> Value {
    if output.stdout.is_empty() {
        return Value::Null;
    }
    let mut value: Value = serde_json::from_slice(&output.stdout).unwrap();
    if !output.status.success() {
        return json!({ "msg": value["msg"] });
    }
    if value["dns"] == json!({}) {
        value.as_object_mut().unwrap().remove("dns");
    }
    value
}

/// Eight containers; some ask for an address.
fn random_steps(random: &mut Random, count: usize) -> Vec<Step> {
    let mut step = || {
        let id = format!("container{}", random.below(8));
        let verb = if random.below(5) < 3 { "ADD" } else { "DEL" };
        let wanted = random.below(12);
        let args = if wanted < 7 { format!("IP=10.9.0.{wanted}") } else { String::new() };
        let args = if random.below(3) == 0 { args } else { String::new() };
        Step::new(verb, &id, &args)
    };
    (0..count).map(|_| step()).collect()
}

fn networks() -> [Value; 3] {
    [
        json!({ "subnet": "10.9.0.0/29" }),
        json!({ "ranges": [
            [{ "subnet": "10.9.0.0/29", "rangeStart": "10.9.0.2", "rangeEnd": "10.9.0.4" },
             { "subnet": "10.9.1.0/30" }],
            [{ "subnet": "fd09::/125", "gateway": "fd09::3" }],
        ] }),
        json!({ "ranges": [[{ "subnet": "fd09::/64" }]], "subnet": "10.9.0.0/28", "gateway": "10.9.0.5" }),
    ]
}

#[test]
fn the_same_calls_give_the_same_answers_and_the_same_store() {
    let Some(go) = go_plugins() else { skip!("no reference plugins") };
    let go = go.join("host-local");
    let mut random = Random(0x5DEE_CE66_D1CE_CAFE);
    for ipam in networks() {
        let (theirs, own, mixed) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (n, step) in random_steps(&mut random, 60).into_iter().enumerate() {
            // The reference lets an attachment ask for a second address.
            let holds = leases(theirs.path()).values().any(|own| *own == format!("{}\r\neth0", step.id));
            if holds && !step.args.is_empty() && step.verb == "ADD" {
                continue;
            }
            let before = files(own.path());
            let expected = run(&go, &step, &config(theirs.path(), "0.4.0", &ipam));
            let got = run(&ours(), &step, &config(own.path(), "0.4.0", &ipam));
            let turn = if n % 2 == 0 { &go } else { &ours() };
            let took = run(turn, &step, &config(mixed.path(), "0.4.0", &ipam));
            let what = format!("{ipam} step {n} {step:?}");
            assert_eq!(expected.status.success(), got.status.success(), "{what}");
            if expected.status.success() {
                assert_eq!(expected.stdout, got.stdout, "{what}");
                assert_eq!(expected.stdout, took.stdout, "{what}");
            }
            assert_eq!(answer(&expected), answer(&got), "{what}");
            assert_eq!(answer(&expected), answer(&took), "{what}");
            if !got.status.success() {
                assert_eq!(files(own.path()), before, "{what}: a failed ADD leaves nothing");
                // The reference's moves the turn on nevertheless; back with it.
                for dir in [&theirs, &mixed] {
                    for name in ["last_reserved_ip.0", "last_reserved_ip.1"] {
                        let path = dir.path().join("net").join(name);
                        match before.get(name) {
                            Some(content) => fs::write(path, content).unwrap(),
                            None => drop(fs::remove_file(path)),
                        }
                    }
                }
            }
            assert_eq!(files(theirs.path()), files(own.path()), "{what}");
            assert_eq!(files(theirs.path()), files(mixed.path()), "{what}");
        }
        assert!(files(own.path()).contains_key("last_reserved_ip.0"));
    }
}

#[test]
fn results_of_every_version_are_the_references() {
    let Some(go) = go_plugins() else { skip!("no reference plugins") };
    let go = go.join("host-local");
    let dir = tempfile::tempdir().unwrap();
    let resolv = dir.path().join("resolv.conf");
    fs::write(&resolv, "# x\nnameserver 10.0.0.1\nsearch a b\noptions ndots:5\n").unwrap();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        for ipam in [
            json!({ "subnet": "10.9.0.0/24" }),
            json!({
                "ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd09::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "192.168.0.0/16", "gw": "10.9.0.5" }, { "dst": "::/0" }],
                "resolvConf": resolv.to_str().unwrap(),
            }),
        ] {
            let step = Step::new("ADD", "c1", "");
            let (theirs, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let expected = run(&go, &step, &config(theirs.path(), version, &ipam));
            let got = run(&ours(), &step, &config(own.path(), version, &ipam));
            assert!(got.status.success());
            assert_eq!(answer(&expected), answer(&got), "{version}");
            if version != "1.0.0" {
                assert_eq!(expected.stdout, got.stdout, "{version}");
            }
        }
    }
}

#[test]
fn errors_are_in_the_words_of_the_reference() {
    let Some(go) = go_plugins() else { skip!("no reference plugins") };
    let go = go.join("host-local");
    let range = |ranges: Value| json!({ "ranges": ranges });
    for (ipam, args, version) in [
        (json!({}), "", "0.4.0"),
        (range(json!([])), "", "0.4.0"),
        (range(json!([[]])), "", "0.4.0"),
        (json!({ "subnet": "10.9.0.1/24" }), "", "0.4.0"),
        (json!({ "subnet": "10.9.0.0/32" }), "", "0.4.0"),
        (json!({ "subnet": "10.9.0.0/32" }), "", "0.4.0"),
        (json!({ "subnet": "fd09::/128" }), "", "0.4.0"),
        (range(json!([[{ "subnet": "10.9.0.0/24" }, { "subnet": "fd09::/64" }]])), "", "0.4.0"),
        (range(json!([[{ "subnet": "10.9.0.0/24" }, { "subnet": "10.9.0.128/25" }]])), "", "0.4.0"),
        (range(json!([[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "10.9.0.128/25" }]])), "", "0.4.0"),
        (range(json!([[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "10.8.0.0/24" }]])), "", "0.2.0"),
        (json!({ "subnet": "10.9.0.0/24" }), "IP=10.9.0.1", "0.4.0"),
        (json!({ "subnet": "10.9.0.0/24" }), "IP=10.8.0.1", "0.4.0"),
        (json!({ "subnet": "10.9.0.0/30", "gateway": "10.9.0.2", "rangeStart": "10.9.0.2" }), "", "0.4.0"),
    ] {
        let step = Step::new("ADD", "c1", args);
        let (theirs, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let expected = run(&go, &step, &config(theirs.path(), version, &ipam));
        let got = run(&ours(), &step, &config(own.path(), version, &ipam));
        assert_eq!((expected.status.code(), got.status.code()), (Some(1), Some(1)), "{ipam}");
        assert_eq!(answer(&expected), answer(&got), "{ipam}");
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 0, "{ipam}: nothing may stay");
    }
}

#[test]
fn both_at_once_never_give_an_address_twice() {
    let Some(go) = go_plugins() else { skip!("no reference plugins") };
    let programs = [go.join("host-local"), ours()];
    let dir = tempfile::tempdir().unwrap();
    let ipam = json!({ "ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd09::/64" }]] });
    let config = config(dir.path(), "1.0.0", &ipam);
    let children: Vec<Child> =
        (0..64).map(|n| start(&programs[n % 2], &Step::new("ADD", &format!("c{n}"), ""), &config)).collect();
    let mut given = BTreeSet::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        for ip in answer(&output)["ips"].as_array().unwrap() {
            assert!(given.insert(ip["address"].as_str().unwrap().to_owned()), "{ip} was given twice");
        }
    }
    assert_eq!((given.len(), leases(dir.path()).len()), (128, 128));
    // Each removes the other's.
    let children: Vec<Child> = (0..64)
        .map(|n| start(&programs[(n + 1) % 2], &Step::new("DEL", &format!("c{n}"), ""), &config))
        .collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert!(leases(dir.path()).is_empty());
}

/// The reference may work between our calls, even within a tick of the kernel's clock.
#[test]
fn the_index_never_hides_what_the_reference_did() {
    let Some(reference) = go_plugins().map(|dir| dir.join("host-local")) else {
        skip!("the reference's host-local is not installed");
    };
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "1.0.0", &json!({ "ranges": [[{ "subnet": "10.9.0.0/16" }]] }));
    let call =
        |program: &Path, verb, id: &str| run(program, &Step::new(verb, id, ""), &config).status.success();
    for n in 0..70 {
        assert!(call(&ours(), "ADD", &format!("old{n}")));
    }
    assert!(dir.path().join("net/.cnimble-index").exists());
    for n in 0..20 {
        let (theirs, own) = (format!("theirs{n}"), format!("own{n}"));
        assert!(call(&ours(), "ADD", &own));
        assert!(call(&reference, "ADD", &theirs));
        // A second address is refused, also the other's.
        assert!(!call(&ours(), "ADD", &theirs));
        assert!(call(&ours(), "CHECK", &theirs));
        assert!(call(&reference, "CHECK", &own));
        assert!(call(&ours(), "DEL", &theirs));
        assert!(call(&reference, "DEL", &own));
        assert!(!call(&ours(), "CHECK", &own));
    }
    let left = leases(dir.path());
    assert_eq!(left.len(), 70, "{left:?}");
    assert!(left.values().all(|owner| owner.starts_with("old")), "{left:?}");
}

/// The memory of `keepFor` takes no address away from the Go plugin, and needs nothing from it.
#[test]
fn a_remembered_address_is_free_for_the_reference() {
    let Some(go) = go_plugins().map(|dir| dir.join("host-local")) else { skip!("no reference plugins") };
    let ipam = json!({ "subnet": "10.9.0.0/29", "keepFor": 3600 });
    let call = |dir: &Path, program: &Path, verb, id: &str, args: &str| {
        let mut config = config(dir, "1.0.0", &ipam);
        if verb == "DEL" {
            let own = leases(dir).into_iter().find(|(_, owner)| *owner == format!("{id}\r\neth0"));
            let ips = own.map(|(ip, _)| json!({ "address": format!("{ip}/29") }));
            config["prevResult"] =
                json!({ "cniVersion": "1.0.0", "ips": ips.into_iter().collect::<Vec<_>>() });
        }
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;{args}");
        let output = run(program, &Step::new(verb, id, &args), &config);
        assert!(output.status.success(), "{verb} {id}: {}", String::from_utf8_lossy(&output.stdout));
        let ip = answer(&output)["ips"][0]["address"].as_str().map(str::to_owned);
        ip.unwrap_or_default().trim_end_matches("/29").to_owned()
    };
    let (dir, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = dir.path();
    let kept = || fs::read_to_string(at.join("net/.cnimble-kept")).unwrap();
    let web = "K8S_POD_NAME=web-0";
    assert_eq!(call(at, &ours(), "ADD", "a", web), "10.9.0.2");
    call(at, &ours(), "DEL", "a", web);
    assert!(kept().ends_with(" default/web-0/eth0 10.9.0.2\n"), "{}", kept());
    let before = kept();

    // Go gives a full range out, in the order and with the files of a directory that has no memory.
    call(without.path(), &go, "ADD", "a", web);
    call(without.path(), &go, "DEL", "a", web);
    for (n, ip) in ["10.9.0.3", "10.9.0.4", "10.9.0.5", "10.9.0.6", "10.9.0.2"].iter().enumerate() {
        for dir in [at, without.path()] {
            assert_eq!(call(dir, &go, "ADD", &format!("go{n}"), "K8S_POD_NAME=web-0"), *ip);
        }
    }
    let mut mixed = files(at);
    mixed.remove(".cnimble-kept");
    assert_eq!(mixed, files(without.path()));
    assert_eq!(kept(), before);

    // The address is taken: any other will do. When Go has released it, the pod gets it again.
    call(at, &go, "DEL", "go2", "K8S_POD_NAME=job");
    assert_eq!(call(at, &ours(), "ADD", "b", web), "10.9.0.5");
    call(at, &go, "DEL", "b", web);
    call(at, &go, "DEL", "go4", "K8S_POD_NAME=job");
    assert_eq!(call(at, &ours(), "ADD", "c", web), "10.9.0.2");
    // Go knows the lease, and Go in our place gives the next in turn.
    call(at, &go, "CHECK", "c", web);
    call(at, &ours(), "DEL", "c", web);
    assert_eq!(call(at, &go, "ADD", "d", web), "10.9.0.2");
}
