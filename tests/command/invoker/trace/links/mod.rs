//! Faults on other links than a bridge's, on a second network, and of TCP and UDP. Each is verified by a packet that
//! fails for the fault alone.

mod frames;
mod in_vm;
mod ways;

use std::path::Path;

use cnimble_tests::traffic::{self, Server};
use cnimble_tests::{Ns, need, need_recent_go, plugin_dir};
use serde_json::{Value, json};

use super::setups::{bridge, on_uplink, ranges, second_bridge, with};
use super::{FAR, FAR6, Site, stations};

/// Lines of shell that make the object file `DIR/programs.o` with two eBPF programs that drop everything: one for XDP,
/// which returns 1 (XDP_DROP), and one for tc, which returns 2 (TC_ACT_SHOT). Each is two instructions. The assembler
/// writes them for this machine, so its number in the header is replaced by that of BPF (EM_BPF, 247).
const PROGRAMS: &str = r"
    { for of in xdp:1 classifier:2; do
        name=${of%:*}
        printf '.section %s,\42ax\42\n.globl drop_%s\n.type drop_%s,STT_FUNC\ndrop_%s:\n' $name $name $name $name
        printf '.byte 0xb7,0,0,0,%s,0,0,0,0x95,0,0,0,0,0,0,0\n.size drop_%s,.-drop_%s\n' ${of#*:} $name $name
      done
      printf '.section license,\42a\42\n.asciz \42GPL\42\n'
    } | as -o DIR/programs.o -
    printf '\367\000' | dd of=DIR/programs.o bs=1 seek=18 conv=notrunc 2>/dev/null";

/// A fault in a network of these plugins.
struct Fault {
    name: &'static str,
    plugins: Value,
    /// The plugins of the network of the second interface of `web`. Null without one.
    second: Value,
    /// Lines of shell for the host, before the fault.
    before: &'static str,
    at: At,
    /// Lines of shell that make the fault. END is the host's end of `web`, and PEER that of `db`. WEB_NS, DB_NS and
    /// ROUTER_NS are the paths of namespaces, and DIR is a directory. PROGRAMS makes an object file there.
    make: &'static str,
    /// The sender, `web` or `third`, and the receiver as the trace and as a client write it.
    from: &'static str,
    to: &'static str,
    client: &'static str,
    /// The beginning of the only station that stops the packet, and a part of its text.
    station: &'static str,
    says: &'static str,
}

#[derive(Clone, Copy)]
enum At {
    Host,
    Web,
}

impl Fault {
    fn assert_named(&self, plugins: &'static Path) {
        let site = Site::with_plugins(plugins);
        let name = self.name;
        site.router.set_sysctl("ipv4/ip_forward", "1");
        site.router.shell(super::setups::ROUTES_BACK);
        site.chain("net", self.plugins.clone());
        site.network("other", "br9", 9, &json!({"ipMasq": false}));
        let (web, db, third) = (site.add("net", "web"), site.add("net", "db"), site.add("other", "third"));
        if !self.second.is_null() {
            site.chain("second", self.second.clone());
            site.add_second(&web);
        }
        let paths = [("WEB_NS", web.path()), ("DB_NS", db.path()), ("ROUTER_NS", site.router.path())];
        let dir = site.node.host.dir().display().to_string();
        let fill = |script: &str| {
            let script = script.replace("PROGRAMS", PROGRAMS).replace("DIR", &dir);
            paths.iter().fold(script, |script, (word, path)| script.replace(word, path))
        };
        site.node.host.shell(&fill(self.before));
        let _servers = [Server::start(&site.router, 8080, "far"), Server::start(&db, 8080, "db")];
        let sender = if self.from == "web" { &web } else { &third };
        assert!(self.is_wrong_from_the_start() || reaches(sender, self.client), "{name}: without the fault");
        let has_ends = self.make.contains("END") || self.make.contains("PEER");
        let ends = if has_ends { [&web, &db].map(|pod| site.end(pod)) } else { Default::default() };
        let make = self.make.replace("END", &ends[0]).replace("PEER", &ends[1]);
        let make = fill(&make);
        match self.at {
            At::Host => site.node.host.shell(&make),
            At::Web => web.shell(&make),
        };
        assert!(is_silent(sender, self.client), "{name}: it is reached in spite of the fault");
        let traced = site.trace(&[self.from, self.to]);
        assert_eq!(traced.status, 6, "{name}: {}", traced.describe());
        let stops = stations(&traced, "stops");
        let is_it = stops.len() == 1 && stops[0].starts_with(self.station) && stops[0].contains(self.says);
        assert!(is_it, "{name}: {stops:?}\n{}", traced.describe());
    }

    /// Returns whether the configuration is the fault, and no command makes it.
    fn is_wrong_from_the_start(&self) -> bool {
        self.make.is_empty()
    }
}

fn assert_named(plugins: &'static Path, faults: &[Fault]) {
    faults.iter().for_each(|fault| fault.assert_named(plugins));
}

/// Returns whether a client gets an answer from `HOST:PORT` or `HOST:PORT/udp`. It pings a `HOST`.
fn reaches(from: &Ns, client: &str) -> bool {
    match client.strip_suffix("/udp") {
        Some(to) => traffic::udp(from, to).is_some(),
        None if client.contains(":80") => traffic::tcp(from, client).is_ok(),
        None => from.pings(client),
    }
}

fn is_silent(from: &Ns, client: &str) -> bool {
    match client.strip_suffix("/udp") {
        Some(to) => traffic::udp_is_shut(from, to),
        None if client.contains(":80") => traffic::tcp_is_shut(from, client),
        None => from.misses(client),
    }
}

/// A fault on the way from `web` to a host outside, made on the host.
fn fault(
    name: &'static str,
    plugins: Value,
    make: &'static str,
    station: &'static str,
    says: &'static str,
) -> Fault {
    let (from, to, client) = ("web", FAR, FAR);
    let (second, before) = (Value::Null, "");
    Fault { name, plugins, second, before, at: At::Host, make, from, to, client, station, says }
}

fn ptp() -> Value {
    let routes = json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    json!([{"type": "ptp", "ipMasq": true, "ipam": with(ranges(1), routes)}])
}

fn faults_on_ptp() -> Vec<Fault> {
    vec![
        fault(
            "the host's end does not forward",
            ptp(),
            "echo 0 >/proc/sys/net/ipv4/conf/END/forwarding",
            "out host forwarding:",
            "forwarding is 0",
        ),
        fault("the host's end is down", ptp(), "ip link set END down", "out web link:", "has no carrier"),
        fault(
            "the host has no route to the pod",
            ptp(),
            "ip route del 10.214.1.2 dev END",
            "back host route:",
            "is the address of web, which is behind",
        ),
        fault(
            "a rule drops what the pod sends",
            ptp(),
            "nft 'table ip own { chain pre { type filter hook prerouting priority -300; iifname END drop; }; }'",
            "out host prerouting:",
            "drop",
        ),
        Fault {
            to: FAR6,
            client: FAR6,
            ..fault(
                "IPv6 is not forwarded",
                ptp(),
                "echo 0 >/proc/sys/net/ipv6/conf/all/forwarding",
                "out host forwarding:",
                "net.ipv6.conf.all.forwarding is 0",
            )
        },
        Fault {
            to: "db",
            client: "10.214.1.3",
            ..fault(
                "a route leads the other pod's packets into a blackhole",
                ptp(),
                "ip route replace blackhole 10.214.1.3",
                "out host route:",
                "blackhole 10.214.1.3/32",
            )
        },
    ]
}

#[test]
fn faults_on_ptp_are_named() {
    need!("ip", "nft", "ping");
    assert_named(plugin_dir(), &faults_on_ptp());
}

fn faults_on_macvlan() -> Vec<Fault> {
    let macvlan = |more: Value| json!([on_uplink("macvlan", more)]);
    vec![
        fault(
            "the master is down",
            macvlan(json!({})),
            "ip link set up0 down",
            "out web link:",
            "has no carrier",
        ),
        Fault {
            to: "db",
            client: "10.7.0.51",
            ..fault("private", macvlan(json!({"mode": "private"})), "", "out host master:", "mode private")
        },
        Fault {
            to: "10.7.0.51:8080",
            client: "10.7.0.51:8080",
            ..fault("vepa", macvlan(json!({"mode": "vepa"})), "", "out web neighbour:", "10.7.0.51")
        },
        Fault {
            from: "third",
            to: "web",
            client: "10.7.0.50",
            ..fault("the host's own master", macvlan(json!({})), "", "out host master:", "hostShim")
        },
    ]
}

#[test]
fn faults_on_macvlan_are_named() {
    need!("ip", "nft", "ping");
    assert_named(plugin_dir(), &faults_on_macvlan());
}

fn faults_of_sbr() -> Vec<Fault> {
    let sbr = |make, station, says| Fault {
        second: json!([second_bridge(), {"type": "sbr", "table": 100}]),
        from: "third",
        to: "10.214.2.2",
        client: "10.214.2.2",
        ..fault(make, json!([bridge(json!({}))]), make, station, says)
    };
    vec![
        Fault {
            at: At::Web,
            ..sbr(
                "ip route replace blackhole default table 100",
                "back web route:",
                "blackhole default in table 100",
            )
        },
        Fault {
            at: At::Web,
            ..sbr("ip rule add from 10.214.2.2 prohibit pref 10", "back web route:", "prohibit")
        },
        sbr(
            "ip link set br2 down",
            "out host route:",
            "behind br2, and the host's route leads to up0, and br2 is down",
        ),
    ]
}

#[test]
fn faults_of_sbr_are_named() {
    need!("ip", "nft", "ping");
    assert_named(plugin_dir(), &faults_of_sbr());
}

fn faults_of_tcp_and_udp() -> Vec<Fault> {
    let plugins = || json!([bridge(json!({}))]);
    let of = |to, make, station, says| Fault { to, client: to, ..fault(to, plugins(), make, station, says) };
    vec![
        of(
            "192.0.2.1:8080",
            "nft 'table inet own { chain forward { type filter hook forward priority 0; tcp dport 8080 drop; }; }'",
            "out host forward:",
            "tcp dport 8080 drop",
        ),
        of(
            "[2001:db8::1]:8080",
            "nft 'table inet own { chain forward { type filter hook forward priority 0; tcp sport 8080 drop; }; }'",
            "back host forward:",
            "tcp sport 8080 drop",
        ),
        of(
            "10.7.0.1:8080/udp",
            "nft 'table inet own { chain pre { type filter hook prerouting priority -200; udp dport 8080 drop; }; }'",
            "out host prerouting:",
            "udp dport 8080 drop",
        ),
        of(
            "[fd00:7::1]:8080/udp",
            "nft 'table ip6 own { chain post { type filter hook postrouting priority 0; udp dport 8080 drop; }; }'",
            "out host postrouting:",
            "udp dport 8080 drop",
        ),
        of(
            "10.214.1.3:8080",
            "nft 'table bridge own { chain f { type filter hook forward priority 0; tcp dport 8080 drop; }; }'",
            "out host bridge rules:",
            "drop",
        ),
    ]
}

#[test]
fn faults_of_tcp_and_udp_are_named() {
    need!("ip", "nft");
    assert_named(plugin_dir(), &faults_of_tcp_and_udp());
}

#[test]
fn faults_on_links_of_the_go_plugins_are_named() {
    need_recent_go!(go, "ip", "nft", "ping");
    for faults in [faults_on_ptp(), faults_on_macvlan(), faults_of_sbr(), faults_of_tcp_and_udp()] {
        assert_named(go, &faults);
    }
}
