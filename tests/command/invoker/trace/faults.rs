//! A table of faults. Each is made, verified by a ping, traced, and taken back.

use std::path::Path;

use cnimble_tests::{Ns, Outcome, need, need_recent_go, plugin_dir};
use serde_json::json;

use super::{FAR, FAR6, RESTORE_RULES, SAVE_RULES, Site, stations};

/// A fault, and the station that has to be named.
struct Fault {
    name: &'static str,
    /// Lines of shell that make the fault and take it back, and where.
    at: At,
    make: &'static str,
    undo: &'static str,
    to: &'static str,
    /// The beginning of the only station that stops the packet, and a part of its text.
    station: &'static str,
    says: &'static str,
}

#[derive(Clone, Copy)]
enum At {
    Host,
    Pod,
    Router,
}

const GATEWAY: &str = "10.214.1.1";
const OTHER: &str = "10.214.1.3";

/// The words END and PEER stand for the host's ends of both pods, ROUTER for the router's namespace, SAVED for a file.
const FAULTS: &[Fault] = &[
    Fault {
        name: "forwarding is off",
        at: At::Host,
        make: "echo 0 >/proc/sys/net/ipv4/ip_forward",
        undo: "echo 1 >/proc/sys/net/ipv4/ip_forward",
        to: FAR,
        station: "out host forwarding:",
        says: "net.ipv4.ip_forward is 0",
    },
    Fault {
        name: "the bridge does not forward",
        at: At::Host,
        make: "echo 0 >/proc/sys/net/ipv4/conf/br0/forwarding",
        undo: "echo 1 >/proc/sys/net/ipv4/conf/br0/forwarding",
        to: FAR,
        station: "out host forwarding:",
        says: "net.ipv4.conf.br0.forwarding is 0",
    },
    Fault {
        name: "the uplink does not forward",
        at: At::Host,
        make: "echo 0 >/proc/sys/net/ipv4/conf/up0/forwarding",
        undo: "echo 1 >/proc/sys/net/ipv4/conf/up0/forwarding",
        to: FAR,
        station: "back host forwarding:",
        says: "net.ipv4.conf.up0.forwarding is 0",
    },
    Fault {
        name: "FORWARD drops by policy",
        at: At::Host,
        make: "nft add table ip filter; \
               nft 'add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'",
        undo: "nft delete table ip filter",
        to: FAR,
        station: "out host forward:",
        says: "ip filter FORWARD",
    },
    Fault {
        name: "the pod has no default route",
        at: At::Pod,
        make: "ip route del default",
        undo: "ip route add default via 10.214.1.1",
        to: FAR,
        station: "out web route:",
        says: "the pod has no route to 192.0.2.1",
    },
    Fault {
        name: "the rules were flushed",
        at: At::Host,
        make: "SAVE_RULES; nft flush ruleset",
        undo: "RESTORE_RULES",
        to: FAR,
        station: "out host masquerade:",
        says: "is missing",
    },
    Fault {
        name: "the host has no default route",
        at: At::Host,
        make: "ip route del default",
        undo: "ip route add default via 10.7.0.1",
        to: FAR,
        station: "out host route:",
        says: "the host has no route to 192.0.2.1",
    },
    Fault {
        name: "the uplink is down",
        at: At::Host,
        make: "ip link set up0 down",
        undo: "ip link set up0 up; ip route add default via 10.7.0.1; \
               ip address replace fd00:7::2/64 dev up0 nodad; ip -6 route replace default via fd00:7::1",
        to: FAR,
        station: "out host route:",
        says: "up0 is down",
    },
    Fault {
        name: "the uplink has no carrier",
        at: At::Router,
        make: "ip link set lan0 down",
        undo: "ip link set lan0 up; ip address replace fd00:7::1/64 dev lan0 nodad",
        to: FAR,
        station: "out host link:",
        says: "up0 is up and has no carrier",
    },
    Fault {
        name: "a chain drops, with one unrelated accept",
        at: At::Host,
        make: "nft 'table inet own { chain forward { type filter hook forward priority 0; policy drop; \
               ip saddr 203.0.113.9 accept; }; }'",
        undo: "nft delete table inet own",
        to: FAR,
        station: "out host forward:",
        says: "the policy of inet own forward drops it",
    },
    Fault {
        name: "a rule drops what leaves by the uplink",
        at: At::Host,
        make: "nft 'table inet own { chain forward { type filter hook forward priority 0; \
               oifname up0 counter drop; }; }'",
        undo: "nft delete table inet own",
        to: FAR,
        station: "out host forward:",
        says: "oifname \"up0\" counter",
    },
    Fault {
        name: "a rule drops in prerouting",
        at: At::Host,
        make: "nft 'table ip own { chain pre { type filter hook prerouting priority -300; \
               ip daddr 192.0.2.1 drop; }; }'",
        undo: "nft delete table ip own",
        to: FAR,
        station: "out host prerouting:",
        says: "ip daddr 192.0.2.1 drop",
    },
    Fault {
        name: "the pod has a wrong permanent neighbour",
        at: At::Pod,
        make: "ip neighbour replace 10.214.1.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
        undo: "ip neighbour del 10.214.1.1 dev eth0",
        to: FAR,
        station: "out web frame:",
        says: "02:00:00:00:00:99",
    },
    Fault {
        name: "an ip rule leads to a blackhole",
        at: At::Host,
        make: "ip route add blackhole default table 66; ip rule add from 10.214.1.0/24 lookup 66",
        undo: "ip rule del from 10.214.1.0/24 lookup 66; ip route flush table 66",
        to: FAR,
        station: "out host route:",
        says: "from 10.214.1.0/24 lookup 66",
    },
    Fault {
        name: "a blackhole route",
        at: At::Host,
        make: "ip route add blackhole 192.0.2.0/24",
        undo: "ip route del blackhole 192.0.2.0/24",
        to: FAR,
        station: "out host route:",
        says: "blackhole 192.0.2.0/24 in table main",
    },
    Fault {
        name: "the port of the bridge is disabled",
        at: At::Host,
        make: "bridge link set dev END state 0",
        undo: "bridge link set dev END state 3",
        to: FAR,
        station: "out host port:",
        says: "is disabled and lets nothing pass",
    },
];

const MORE: &[Fault] = &[
    Fault {
        name: "no route of the pod, behind a rule with a condition that is not judged",
        at: At::Pod,
        make: "ip rule add ipproto tcp lookup 1000; ip route del default",
        undo: "ip rule del ipproto tcp lookup 1000; ip route add default via 10.214.1.1",
        to: FAR,
        station: "out web route:",
        says: "the pod's routes refuse 192.0.2.1: ",
    },
    Fault {
        name: "no route of the host, behind a rule with a condition that is not judged",
        at: At::Host,
        make: "ip rule add ipproto tcp lookup 1000; ip route del default",
        undo: "ip rule del ipproto tcp lookup 1000; ip route add default via 10.7.0.1",
        to: FAR,
        station: "out host route:",
        says: "the host refuses it: ",
    },
    Fault {
        name: "no route back to the pod, behind a rule with a condition that is not judged",
        at: At::Host,
        make: "ip rule add ipproto tcp lookup 1000; ip route del default; ip route del 10.214.1.0/24 dev br0",
        undo: "ip rule del ipproto tcp lookup 1000; \
               ip route add 10.214.1.0/24 dev br0 proto kernel scope link src 10.214.1.1; \
               ip route add default via 10.7.0.1",
        to: GATEWAY,
        station: "back host route:",
        says: "the host refuses it: ",
    },
    Fault {
        name: "an unreachable route",
        at: At::Host,
        make: "ip route add unreachable 192.0.2.0/24",
        undo: "ip route del unreachable 192.0.2.0/24",
        to: FAR,
        station: "out host route:",
        says: "unreachable 192.0.2.0/24",
    },
    Fault {
        name: "a rule that prohibits",
        at: At::Host,
        make: "ip rule add from 10.214.1.0/24 prohibit",
        undo: "ip rule del from 10.214.1.0/24 prohibit",
        to: FAR,
        station: "out host route:",
        says: "from 10.214.1.0/24 prohibit",
    },
    Fault {
        name: "the reverse-path filter",
        at: At::Host,
        make: "echo 1 >/proc/sys/net/ipv4/conf/br0/rp_filter; ip route add 10.214.1.2/32 dev up0",
        undo: "echo 0 >/proc/sys/net/ipv4/conf/br0/rp_filter; ip route del 10.214.1.2/32 dev up0",
        to: FAR,
        station: "out host reverse path:",
        says: "rp_filter is 1",
    },
    Fault {
        name: "the host's end is down",
        at: At::Host,
        make: "ip link set END down",
        undo: "ip link set END up; sleep 0.1",
        to: FAR,
        station: "out web link:",
        says: "has no carrier",
    },
    Fault {
        name: "the bridge is down",
        at: At::Host,
        make: "ip link set br0 down",
        undo: "ip link set br0 up; ip address replace fd00:214:1::1/64 dev br0 nodad",
        to: FAR,
        station: "out host port:",
        says: "br0 is down",
    },
    Fault {
        name: "the answer is dropped in prerouting",
        at: At::Host,
        make: "nft 'table ip own { chain pre { type filter hook prerouting priority -300; iifname up0 drop; }; }'",
        undo: "nft delete table ip own",
        to: FAR,
        station: "back host prerouting:",
        says: "iifname \"up0\" drop",
    },
    Fault {
        name: "a rule drops in postrouting",
        at: At::Host,
        make: "nft 'table ip own { chain post { type filter hook postrouting priority 300; \
               icmp type echo-request drop; }; }'",
        undo: "nft delete table ip own",
        to: FAR,
        station: "out host postrouting:",
        says: "echo-request drop",
    },
    Fault {
        name: "a rule rejects",
        at: At::Host,
        make: "nft 'table inet own { chain forward { type filter hook forward priority 0; \
               iifname br0 reject; }; }'",
        undo: "nft delete table inet own",
        to: FAR,
        station: "out host forward:",
        says: "iifname \"br0\" reject",
    },
    Fault {
        name: "a rule drops what is for the host",
        at: At::Host,
        make: "nft 'table inet own { chain input { type filter hook input priority 0; iifname br0 drop; }; }'",
        undo: "nft delete table inet own",
        to: GATEWAY,
        station: "out host input:",
        says: "iifname \"br0\" drop",
    },
    Fault {
        name: "a rule of the bridge family drops",
        at: At::Host,
        make: "nft 'table bridge own { chain pre { type filter hook prerouting priority 0; \
               ether type ip ip daddr 192.0.2.1 drop; }; }'",
        undo: "nft delete table bridge own",
        to: FAR,
        station: "out host bridge rules:",
        says: "ip daddr 192.0.2.1 drop",
    },
    Fault {
        name: "a rule in the pod drops",
        at: At::Pod,
        make: "nft 'table ip own { chain out { type filter hook output priority 0; drop; }; }'",
        undo: "nft delete table ip own",
        to: FAR,
        station: "out web output:",
        says: "refuses to send it",
    },
    Fault {
        name: "the host has a wrong permanent neighbour",
        at: At::Host,
        make: "ip neighbour replace 10.214.1.2 lladdr 02:00:00:00:00:99 dev br0 nud permanent",
        undo: "ip neighbour del 10.214.1.2 dev br0",
        to: FAR,
        station: "back host frame:",
        says: "its permanent neighbour entry is wrong",
    },
    Fault {
        name: "the gateway's address is missing",
        at: At::Host,
        make: "ip address del 10.214.1.1/24 dev br0",
        undo: "ip address add 10.214.1.1/24 dev br0",
        to: FAR,
        station: "out host bridge:",
        says: "10.214.1.1 belongs neither to the host nor to a pod",
    },
    Fault {
        name: "the pod has a wrong permanent neighbour for another pod",
        at: At::Pod,
        make: "ip neighbour replace 10.214.1.3 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
        undo: "ip neighbour del 10.214.1.3 dev eth0",
        to: OTHER,
        station: "out web frame:",
        says: "02:00:00:00:00:99, which is no address of eth0",
    },
    Fault {
        name: "no host on the uplink has the address",
        at: At::Host,
        make: "nsenter --net=ROUTER ip address del 10.7.0.1/24 dev lan0; ip neighbour flush dev up0",
        undo: "nsenter --net=ROUTER ip address add 10.7.0.1/24 dev lan0",
        to: "10.7.0.1",
        station: "out host neighbour:",
        says: "no host on up0 answers for 10.7.0.1",
    },
    Fault {
        name: "two isolated ports",
        at: At::Host,
        make: "bridge link set dev END isolated on; bridge link set dev PEER isolated on",
        undo: "bridge link set dev END isolated off; bridge link set dev PEER isolated off",
        to: OTHER,
        station: "out host port:",
        says: "are isolated",
    },
    Fault {
        name: "a tc filter redirects",
        at: At::Host,
        make: "ip link add lost0 type veth peer name lost1; ip link set lost0 up; tc qdisc add dev br0 ingress; \
               tc filter add dev br0 ingress protocol ip u32 match u32 0 0 action mirred egress redirect dev lost0",
        undo: "tc qdisc del dev br0 ingress; ip link del lost0",
        to: FAR,
        station: "out host lost:",
        says: "Look at tc",
    },
    Fault {
        name: "IPv6 forwarding is off",
        at: At::Host,
        make: "echo 0 >/proc/sys/net/ipv6/conf/all/forwarding",
        undo: "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; ip -6 route replace default via fd00:7::1",
        to: FAR6,
        station: "out host forwarding:",
        says: "net.ipv6.conf.all.forwarding is 0",
    },
    Fault {
        name: "a blackhole route of IPv6",
        at: At::Host,
        make: "ip -6 route add blackhole 2001:db8::/64",
        undo: "ip -6 route del blackhole 2001:db8::/64",
        to: FAR6,
        station: "out host route:",
        says: "blackhole 2001:db8::/64 in table main",
    },
    Fault {
        name: "a rule drops IPv6",
        at: At::Host,
        make: "nft 'table ip6 own { chain forward { type filter hook forward priority 0; oifname up0 drop; }; }'",
        undo: "nft delete table ip6 own",
        to: FAR6,
        station: "out host forward:",
        says: "ip6 own forward drops it",
    },
];

/// Whether one ping comes back within half a second. A slow machine fails the ping, and the trace would tell.
fn pings(pod: &Ns, to: &str) -> bool {
    pod.run(&format!("ping -n -c 1 -W 0.5 {to}")).status == 0
}

struct Bench {
    site: Site,
    pod: Ns,
    _other: Ns,
    ends: [String; 2],
    saved: String,
}

impl Bench {
    fn new(plugins: &'static Path) -> Self {
        let site = Site::with_plugins(plugins);
        site.network("net", "br0", 1, &json!({}));
        let (pod, other) = (site.add("net", "web"), site.add("net", "db"));
        let ends = [site.end(&pod), site.end(&other)];
        let saved = site.node.host.dir().join("ruleset").display().to_string();
        Bench { site, pod, _other: other, ends, saved }
    }

    fn run(&self, fault: &Fault, script: &str) {
        let script = script.replace("SAVE_RULES", SAVE_RULES).replace("RESTORE_RULES", RESTORE_RULES);
        let script =
            script.replace("END", &self.ends[0]).replace("PEER", &self.ends[1]).replace("SAVED", &self.saved);
        let script = script.replace("ROUTER", self.site.router.path());
        match fault.at {
            At::Host => self.site.node.host.shell(&script),
            At::Pod => self.pod.shell(&script),
            At::Router => self.site.router.shell(&script),
        };
    }

    fn assert_named(&self, fault: &Fault) {
        let name = fault.name;
        assert!(self.pod.pings(fault.to), "{name}: {} is not reached without the fault", fault.to);
        self.run(fault, fault.make);
        let fails = !pings(&self.pod, fault.to);
        let traced = self.site.trace(&["web", fault.to]);
        self.run(fault, fault.undo);
        assert!(fails, "{name}: the ping passes with the fault");
        assert_eq!(traced.status, 6, "{name}: {}", traced.describe());
        let stops = stations(&traced, "stops");
        let named = stops.len() == 1 && stops[0].starts_with(fault.station) && stops[0].contains(fault.says);
        assert!(named, "{name}: {stops:?}\n{}", traced.describe());
        assert_no_fault_of_its_own(&traced);
    }
}

/// A look that contradicts the probe is a fault of the program.
fn assert_no_fault_of_its_own(traced: &Outcome) {
    let contradictions: Vec<String> =
        stations(traced, "ok").into_iter().filter(|text| text.contains("a fault of this program")).collect();
    assert!(contradictions.is_empty(), "{contradictions:?}\n{}", traced.describe());
}

#[test]
fn fifteen_faults_are_named_at_their_stations() {
    need!("ip", "nft", "bridge", "ping", "nsenter", "iptables-nft-save", "iptables-nft-restore");
    let bench = Bench::new(plugin_dir());
    FAULTS.iter().for_each(|fault| bench.assert_named(fault));
}

#[test]
fn more_faults_are_named_at_their_stations() {
    need!("ip", "nft", "bridge", "ping", "nsenter");
    let bench = Bench::new(plugin_dir());
    MORE.iter().for_each(|fault| bench.assert_named(fault));
}

#[test]
fn faults_of_pods_of_the_go_plugins_are_named_at_their_stations() {
    need_recent_go!(
        go,
        "ip",
        "nft",
        "bridge",
        "ping",
        "nsenter",
        "iptables-nft-save",
        "iptables-nft-restore"
    );
    let bench = Bench::new(go);
    FAULTS.iter().chain(MORE).for_each(|fault| bench.assert_named(fault));
}

/// Without a probe nothing is sent. A rule with a condition is then unknown, and nothing is guessed.
#[test]
fn a_look_without_a_probe_guesses_nothing() {
    need!("ip", "nft", "bridge", "ping", "nsenter");
    let bench = Bench::new(plugin_dir());
    let look = |to: &str| bench.site.trace(&["web", to, "--no-probe"]);
    // Reports of IGMP are IP packets that the kernel sends by itself.
    let sent = || [&*bench.site.node.host, &bench.pod].map(|ns| ns.sh("grep -v ^Ip: /proc/net/snmp"));
    let before = sent();
    let far = look(FAR);
    assert_eq!(far.status, 8, "{}", far.describe());
    assert_eq!(stations(&far, "stops"), [] as [String; 0]);
    assert_eq!(stations(&far, "unknown").len(), 1, "only what is not on the node: {}", far.describe());
    let gateway = look(GATEWAY);
    assert_eq!(gateway.status, 0, "{}", gateway.describe());
    assert_eq!(sent(), before, "packets were sent");
    for fault in FAULTS {
        bench.run(fault, fault.make);
        let looked = look(fault.to);
        bench.run(fault, fault.undo);
        let stops = stations(&looked, "stops");
        let by_look = stops.len() == 1 && stops[0].starts_with(fault.station);
        // Conditions of rules, and a route outside, are not known without a probe.
        let needs_probe =
            ["forward:", "prerouting:", "masquerade:"].iter().any(|of| fault.station.ends_with(of));
        let expected =
            if needs_probe && stops.is_empty() { looked.status == 8 } else { looked.status == 6 && by_look };
        assert!(expected, "{}: {}", fault.name, looked.describe());
    }
}

/// No trace shows rules of legacy iptables. They are named where the packet was seen last.
#[test]
fn a_rule_of_legacy_iptables_is_named() {
    need!("ip", "nft", "ping", "iptables-legacy", "iptables-legacy-save");
    let bench = Bench::new(plugin_dir());
    let fault = Fault {
        name: "legacy iptables drops",
        at: At::Host,
        make: "iptables-legacy -A FORWARD -i br0 -d 192.0.2.0/24 -j DROP",
        undo: "iptables-legacy -D FORWARD -i br0 -d 192.0.2.0/24 -j DROP",
        to: FAR,
        station: "out host lost:",
        says: "iptables-legacy -t filter -A FORWARD -d 192.0.2.0/24 -i br0 -j DROP",
    };
    bench.assert_named(&fault);
}
