use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp};
use cnimble_tests::{Attachment, Network, need};

use super::Site;

/// System calls of an ADD that send or receive.
fn messages(site: &Site, net: &Network<'_>, attachment: &Attachment, prev: &Value) -> usize {
    let log = site.host.dir().join("strace");
    let wrapper =
        ["strace", "-qq", "-e", "trace=sendto,sendmsg,recvfrom,recvmsg", "-o", log.to_str().unwrap()];
    net.call("ADD", attachment, Some(prev)).under(&wrapper).run().success();
    let trace = std::fs::read_to_string(log).unwrap();
    trace.lines().count()
}

#[test]
fn a_mapping_costs_the_same_among_five_hundred() {
    need!("nft", "ip", "strace");
    let site = Site::new();
    let one = |port: u16| site.network(json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]));
    // The first makes the table.
    site.add(&one(9001), 1);
    let third = Attachment::new("third", &site.pods[1]);
    let mut prev = site.results[1].clone();
    prev["ips"] = json!([{"address": "10.1.2.77/24"}, {"address": "fd00:1:2::77/64"}]);
    let alone = messages(&site, &one(9000), &third, &prev);
    one(9000).deleted(&third, None);

    let many: Vec<Value> = (0..500)
        .map(|n| json!({"hostPort": 10_000 + n, "containerPort": n + 1, "protocol": "tcp"}))
        .collect();
    let many = site.network(json!(many));
    let all = messages(&site, &many, &site.attachment(0), &site.results[0]);
    assert_eq!(all, alone, "500 mappings in one ADD take as many messages as one");
    assert_eq!(site.ruleset().matches("id: pod0").count(), 1000 + 3);
    let among = messages(&site, &one(9000), &third, &prev);
    assert_eq!(among, alone, "one mapping among 500");
    println!("{alone} messages");

    let _inside = Server::start(&site.pods[0], 500, "last");
    assert!(tcp(&site.world, "192.0.2.1:10499").unwrap().starts_with("last"));
    assert!(tcp(&site.world, "[2001:db8::1]:10499").unwrap().starts_with("last"));
    many.check(&site.attachment(0), &site.results[0]).success();
    let net = site.network(json!([{"hostPort": 10_499, "containerPort": 1}]));
    let outcome = net.call("ADD", &site.attachment(1), Some(&site.results[1])).run();
    assert_eq!(outcome.error().code, 102);
    many.deleted(&site.attachment(0), None);
    assert!(!site.ruleset().contains("pod0") && site.ruleset().contains("pod1"));
}
