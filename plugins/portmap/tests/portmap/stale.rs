//! Containers that are gone without a DEL.

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Network, need};

use super::reference::go_table;
use super::{Site, pod_ip};

fn host_end(site: &Site) -> String {
    site.results[0]["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

/// As libcni after the first pod's ADD.
fn record(site: &Site, netns: &str) {
    let mut result = site.results[0].clone();
    for interface in result["interfaces"].as_array_mut().unwrap() {
        if interface.get("sandbox").is_some() {
            interface["sandbox"] = json!(netns);
        }
    }
    let record = json!({
        "kind": "cniCacheV1", "containerId": "pod0", "config": "", "ifName": "eth0", "networkName": "net64",
        "netns": netns, "result": result,
    });
    let dir = site.host.dir().join("results");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("net64-pod0-eth0"), record.to_string()).unwrap();
}

/// libcni's records are in the test's directory, which the plugin sees in `cache`.
fn add(site: &Site, net: &Network<'_>, cache: &str) -> cnimble_tests::Outcome {
    let script = format!(
        "mount -t tmpfs none /var/lib && mkdir -p {cache} && ln -s {} {cache}/ && exec \"$0\" \"$@\"",
        site.host.dir().join("results").display()
    );
    let call = net.call("ADD", &site.attachment(1), Some(&site.results[1]));
    call.under(&["unshare", "--mount", "sh", "-c", &script]).run()
}

/// In one of the known forms.
fn map(site: &Site, form: &str, mappings: Value) {
    if form == "Go's nftables" {
        let table = go_table("1.9", "ip", "192.0.2.1", &pod_ip(&site.results[0], false));
        let table = table.replace("tcp dport 9090", "tcp dport 9999");
        site.host.run_with("nft -f -", table.as_bytes()).success();
    } else {
        site.add(&site.network(mappings).with("/backend", json!(form)), 0);
    }
}

#[test]
fn a_stale_mapping_blocks_nobody_and_a_living_one_stays() {
    need!("nft", "ip", "iptables-nft-save", "unshare", "mount");
    for (form, backend, cache) in [
        ("nftables", "nftables", "/var/lib/cni"),
        ("nftables", "iptables", "/var/lib/cni/multus"),
        ("iptables", "nftables", "/var/lib/cnimble/cni"),
        ("iptables", "iptables", "/var/lib/cni"),
        ("Go's nftables", "nftables", "/var/lib/cni"),
    ] {
        let site = Site::new();
        let old = Server::start(&site.pods[0], 80, "pod0");
        map(
            &site,
            form,
            json!([{"hostPort": 8080, "containerPort": 80}, {"hostPort": 8081, "containerPort": 80}]),
        );
        std::fs::create_dir(site.host.dir().join("results")).unwrap();
        let net =
            site.network(json!([{"hostPort": 8080, "containerPort": 80}])).with("/backend", json!(backend));
        let alone = site.ruleset();
        let refused = |why: &str| {
            let err = add(&site, &net, cache).error();
            assert_eq!(err.code, 102, "{form}, {backend}, {why}: {}", err.all());
            assert!(err.all().contains("id: pod0"), "{form}, {backend}, {why}: {}", err.all());
            assert_eq!(site.ruleset(), alone, "{form}, {backend}, {why}");
        };
        let serves = || assert!(tcp(&site.host, "192.0.2.1:8080").unwrap().starts_with("pod0 "), "{form}");
        refused("nothing is recorded");
        serves();
        record(&site, site.pods[0].path());
        refused("its namespace and the host's end are there");
        record(&site, "/run/netns/of-a-test-that-is-no-more");
        refused("the host's end is there");
        serves();
        drop(old);
        site.host.ip(&format!("link del {}", host_end(&site)));
        record(&site, site.pods[0].path());
        refused("its namespace is there");
        // Another network's record: the container lives.
        let file = site.host.dir().join("results/net64-pod0-eth0");
        let other = std::fs::read_to_string(&file).unwrap().replace("\"net64\"", "\"another\"");
        std::fs::write(&file, other.replace(site.pods[0].path(), "/run/netns/gone")).unwrap();
        if form != "Go's nftables" {
            refused("a record of another network");
        }
        std::fs::write(&file, "").unwrap();
        refused("a record that can't be read");
        record(&site, "/run/netns/of-a-test-that-is-no-more");

        let outcome = add(&site, &net, cache);
        assert_eq!(outcome.status, 0, "{form}, {backend}: {}", outcome.describe());
        let ruleset = site.ruleset();
        assert!(!ruleset.contains("pod0"), "{form}, {backend}: {ruleset}");
        let _new = Server::start(&site.pods[1], 80, "pod1");
        assert!(tcp(&site.host, "192.0.2.1:8080").unwrap().starts_with("pod1 "), "{form}, {backend}");
        net.check(&site.attachment(1), &site.results[1]).success();
    }
}

/// One gets it, and the other's error names the new owner.
#[test]
fn many_adds_race_for_a_dead_pods_port() {
    need!("nft");
    use cnimble_netlink::nft::Nft;
    use cnimble_rules::portmap::{self, Backend, Holder};
    for _ in 0..3 {
        let host = cnimble_tests::Ns::new();
        let add = |id: &str, ip: &str| {
            let gone = |holder: &Holder| holder.container == "dead";
            let wanted = super::forward(&[80, 81, 82], &[ip]);
            host.within(|| {
                portmap::add(Backend::Nftables, &mut Nft::new(), &super::owner(id), &wanted, &gone).map(drop)
            })
        };
        add("dead", "10.1.2.200/24").unwrap();
        let won: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| scope.spawn(move || add(&format!("new{n}"), &format!("10.1.2.{}/24", n + 2))))
                .collect();
            let outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
            outcomes
                .map(|outcome| {
                    usize::from(outcome.map_err(|err| assert_eq!(err.code.0, 102, "{err}")).is_ok())
                })
                .sum()
        });
        let ruleset = host.nft("-s list ruleset");
        assert_eq!(won, 1, "{ruleset}");
        assert_eq!(ruleset.matches("tcp . 8").count(), 3, "{ruleset}");
        assert!(!ruleset.contains("dead"), "{ruleset}");
    }
}
