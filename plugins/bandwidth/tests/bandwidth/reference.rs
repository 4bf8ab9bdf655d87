use serde_json::{Value, json};

use cnimble_tests::{Network, go_plugins, need, skip};

use super::{BURST, Chain, RATE, both};

/// As a newer Go plugin: its DEL removes only the ifb.
fn go_htb(chain: &Chain, ifb: &str, shaped: bool) {
    let veth = chain.veth();
    let (default, listed) = if shaped { ("1", "1:30") } else { ("30", "1:1") };
    let mut commands = vec![
        format!("ip link add {ifb} up type ifb"),
        format!("tc qdisc add dev {veth} ingress"),
        format!(
            "tc filter add dev {veth} parent ffff: protocol all prio 1 u32 match u8 0 0 flowid 1:1 \
             action mirred egress redirect dev {ifb}"
        ),
    ];
    for (dev, rate) in [(veth, RATE), (ifb, RATE / 2)] {
        commands.extend([
            format!("tc qdisc add dev {dev} root handle 1: htb default {default}"),
            format!("tc class add dev {dev} parent 1: classid 1:30 htb rate {rate} burst {}", BURST / 8),
            format!("tc class add dev {dev} parent 1: classid 1:1 htb rate 800gbit quantum 2000"),
            format!(
                "tc filter add dev {dev} parent 1: protocol ip prio 16 u32 match ip dst 10.9.0.0/16 flowid {listed}"
            ),
        ]);
    }
    for command in commands {
        chain.host.sh(&command);
    }
}

#[test]
fn newer_go_plugins_limits_are_checked_and_replaced() {
    need!("ip", "tc");
    let chain = Chain::new();
    let plain = chain.net(&both());
    let result = chain.add(&plain);
    let ifb = chain.ifbs()[0].clone();
    plain.deleted(&chain.att, Some(&result));
    let before = chain.state();
    for shaped in [true, false] {
        go_htb(&chain, &ifb, shaped);
        let mut keys = both();
        let (key, other) =
            if shaped { ("shapedSubnets", "unshapedSubnets") } else { ("unshapedSubnets", "shapedSubnets") };
        keys[key] = json!(["10.9.0.0/16"]);
        let net = chain.net(&keys);
        net.check(&chain.att, &result).success();
        // A configuration without a list equals one with unshapedSubnets.
        assert_eq!(plain.check(&chain.att, &result).status == 0, !shaped);
        let noticed = |change: &dyn Fn(&mut Value), word: &str| {
            let mut keys = keys.clone();
            change(&mut keys);
            let error = chain.net(&keys).check(&chain.att, &result).error();
            assert!(error.code == 103 && error.all().contains(word), "{word}: {error:?}");
        };
        noticed(&|keys| keys["ingressRate"] = json!(8000), "rate 1000000, expected 1000");
        noticed(&|keys| keys["egressBurst"] = json!(BURST * 2), "expected 40000");
        noticed(
            &|keys| {
                keys[other] = keys[key].take();
            },
            "the other class",
        );
        chain.host.sh(&format!("tc qdisc del dev {ifb} root"));
        noticed(&|_| {}, "expected htb");
        // Our DEL removes the Go plugin's limits.
        net.deleted(&chain.att, Some(&result));
        chain.assert_state(&before, "our DEL");
        // Our ADD follows the Go plugin's DEL.
        go_htb(&chain, &ifb, shaped);
        chain.host.ip(&format!("link del {ifb}"));
        let again = chain.add(&net);
        net.check(&chain.att, &again).success();
        net.deleted(&chain.att, Some(&again));
        chain.assert_state(&before, "our DEL after theirs");
    }
}

#[test]
fn the_same_as_the_go_plugin_and_del_of_each_others() {
    need!("ip", "tc");
    let Some(go) = go_plugins().filter(|dir| dir.join("bandwidth").exists()) else {
        skip!("no Go plugin bandwidth");
    };
    for keys in [
        both(),
        json!({ "ingressRate": 1_000_000_007_u64, "ingressBurst": 12_345_678 }),
        json!({ "egressRate": 65_432, "egressBurst": 800_000 }),
        json!({ "ingressRate": 100_000_000, "ingressBurst": u32::MAX, "egressRate": 100_000_000, "egressBurst": u32::MAX }),
    ] {
        let seen = |first: &std::path::Path, second: &std::path::Path| {
            let chain = Chain::new();
            let net = chain.net(&keys).with("/cniVersion", json!("1.0.0"));
            let mut prev = chain.prev.clone();
            prev["cniVersion"] = json!("1.0.0");
            let result = net.served_by(first).call("ADD", &chain.att, Some(&prev)).run().result();
            Network::new(&chain.host, net.config.clone()).check(&chain.att, &result).success();
            net.served_by(go).check(&chain.att, &result).success();
            // The names of veths differ between chains.
            let qdiscs = chain.qdiscs().to_string().replace(chain.veth(), "veth");
            let ifbs = chain.ifbs();
            net.served_by(second).deleted(&chain.att, Some(&result));
            assert_eq!(chain.ifbs(), Vec::<String>::new(), "{}", second.display());
            let interfaces = result["interfaces"].as_array().unwrap().len();
            (serde_json::from_str::<Value>(&qdiscs).unwrap(), ifbs, interfaces)
        };
        let ours = cnimble_tests::plugin_dir();
        assert_eq!(seen(ours, go), seen(go, ours), "{keys}");
    }
}
