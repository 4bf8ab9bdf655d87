use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, Snapshot, configs, leases, need, skip};

/// GC and STATUS exist since 1.1.0.
macro_rules! need_1_1_0 {
    () => {
        need!("ip", "nft");
        if configs::newest() < "1.1.0" {
            skip!("the plugins know {} at most", configs::newest());
        }
    };
}

/// Pods with everything that a pod can leave on the host.
struct Three<'h> {
    net: Network<'h>,
    pods: Vec<(Pod, Attachment, Value)>,
}

impl<'h> Three<'h> {
    fn new(host: &'h Host) -> Self {
        let net = Network::new(host, configs::dual(host))
            .with("/ipMasq", json!(true))
            .with("/macspoofchk", json!(true));
        let pods = (0..3)
            .map(|number| {
                let pod = Pod::new();
                let att = Attachment::new(&format!("pod{number}"), &pod);
                let result = net.added(&att);
                (pod, att, result)
            })
            .collect();
        Three { net, pods }
    }

    fn valid(&self, numbers: &[usize]) -> Value {
        numbers.iter().map(|number| self.pods[*number].1.listed()).collect()
    }

    fn works(&self, number: usize) -> bool {
        let (pod, att, result) = &self.pods[number];
        pod.pings("10.1.2.1") && self.net.check(att, result).status == 0
    }

    /// The pod's traces on the host.
    fn traces(&self, number: usize) -> Vec<String> {
        let (_, att, result) = &self.pods[number];
        let now = Snapshot::of(self.net.host).without_lines("last_reserved_ip");
        let mut found = now.mentions(&att.id);
        found.extend(now.lines_with(result["interfaces"][1]["name"].as_str().unwrap()));
        for ip in result["ips"].as_array().unwrap() {
            let address = ip["address"].as_str().unwrap().split('/').next().unwrap();
            found.extend(now.mentions(address));
        }
        found
    }
}

#[test]
fn gc_keeps_the_lease_of_a_pair_whose_alias_was_overwritten() {
    need_1_1_0!();
    let host = Host::hasty();
    let three = Three::new(&host);
    let veth = |number: usize| three.pods[number].2["interfaces"][1]["name"].as_str().unwrap();
    host.ip(&format!("link set {} alias uplink-of-alice", veth(1)));
    let held = |id: &str| leases(&host.data_dir()).iter().filter(|line| line.contains(id)).count();
    let outcome = three.net.gc(Some(three.valid(&[0]))).success();
    let told = "stays: its veth is there, with an alias that names no attachment";
    assert!(outcome.stderr.contains(told), "{}", outcome.describe());
    assert!(three.works(0));
    assert!(!host.links().contains(&veth(2).to_owned()), "a pair whose alias names it is removed");
    // The pod still uses its addresses.
    let (pod, att, result) = &three.pods[1];
    assert!(pod.pings("10.1.2.1"));
    assert_eq!(["pod0", "pod1", "pod2"].map(held), [2, 2, 0], "an address of each family");
    three.net.deleted(att, Some(result));
    assert_eq!(["pod0", "pod1", "pod2"].map(held), [2, 0, 0]);
}

#[test]
fn gc_without_a_list_changes_nothing() {
    need_1_1_0!();
    let host = Host::hasty();
    let three = Three::new(&host);
    let before = Snapshot::of(&host);
    let outcome = three.net.gc(None).success();
    assert!(outcome.stdout.is_empty(), "{}", outcome.describe());
    before.assert_same(&Snapshot::of(&host), "after GC");
}

#[test]
fn gc_with_all_in_the_list_changes_nothing() {
    need_1_1_0!();
    let host = Host::hasty();
    let three = Three::new(&host);
    let before = Snapshot::of(&host);
    three.net.gc(Some(three.valid(&[2, 0, 1]))).success();
    before.assert_same(&Snapshot::of(&host), "after GC");
    assert!(three.works(0) && three.works(1) && three.works(2));
}

#[test]
fn gc_with_null_or_an_empty_list_removes_all() {
    need_1_1_0!();
    for list in [json!(null), json!([])] {
        let host = Host::hasty();
        let three = Three::new(&host);
        three.net.gc(Some(list.clone())).success();
        for number in 0..3 {
            let traces = three.traces(number);
            assert!(traces.is_empty(), "{list}: {traces:#?}");
        }
        assert_eq!(host.links(), ["br0", "lo"], "{list}");
    }
}

#[test]
fn gc_removes_pods_of_an_earlier_bridge() {
    need_1_1_0!();
    let host = Host::hasty();
    let three = Three::new(&host);
    three.net.with("/bridge", json!("br1")).gc(Some(json!([]))).success();
    assert_eq!(host.links(), ["br0", "lo"]);
}

#[test]
fn gc_removes_what_is_not_in_the_list() {
    need_1_1_0!();
    let host = Host::hasty();
    let three = Three::new(&host);
    assert!(!three.traces(0).is_empty(), "the test must be able to see");
    // CRI-O sends the older key as well.
    let mut net = three.net.clone();
    net.config["cni.dev/attachments"] = three.valid(&[1]);
    net.gc(Some(three.valid(&[1]))).success();
    for number in [0, 2] {
        let traces = three.traces(number);
        assert!(traces.is_empty(), "pod {number}: {traces:#?}");
    }
    assert!(three.works(1));
    assert_eq!(host.links().len(), 3, "{:?}", host.links());
    // Nothing is left to do.
    let before = Snapshot::of(&host);
    net.gc(Some(three.valid(&[1]))).success();
    before.assert_same(&Snapshot::of(&host), "after the second GC");
}

#[test]
fn gc_tells_interfaces_of_one_container_apart() {
    need_1_1_0!();
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    let eth0 = Attachment::new("one", &pod);
    let eth1 = eth0.clone().ifname("eth1");
    let net1 = net.with("/ipam/routes", json!([]));
    let kept = net.added(&eth0);
    let gone = net1.added(&eth1);
    net.gc(Some(json!([eth0.listed()]))).success();
    assert_eq!(pod.links(), ["eth0", "lo"]);
    net.check(&eth0, &kept).success();
    let host_end = gone["interfaces"][1]["name"].as_str().unwrap();
    assert!(host.link(host_end).is_null());
    let left: Vec<String> =
        leases(&host.data_dir()).into_iter().filter(|line| line.contains("eth1")).collect();
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn gc_leaves_other_networks_and_strangers_alone() {
    need_1_1_0!();
    let host = Host::hasty();
    let three = Three::new(&host);
    // Two other networks, one on the same bridge. One port belongs to the user.
    let same_bridge = Network::new(
        &host,
        json!({
            "cniVersion": "1.1.0", "name": "other", "type": "bridge", "bridge": "br0", "ipMasq": true, "macspoofchk": true,
            "ipam": {"type": "host-local", "dataDir": host.data_dir(), "subnet": "10.50.0.0/24"},
        }),
    );
    let (pod, pod2) = (Pod::new(), Pod::new());
    let att = Attachment::new("other", &pod);
    let result = same_bridge.added(&att);
    let own_bridge = same_bridge
        .with("/bridge", json!("br1"))
        .with("/name", json!("third"))
        .with("/ipam/subnet", json!("10.51.0.0/24"));
    let att2 = Attachment::new("third", &pod2);
    let result2 = own_bridge.added(&att2);
    host.ip("link add vethstranger type veth peer name strangerpeer");
    host.ip("link set vethstranger master br0 up");
    host.nft("add table inet mine");
    host.nft("add chain inet mine c { type nat hook postrouting priority 90 ; }");
    host.nft("add rule inet mine c ip saddr 10.1.2.2 masquerade");
    three.net.gc(Some(json!([]))).success();
    same_bridge.check(&att, &result).success();
    own_bridge.check(&att2, &result2).success();
    let links = host.links();
    for name in ["vethstranger", "strangerpeer", result["interfaces"][1]["name"].as_str().unwrap()] {
        assert!(links.iter().any(|link| link == name), "{name} is gone: {links:?}");
    }
    assert!(host.nft("list table inet mine").contains("10.1.2.2"));
    assert_eq!(
        links.len(),
        1 + 2 + 2 + 2,
        "lo, two bridges, two of others' pods, two of strangers: {links:?}"
    );
}

#[test]
fn gc_of_host_local_alone() {
    need_1_1_0!();
    let host = Host::hasty();
    let net = Network::new(&host, configs::ipam(&host));
    let pod = Pod::new();
    let atts: Vec<Attachment> = (0..4).map(|number| Attachment::new(&format!("pod{number}"), &pod)).collect();
    for att in &atts {
        net.added(att);
    }
    // An older release wrote only the container ID.
    let old = host.data_dir().join("net4/10.1.2.4");
    std::fs::write(&old, "pod2").unwrap();
    let before = leases(&host.data_dir());
    net.gc(None).success();
    assert_eq!(leases(&host.data_dir()), before);
    net.gc(Some(json!([atts[1].listed(), atts[2].listed()]))).success();
    let kept: Vec<String> = leases(&host.data_dir())
        .into_iter()
        .filter(|line| line.starts_with("net4/10."))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(kept, ["net4/10.1.2.3", "net4/10.1.2.4"]);
    net.gc(Some(json!(null))).success();
    assert!(!leases(&host.data_dir()).iter().any(|line| line.starts_with("net4/10.")));
}

#[test]
fn gc_and_status_need_1_1_0() {
    need_1_1_0!();
    let host = Host::hasty();
    for config in [configs::v4(&host), configs::ipam(&host), configs::loopback()] {
        let net = Network::new(&host, config).with("/cniVersion", json!("1.0.0"));
        assert_eq!(net.gc(Some(json!([]))).error().code, 1);
        assert_eq!(net.status().error().code, 1);
    }
}

#[test]
fn status_when_all_is_well() {
    need_1_1_0!();
    let host = Host::hasty();
    let before = Snapshot::of(&host);
    let net = Network::new(&host, configs::dual(&host))
        .with("/ipMasq", json!(true))
        .with("/macspoofchk", json!(true));
    for net in [net, Network::new(&host, configs::ipam(&host)), Network::new(&host, configs::loopback())] {
        let outcome = net.status().success();
        assert!(outcome.stdout.is_empty(), "{}", outcome.describe());
    }
    before.assert_same(&Snapshot::of(&host), "STATUS only looks");
}

#[test]
fn status_when_the_range_is_full() {
    need_1_1_0!();
    let host = Host::hasty();
    let net =
        Network::new(&host, configs::v4(&host)).with("/ipam/ranges", json!([[{"subnet": "10.1.2.0/29"}]]));
    let pods: Vec<Pod> = (0..5).map(|_| Pod::new()).collect();
    for (number, pod) in pods.iter().enumerate() {
        net.status().success();
        net.added(&Attachment::new(&format!("pod{number}"), pod));
    }
    // "Not available" would make a runtime report the node as not ready.
    let ipam = net.with("/type", json!("host-local"));
    for network in [&net, &ipam] {
        network.status().success();
        let error = network.with("/ipam/notReadyWhenFull", json!(true)).status().error();
        assert_eq!(error.code, 50, "{error:?}");
        assert!(error.all().contains("10.1.2."), "says which range: {error:?}");
    }
    let late = Pod::new();
    let error = net.add(&Attachment::new("late", &late)).error();
    assert!(error.all().contains("no IP addresses available in range set"), "{error:?}");
    net.deleted(&Attachment::new("pod0", &pods[0]), None);
    net.with("/ipam/notReadyWhenFull", json!(true)).status().success();
}

/// A runtime passes the capability `ipRanges` with an attachment, but not with STATUS.
#[test]
fn status_succeeds_when_the_ranges_come_with_each_attachment() {
    need_1_1_0!();
    let host = Host::hasty();
    for config in [configs::v4(&host), configs::ipam(&host)] {
        let net = Network::new(&host, config).with("/ipam/ranges", Value::Null);
        assert_eq!(net.status().error().code, 7);
        let net = net.with("/capabilities", json!({"ipRanges": true}));
        net.status().success();
        let pod = Pod::new();
        let error = net.add(&Attachment::new("pod", &pod)).error();
        assert!(error.all().contains("no IP ranges specified"), "{error:?}");
        net.with("/runtimeConfig", json!({"ipRanges": [[{"subnet": "10.1.2.0/33"}]]})).status().error();
    }
}

#[test]
fn status_when_the_store_can_not_be_written() {
    need_1_1_0!();
    let host = Host::hasty();
    let file = host.dir().join("file");
    std::fs::write(&file, "").unwrap();
    for dir in [file.join("networks"), "/proc/self/networks".into()] {
        let net = Network::new(&host, configs::v4(&host)).with("/ipam/dataDir", json!(dir));
        let error = net.status().error();
        assert_eq!(error.code, 50, "{error:?}");
        let ipam = net.with("/type", json!("host-local"));
        assert_eq!(ipam.status().error().code, 50);
    }
}

#[test]
fn status_when_the_kernel_can_not_be_asked() {
    need_1_1_0!();
    need!("strace");
    let host = Host::hasty();
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    let att = Attachment::new("", &host).ifname("");
    let call = net.call("STATUS", &att, None);
    if call.clone().under(&["strace", "-f", "-o", "/dev/null"]).run().status != 0 {
        skip!("strace may not trace here");
    }
    for syscall in ["socket", "bind"] {
        let inject = format!("inject={syscall}:error=EPROTONOSUPPORT");
        let outcome = call.clone().under(&["strace", "-f", "-o", "/dev/null", "-e", &inject]).run();
        let error = outcome.error();
        assert_eq!(error.code, 50, "{syscall}: {error:?}");
    }
}
