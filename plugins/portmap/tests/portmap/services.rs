//! kube-proxy in IPVS mode gives the addresses of Services to a link of the node. A bridge of its name stands in for the
//! link, and listeners for IPVS.

use serde_json::json;

use cnimble_tests::traffic::{Server, tcp, udp};
use cnimble_tests::{Attachment, need};

use super::Site;

const SERVICES: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

impl Site {
    fn serve(&self, link: &str, ip: &str) {
        self.host.run(&format!("ip link add {link} type bridge"));
        self.host.ip(&format!("link set {link} up"));
        if ip.contains(':') {
            self.host.ip(&format!("-6 addr add {ip}/128 dev {link} nodad"));
        } else {
            self.host.ip(&format!("addr add {ip}/32 dev {link}"));
        }
    }

    /// The program that answers on port 443, by TCP and UDP.
    #[track_caller]
    fn answers(&self, from: &cnimble_tests::Ns, ip: &str) -> String {
        let to = if ip.contains(':') { format!("[{ip}]:443") } else { format!("{ip}:443") };
        let first = |answer: String| answer.split(' ').next().unwrap().to_owned();
        let by_tcp = first(tcp(from, &to).unwrap_or_else(|err| panic!("{to}: {err}")));
        let by_udp = first(udp(from, &to).unwrap_or_else(|| panic!("{to}: no answer by UDP")));
        assert_eq!(by_tcp, by_udp, "{to}");
        by_tcp
    }

    fn route_services(&self) {
        self.world.ip("route add 10.96.0.0/12 via 192.0.2.1");
        self.world.ip("-6 route add fd00:96::/112 via 2001:db8::1");
    }

    #[track_caller]
    fn all_see(&self, ips: &[&str], program: &str) {
        for ip in ips {
            for from in [&*self.host, &self.pods[0], &self.pods[1], &self.world] {
                assert_eq!(self.answers(from, ip), program, "{ip}");
            }
        }
    }
}

fn https() -> serde_json::Value {
    json!([
        {"hostPort": 443, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 443, "containerPort": 80, "protocol": "udp"},
    ])
}

#[test]
fn no_published_port_takes_a_packet_for_a_service() {
    need!("ip", "nft");
    for link in ["kube-ipvs0", "kube-dummy-if"] {
        let site = Site::new();
        site.route_services();
        SERVICES.iter().for_each(|ip| site.serve(link, ip));
        let _service = Server::start(&site.host, 443, "service");
        let _inside = Server::start(&site.pods[0], 80, "pod0");
        let net = site.network(https());
        site.add(&net, 0);
        site.all_see(&SERVICES, "service");
        site.all_see(&["192.0.2.1", "2001:db8::1", "10.1.2.1"], "pod0");
        net.check(&site.attachment(0), &site.results[0]).success();
        // A port for one address doesn't get the packets either.
        let one = site.network(json!([
            {"hostPort": 444, "containerPort": 80, "protocol": "tcp", "hostIP": SERVICES[0]},
        ]));
        site.add(&one, 1);
        assert!(tcp(&site.world, "10.96.0.1:444").is_err());
        one.deleted(&site.attachment(1), None);
        net.deleted(&site.attachment(0), Some(&site.results[0]));
        assert_eq!(site.ruleset().matches("portmap").count(), 0, "{}", site.ruleset());
    }
}

#[test]
fn a_service_that_comes_later_is_safe_after_the_next_add() {
    need!("ip", "nft");
    let site = Site::new();
    site.route_services();
    let _service = Server::start(&site.host, 443, "service");
    let _inside = Server::start(&site.pods[0], 80, "pod0");
    let net = site.network(https());
    site.add(&net, 0);
    site.serve("kube-ipvs0", SERVICES[0]);
    // As docs/NFTABLES.md says.
    assert_eq!(site.answers(&site.world, SERVICES[0]), "pod0");
    let error = net.check(&site.attachment(0), &site.results[0]).error();
    assert_eq!(error.code, 103);
    assert!(format!("{error:?}").contains(SERVICES[0]), "{error:?}");

    let other = site.network(json!([{"hostPort": 9000, "containerPort": 80, "protocol": "tcp"}]));
    let third = Attachment::new("third", &site.pods[1]);
    let add = || other.call("ADD", &third, Some(&site.results[1])).run().success();
    add();
    site.all_see(&SERVICES[..1], "service");
    net.check(&site.attachment(0), &site.results[0]).success();
    // One more, and the first goes.
    site.serve("kube-ipvs0", SERVICES[1]);
    site.host.ip("addr del 10.96.0.1/32 dev kube-ipvs0");
    add();
    site.all_see(&SERVICES[1..], "service");
    assert!(!site.ruleset().contains("10.96.0.1"));
    // The node's own addresses stay the ports', also if a Service has them for its external address.
    site.serve("kube-ipvs0", "192.0.2.1");
    add();
    site.all_see(&["192.0.2.1"], "pod0");
    // The node takes an address over that was a Service's.
    site.host.ip("link del kube-ipvs0");
    site.host.ip("-6 addr add fd00:96::1/128 dev uplink nodad");
    add();
    site.all_see(&SERVICES[1..], "pod0");
    // A chain that was flushed is made whole, with the rule for Services.
    site.serve("kube-ipvs0", SERVICES[0]);
    for chain in ["portmap-prerouting", "portmap-output"] {
        site.host.nft(&format!("flush chain inet cnimble {chain}"));
    }
    add();
    site.all_see(&SERVICES[..1], "service");
    site.all_see(&["192.0.2.1"], "pod0");
    other.deleted(&third, None);
    site.all_see(&SERVICES[..1], "service");
}
