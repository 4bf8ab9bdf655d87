//! A LAN that lies. Any host on it may answer by DHCP, with any address and prefix: of the host itself, the router, an
//! API server behind the router, a name server, another pod. The host must reach all of them as before.

use cnimble_tests::{Ns, Snapshot, with_kind};

use server::DISCOVER;

use super::*;

const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const HONEST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const OTHER_POD: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 60);
const API_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);

/// The code of an ADD without an answer.
const NO_LEASE: u64 = 11;

/// A host with the interface `up0`, which has its address, and `up1` for the pods of a bridge. Both lead to the LAN.
struct Site {
    host: Host,
    lan: Ns,
    server: Server,
    other: Pod,
}

impl Site {
    fn new() -> Self {
        let (host, lan) = (Host::hasty(), Ns::new());
        lan.ip("link add lan type bridge");
        for (here, there) in [("up0", "to0"), ("up1", "to1")] {
            host.cable(here, &lan, there);
            lan.ip(&format!("link set {there} master lan"));
        }
        lan.ip("link set lan up");
        lan.ip(&format!("address add {ROUTER}/24 dev lan"));
        lan.ip(&format!("address add {NAME_SERVER}/24 dev lan"));
        lan.ip(&format!("address add {API_SERVER}/32 dev lo"));
        // It is behind the router, and hears no ARP of the LAN.
        lan.set_sysctl("ipv4/conf/lan/arp_ignore", "1");
        host.ip(&format!("address add {HOST}/24 dev up0"));
        host.ip(&format!("route add default via {ROUTER} dev up0 metric 100"));
        let server = Server::start(&lan, ROUTER, Manner::new(HONEST, 3600));
        Site { host, lan, server, other: Pod::new() }
    }

    fn network(&self, more: &Value) -> Network<'_> {
        let ipam = json!({"type": "dhcp", "daemonSocketPath": socket(&self.host), "timeout": 2});
        let mut config = json!({"cniVersion": "1.1.0", "name": "lan", "ipam": ipam});
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        Network::new(&self.host, config)
    }

    /// A pod that is there already, with an address of its own.
    fn with_other_pod(self) -> Self {
        let network = self
            .shimmed()
            .with("/ipam", json!({"type": "static", "addresses": [{"address": "192.0.2.60/24"}]}));
        network.with("/name", json!("before")).added(&Attachment::new("other", &self.other));
        self
    }

    fn shimmed(&self) -> Network<'_> {
        self.network(&json!({"type": "macvlan", "master": "up0", "hostShim": true}))
    }

    /// The ways to all that the host reaches, and all its routes and rules.
    fn ways(&self) -> Vec<String> {
        let to = [HOST, ROUTER, NAME_SERVER, OTHER_POD, API_SERVER];
        let mut ways: Vec<String> = to.iter().map(|to| self.host.ip(&format!("route get {to}"))).collect();
        ways.push(self.host.ip("route show table all"));
        ways.push(self.host.ip("-6 route show table all proto boot"));
        ways.push(self.host.ip("rule show"));
        ways
    }

    fn reaches_all(&self) -> bool {
        [ROUTER, NAME_SERVER, API_SERVER, OTHER_POD].iter().all(|ip| self.host.pings(&ip.to_string()))
    }
}

/// An address that a server gives, its prefix, and the router that it names.
#[derive(Debug, Clone, Copy)]
struct Lie(Ipv4Addr, u8, Ipv4Addr);

/// All prefixes of all addresses for `scripts/stress lan`, else some. The pod of a bridge that is the gateway also gets
/// other routers.
fn lies(is_gateway: bool) -> Vec<Lie> {
    let is_whole = std::env::var_os("CNIMBLE_LAN_ALL").is_some();
    let prefixes = |few: &[u8]| if is_whole { (1..=32).collect() } else { few.to_vec() };
    let mut lies = Vec::new();
    for prefix in prefixes(&[1, 24, 32]) {
        lies.push(Lie(API_SERVER, prefix, ROUTER));
        if is_gateway {
            lies.extend([Lie(API_SERVER, prefix, API_SERVER), Lie(API_SERVER, prefix, HOST)]);
        }
    }
    if is_whole || !is_gateway {
        // dhcp takes no lease without a mask.
        lies.push(Lie(API_SERVER, 0, ROUTER));
        for address in [HOST, ROUTER, NAME_SERVER, OTHER_POD] {
            lies.extend(prefixes(&[24]).into_iter().map(|prefix| Lie(address, prefix, ROUTER)));
        }
    }
    lies
}

/// Adds and deletes a pod for each lie. Afterwards, and meanwhile, the host has the routes of before.
fn assert_nothing_moves(site: &Site, network: &Network<'_>) {
    assert!(site.reaches_all());
    let (before, links) = (site.ways(), site.host.links());
    for lie in lies(network.config["isGateway"] == true) {
        let Lie(address, prefix, router) = lie;
        site.server.now(|manner| {
            (manner.first, manner.prefix) = (address, prefix);
            manner.more = vec![(3, router.octets().to_vec())];
        });
        // A host that has the address answers by ARP, and the lease is declined.
        let is_taken = prefix == 0 || address != API_SERVER;
        let network = network.with("/ipam/timeout", json!(if is_taken { 2 } else { 60 }));
        let pod = Pod::new();
        let attachment = Attachment::new("liar", &pod);
        let outcome = network.add(&attachment);
        assert_eq!(site.ways()[..5], before[..5], "{lie:?}: {}", outcome.describe());
        if outcome.status != 0 {
            assert_eq!((site.ways(), pod.links()), (before.clone(), vec!["lo".to_owned()]), "{lie:?}");
            let code = outcome.error().code;
            // A shim also needs an address of the master in the network (100).
            assert!(
                [100, 102].contains(&code) || is_taken && code == NO_LEASE,
                "{lie:?}: {}",
                outcome.describe()
            );
        }
        network.deleted(&attachment, None);
    }
    assert_eq!((site.ways(), site.host.links()), (before, links));
    assert!(site.reaches_all());
}

#[test]
fn a_lan_that_lies_to_a_pod_with_a_shim_takes_no_route_from_the_host() {
    with_kind!("macvlan");
    let site = Site::new().with_other_pod();
    let network = site.shimmed();
    assert_nothing_moves(&site, &network);
    // The LAN is believed where it tells the truth.
    site.server.now(|manner| (manner.first, manner.prefix, manner.more) = (HONEST, 24, Vec::new()));
    let before = Snapshot::settled(&site.host).without("leases");
    let pod = Pod::new();
    let attachment = Attachment::new("honest", &pod);
    let result = network.added(&attachment);
    assert_eq!(address(&result), "192.0.2.51/24");
    assert!(site.host.pings("192.0.2.51") && site.reaches_all());
    network.deleted(&attachment, Some(&result));
    before.assert_same(&Snapshot::settled(&site.host).without("leases"), "after DEL");
    drop(site.lan);
}

#[test]
fn a_lan_that_lies_to_a_pod_behind_an_uplink_takes_no_route_from_the_host() {
    with_kind!("macvlan");
    let site = Site::new().with_other_pod();
    for gateway in [false, true] {
        let bridge = json!({"type": "bridge", "bridge": "pods", "uplink": "up1", "isGateway": gateway,
            "removeUnusedBridge": true});
        assert_nothing_moves(&site, &site.network(&bridge));
    }
}

/// The end on the host is down until the pod has its address, so no host can answer by DHCP.
#[test]
fn no_lan_chooses_the_address_of_a_pod_with_a_pair_of_its_own() {
    let site = Site::new();
    let before = site.ways();
    let server = Server::start(&site.host, HOST, Manner::new(API_SERVER, 3600));
    let network = site.network(&json!({"type": "ptp"}));
    let pod = Pod::new();
    let err = network.add(&Attachment::new("one", &pod)).error();
    assert_eq!(err.code, NO_LEASE, "{err:?}");
    assert!(server.said(DISCOVER).is_empty() && site.ways() == before);
}
