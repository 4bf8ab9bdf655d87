//! Rules of the Go plugin, and in its chains.

use serde_json::{Value, json};

use cnimble_tests::traffic::{Server, tcp, tcp_is_shut};
use cnimble_tests::{Network, go_plugins, need, skip};

use super::{Site, pod_ip};

#[test]
fn iptables_chains_of_the_go_plugin_are_known() {
    need!("nft", "ip", "iptables-nft-save");
    let Some(go) = go_plugins() else { skip!("the Go plugins are not installed") };
    let site = Site::new();
    let config = |ports: Value| site.network(ports).with("/cniVersion", json!("1.0.0"));
    let mut prev = site.results.clone();
    for prev in &mut prev {
        prev["cniVersion"] = json!("1.0.0");
        for interface in prev["interfaces"].as_array_mut().unwrap() {
            interface.as_object_mut().unwrap().remove("mtu");
        }
    }
    let ours = config(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                             {"hostPort": 8081, "containerPort": 80, "protocol": "udp"}]));
    let theirs = ours.served_by(go);
    let other = config(json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]));
    let attachments = [0, 1].map(|pod| site.attachment(pod));
    let add = |net: &Network<'_>, pod: usize| {
        net.call("ADD", &attachments[pod], Some(&prev[pod])).run().result();
    };
    add(&other.served_by(go), 1);
    let before = site.host.cni_nat();
    add(&theirs, 0);
    let made = site.host.cni_nat();
    assert_ne!(made, before);

    // CHECK accepts these ports.
    ours.check(&attachments[0], &prev[0]).success();
    let more = config(
        json!([{"hostPort": 1, "containerPort": 1, "protocol": "tcp"}, {"hostPort": 2, "containerPort": 1, "protocol": "tcp"},
                             {"hostPort": 3, "containerPort": 1, "protocol": "tcp"}]),
    );
    assert_eq!(more.check(&attachments[0], &prev[0]).error().code, 103);
    // Only the container's ID.
    let bare = ours.with("/runtimeConfig", Value::Null);
    bare.deleted(&attachments[0].clone().netns(""), None);
    assert_eq!(site.host.cni_nat(), before);

    add(&theirs, 0);
    ours.with("/cniVersion", json!("1.1.0")).gc(Some(json!([attachments[1].listed()]))).success();
    assert_eq!(site.host.cni_nat(), before);
    ours.with("/cniVersion", json!("1.1.0")).with("/name", json!("elsewhere")).gc(Some(json!([]))).success();
    assert_eq!(site.host.cni_nat(), before);

    // In another order. The Go plugin removes ours.
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let iptables = ours.with("/backend", json!("iptables"));
    add(&iptables, 0);
    assert_eq!(sorted(&site.host.cni_nat()), sorted(&made));
    iptables.check(&attachments[0], &prev[0]).success();
    add(&iptables, 0);
    assert_eq!(sorted(&site.host.cni_nat()), sorted(&made), "again: nothing is there twice");
    theirs.del(&attachments[0], Some(&prev[0])).success();
    assert_eq!(site.host.cni_nat(), before);
}

/// One family's table of the Go plugin before 1.6.1, since 1.6.1 and since 1.9; the packaged one is older. Ports 8080
/// and 8081 (on one address) lead to `pod0`, 9090 to `pod1`.
pub(super) fn go_table(release: &str, family: &str, host: &str, pod: &str) -> String {
    let to = if family == "ip6" { format!("[{pod}]") } else { pod.to_owned() };
    let map = |port: u16| match release {
        "early" => format!("{family} protocol tcp th dport {port} dnat {family} addr . port to {pod} . 80"),
        _ => format!("tcp dport {port} dnat to {to}:80"),
    };
    let special = format!("{family} daddr {host} {} comment \"pod0\"", map(8081));
    let (ours, others) = match release {
        "1.9" => (special, String::new()),
        _ => (String::new(), special),
    };
    let hooked = |end: &str| match release {
        "1.9" => "fib daddr type local jump hostports_all".to_owned(),
        _ => format!("jump hostip_hostports\n{end} jump hostports"),
    };
    let all =
        if release == "1.9" { "chain hostports_all { jump hostip_hostports\njump hostports\n}" } else { "" };
    let (prerouting, output) = (hooked(""), hooked("fib daddr type local"));
    let sources = if release == "1.9" { "0.0.0.0/0" } else { "127.0.0.1" };
    let localhost = if family == "ip" {
        format!("ip saddr {sources} ip daddr {pod} masquerade comment \"pod0\"")
    } else {
        String::new()
    };
    format!(
        "table {family} cni_hostport {{
            comment \"CNI portmap plugin\";
            chain hostports {{
                {} comment \"pod0\"
                {ours}
                {} comment \"pod1\"
            }}
            chain hostip_hostports {{
                {others}
            }}
            {all}
            chain prerouting {{
                type nat hook prerouting priority dstnat; policy accept;
                {prerouting}
            }}
            chain output {{
                type nat hook output priority -100; policy accept;
                {output}
            }}
            chain masquerading {{
                type nat hook postrouting priority srcnat; policy accept;
                {family} saddr {pod} {family} daddr {pod} masquerade comment \"pod0\"
                {localhost}
            }}
        }}\n",
        map(8080),
        map(9090)
    )
}

#[test]
fn nft_rules_of_newer_go_plugins_are_known() {
    need!("nft", "ip");
    for release in ["early", "1.6.1", "1.9"] {
        let site = Site::new();
        let mut prev = site.results[0].clone();
        let mut load = go_table(release, "ip", "192.0.2.1", &pod_ip(&prev, false));
        if release == "early" {
            // Its IPv6 rules were invalid.
            prev["ips"].as_array_mut().unwrap().retain(|ip| !ip["address"].as_str().unwrap().contains(':'));
        } else {
            load += &go_table(release, "ip6", "2001:db8::1", &pod_ip(&prev, true));
        }
        site.host.run_with("nft -f -", load.as_bytes()).success();
        site.host.set_sysctl("ipv4/conf/br0/route_localnet", "1");
        let all = |pod: u16| {
            site.network(json!([
                {"hostPort": 8080, "containerPort": pod},
                {"hostPort": 8081, "containerPort": 80, "hostIP": "192.0.2.1"},
            ]))
        };
        let (net, attachment) = (all(80), site.attachment(0));
        net.check(&attachment, &prev).success();
        let _inside = Server::start(&site.pods[0], 80, "pod0");
        for to in ["192.0.2.1:8080", "192.0.2.1:8081"] {
            assert!(tcp(&site.world, to).unwrap().starts_with("pod0"), "{release}: {to}");
        }
        // Another destination, or unreachable ports.
        let err = all(81).check(&attachment, &prev).error();
        assert_eq!(err.code, 103, "{release}");
        let before = site.ruleset();
        site.host.nft("flush chain ip cni_hostport prerouting");
        assert_eq!(net.check(&attachment, &prev).error().code, 103, "{release}");
        site.host.nft("delete table ip cni_hostport");
        let v4 = go_table(release, "ip", "192.0.2.1", &pod_ip(&prev, false));
        site.host.run_with("nft -f -", v4.as_bytes()).success();
        // Their network is unknown.
        net.gc(Some(json!([]))).success();
        assert_eq!(site.ruleset().len(), before.len(), "{release}: GC leaves them");
        net.with("/runtimeConfig", Value::Null).deleted(&attachment.netns(""), None);
        let left = site.ruleset();
        assert!(!left.contains("pod0") && left.contains("pod1"), "{release}: {left}");
    }
}

#[test]
fn conditions_and_a_mark_of_others_take_iptables() {
    need!("nft", "ip", "iptables-nft-save");
    let site = Site::new();
    let net = site.network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let conditional = net.with("/conditionsV4", json!(["!", "-s", "192.0.2.9"]));
    site.add(&conditional, 0);
    assert!(tcp_is_shut(&site.world, "192.0.2.1:8080"));
    assert!(tcp(&site.world, "[2001:db8::1]:8080").unwrap().starts_with("pod0"));
    assert!(tcp(&site.host, "127.0.0.1:8080").unwrap().starts_with("pod0"));
    net.deleted(&site.attachment(0), None);

    site.host.sh("iptables -t nat -N KUBE-MARK-MASQ");
    site.host.sh("ip6tables -t nat -N KUBE-MARK-MASQ");
    let external = net.with("/externalSetMarkChain", json!("KUBE-MARK-MASQ"));
    site.add(&external, 0);
    let rules = site.host.shell("iptables-nft-save -t nat");
    assert!(rules.contains("-j KUBE-MARK-MASQ"), "{rules}");
    net.deleted(&site.attachment(0), None);
    // With iptables' message; no rule remains.
    let before = site.host.cni_nat();
    let wrong = net.with("/conditionsV4", json!(["--no-such-thing"]));
    let err = wrong.call("ADD", &site.attachment(0), Some(&site.results[0])).run().error();
    assert!(err.all().contains("iptables-restore failed"), "{}", err.all());
    assert_eq!(site.host.cni_nat(), before);

    let marked = net.with("/backend", json!("iptables")).with("/markMasqBit", json!(20));
    let site = Site::new();
    let marked = Network { host: &site.host, ..marked };
    site.add(&marked, 0);
    assert!(site.host.shell("iptables-nft-save -t nat").contains("0x100000/0x100000"));
}

#[test]
fn legacy_iptables_is_filled_and_cleaned() {
    need!("nft", "ip", "iptables-legacy", "iptables-legacy-save");
    let site = Site::new();
    if site.host.run("iptables-legacy -t nat -S").status != 0 {
        skip!("this kernel has no legacy iptables");
    }
    let bin = site.host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for family in ["iptables", "ip6tables"] {
        for action in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-legacy{action}");
            std::os::unix::fs::symlink(target, bin.join(format!("{family}{action}"))).unwrap();
        }
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let rules = || {
        site.host
            .shell("iptables-legacy-save; ip6tables-legacy-save")
            .lines()
            .filter(|line| line.contains("CNI-"))
            .map(|line| format!("{}\n", line.split(" [").next().unwrap()))
            .collect::<String>()
    };
    let mut net = site
        .network(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]))
        .with("/backend", json!("iptables"));
    net.path = Some(path.clone());
    let mut other = site
        .network(json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]))
        .with("/backend", json!("iptables"));
    other.path = Some(path);
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    site.add(&other, 1);
    let before = rules();
    site.add(&net, 0);
    let made = rules();
    assert!(made.contains("CNI-DN-") && made != before, "{made}");
    assert!(site.ruleset().is_empty(), "{}", site.ruleset());
    assert!(tcp(&site.world, "192.0.2.1:8080").unwrap().starts_with("pod0"));
    assert_eq!(tcp(&site.host, "127.0.0.1:8080").unwrap(), "pod0 10.1.2.1");
    net.check(&site.attachment(0), &site.results[0]).success();
    site.add(&net, 0);
    assert_eq!(rules().lines().count(), made.lines().count(), "{}", rules());
    net.deleted(&site.attachment(0).netns(""), None);
    assert_eq!(rules(), before);
    assert_eq!(net.check(&site.attachment(0), &site.results[0]).error().code, 103);
    site.add(&net, 0);
    net.gc(Some(json!([site.attachment(1).listed()]))).success();
    assert_eq!(rules(), before);
    net.status().success();
}
