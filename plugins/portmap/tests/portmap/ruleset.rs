use cnimble_cni::{Attachment as Id, Owner};
use cnimble_netlink::nft::Nft;
use cnimble_rules::portmap::{self, Backend, Mapping, Protocol};
use cnimble_tests::{Ns, need};

use super::forward;

/// The pod of docs/NFTABLES.md.
#[test]
fn the_documented_ruleset_is_real() {
    need!("nft");
    let ns = Ns::new();
    let mapping = |protocol, host_ip: Option<&str>, host_port, container_port| Mapping {
        protocol,
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        host_port,
        container_port,
    };
    let mut shop = forward(&[], &["10.1.0.4/16"]);
    shop.mappings =
        vec![mapping(Protocol::Tcp, None, 8080, 80), mapping(Protocol::Udp, Some("192.0.2.1"), 53, 5353)];
    let owner = Owner {
        network: "cluster".into(),
        attachment: Id { container_id: "shop-1".into(), ifname: "eth0".into() },
    };
    ns.within(|| portmap::add(Backend::Nftables, &mut Nft::new(), &owner, &shop, &|_| false).unwrap());
    let real = ns.nft("list ruleset");
    let page = include_str!("../../../../docs/NFTABLES.md");
    let section = page.split("## Port mappings").nth(1).unwrap();
    let shown = section.split("```nft\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(shown, real, "docs/NFTABLES.md shows\n{shown}\nbut it is\n{real}");
    // nft loads its output unchanged.
    let other = Ns::new();
    other.run_with("nft -f -", real.as_bytes()).success();
    assert_eq!(other.nft("list ruleset"), real);
}
