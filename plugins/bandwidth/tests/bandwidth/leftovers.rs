use super::*;

#[test]
fn del_leaves_other_interfaces_alone() {
    need!("ip", "tc");
    let chain = Chain::new();
    let net = chain.net(&both());
    let result = chain.add(&net);
    let pod = Pod::new();
    let other = Attachment::new("two", &pod);
    // The prevResult names another owner's interface.
    net.deleted(&other, Some(&result));
    net.check(&chain.att, &result).success();
}

#[test]
fn a_failure_at_each_step_takes_everything_back() {
    need!("ip", "tc");
    let chain = Chain::new();
    let net = chain.net(&both());
    chain.add(&net);
    let ifb = chain.ifbs()[0].clone();
    net.deleted(&chain.att, None);
    let veth = chain.veth();
    for del in ["root", "ingress"] {
        chain.host.sh(&format!("tc qdisc del dev {veth} {del}"));
    }
    for (stand, code, word, clear) in [
        (
            format!("tc qdisc add dev {veth} root pfifo"),
            102,
            "root qdisc already",
            format!("tc qdisc del dev {veth} root"),
        ),
        (format!("ip link add {ifb} type bridge"), 102, "exists already", format!("ip link del {ifb}")),
        (
            format!(
                "tc qdisc add dev {veth} ingress && tc filter add dev {veth} ingress prio 5 u32 match u32 0 0 flowid 1:1"
            ),
            102,
            "ingress qdisc already",
            format!("tc qdisc del dev {veth} ingress"),
        ),
    ] {
        chain.host.shell(&stand);
        let before = chain.state();
        let error = net.call("ADD", &chain.att, Some(&chain.prev)).run().error();
        assert!(error.code == code && error.all().contains(word), "{stand}: {error:?}");
        assert!(!error.all().contains("left behind"), "{error:?}");
        chain.assert_state(&before, &stand);
        // DEL doesn't remove a foreign qdisc or link.
        net.deleted(&chain.att, None);
        chain.assert_state(&before, &stand);
        chain.host.sh(&clear);
    }
    // The last step fails: ADD can't print the result.
    let before = chain.state();
    let full =
        net.call("ADD", &chain.att, Some(&chain.prev)).under(&["sh", "-c", "exec \"$0\" >/dev/full"]).run();
    assert_eq!(full.status, 1, "{}", full.describe());
    chain.assert_state(&before, "/dev/full");
    net.call("ADD", &chain.att, Some(&chain.prev)).run().success();
}

#[test]
fn gc_removes_what_is_not_valid() {
    need!("ip");
    let chain = Chain::new();
    let net = chain.net(&both());
    chain.add(&net);
    let pod = Pod::new();
    let other = Attachment::new("two", &pod);
    let prev = Network::new(&chain.host, configs::v4(&chain.host)).added(&other);
    net.call("ADD", &other, Some(&prev)).run().result();
    // An ifb without an owner.
    chain.host.ip("link add bwp000000000000 type ifb");
    assert_eq!(chain.ifbs().len(), 3);
    net.gc(None).success();
    chain.net(&json!({ "name": "net5" })).gc(Some(json!([]))).success();
    net.gc(Some(json!([chain.att.listed(), other.listed()]))).success();
    assert_eq!(chain.ifbs().len(), 3);
    net.gc(Some(json!([other.listed()]))).success();
    assert_eq!(chain.ifbs().len(), 2);
    net.gc(Some(json!([chain.att.clone().ifname("eth1").listed()]))).success();
    assert_eq!(chain.ifbs(), ["bwp000000000000"]);
    net.status().success();
    assert_eq!(chain.net(&json!({ "ingressRate": 1 })).status().error().code, 7);
}

#[test]
fn another_interface_of_the_container_keeps_its_ifb() {
    need!("ip");
    let chain = Chain::new();
    let net = chain.net(&both());
    chain.add(&net);
    net.deleted(&chain.att.clone().ifname("eth1"), None);
    assert_eq!(chain.ifbs().len(), 1);
    net.deleted(&chain.att, None);
    assert_eq!(chain.ifbs().len(), 0);
}
