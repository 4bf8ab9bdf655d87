#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::Ipv4Addr;

use cnimble_rules::listing::Effect;

use super::model::{HostLink, InterfaceState, Network, Pod, PodGroup, PodInterface, Port, Tree};
use super::{Notes, TextStyle, svg, text};

fn link(name: &str, kind: &str) -> HostLink {
    HostLink { name: name.into(), kind: kind.into(), mtu: 1500, up: true, ..HostLink::default() }
}

fn pod(number: u8) -> Pod {
    let address = Ipv4Addr::new(10, 1, 0, number + 1);
    Pod {
        container_id: format!("c{number}"),
        ifname: "eth0".into(),
        name: Some(format!("default/web-{number}")),
        netns: Some(format!("/run/netns/web-{number}")),
        link: Some(link(&format!("veth{number}"), "veth")),
        interface: Some(PodInterface { up: true, ..PodInterface::default() }),
        addresses: vec![format!("{address}/24")],
        routes: vec!["default via 10.1.0.1".into()],
        rules: vec![
            Effect::Masquerade { address: address.into(), network: "10.1.0.0/24".parse().unwrap() },
            Effect::PortMapping {
                protocol: "tcp".into(),
                host_address: None,
                host_port: 8080,
                address: address.into(),
                port: 80,
            },
        ],
        state: InterfaceState::Up,
        problem: None,
    }
}

fn tree(pods: u8) -> Tree {
    let mut bridge = link("cni0", "bridge");
    bridge.addresses = vec!["10.1.0.1/24".into()];
    let mut uplink = link("eth1", "");
    uplink.port = Some(Port { hairpin: false, isolated: true });
    let place = PodGroup {
        link: Some(bridge),
        policy: Some("same-bridge".into()),
        pods: (1..=pods).map(pod).collect(),
        others: vec![uplink],
    };
    let network = Network {
        name: "mynet".into(),
        cni_version: Some("1.0.0".into()),
        plugins: vec!["bridge".into(), "portmap".into()],
        places: vec![place],
    };
    Tree { networks: vec![network], ..Tree::default() }
}

#[test]
fn text_is_aligned() {
    let mut tree = tree(2);
    let pods = &mut tree.networks[0].places[0].pods;
    pods[1] =
        Pod { problem: Some("its namespace is not there".into()), rules: Vec::new(), ..pods[1].clone() };
    pods[1].routes.clear();
    let drawn = "\
mynet  CNI 1.0.0, bridge portmap, 2 pods
└─ cni0  bridge  10.1.0.1/24  ingress same-bridge
   ├─ veth1         ── eth0  default/web-1
   │     address  10.1.0.2/24
   │     route    default via 10.1.0.1
   │     rule     masquerade 10.1.0.2 outside 10.1.0.0/24
   │              port 8080/tcp to 10.1.0.2:80
   ├─ veth2         ── eth0  default/web-2
   │     address  10.1.0.3/24
   │     problem  its namespace is not there
   └─ eth1 isolated    no pod on a record that was read
";
    assert_eq!(text(&tree, TextStyle::default()), drawn);
    let ascii = text(&tree, TextStyle { ascii: true, escape: "" });
    assert!(ascii.is_ascii(), "{ascii}");
    assert!(ascii.contains("|- veth1         -- eth0  default/web-1\n"), "{ascii}");
    let coloured = text(&tree, TextStyle { ascii: false, escape: "\x1b" });
    assert!(coloured.contains("\x1b[1;31mits namespace is not there\x1b[0m"), "{coloured}");
}

#[test]
fn pods_hang_on_the_master_that_their_interfaces_are_made_on() {
    let mut tree = tree(2);
    let place = &mut tree.networks[0].places[0];
    place.link = Some(HostLink { addresses: vec!["10.1.0.1/24".into()], ..link("eth1", "") });
    (place.policy, place.others) = (None, Vec::new());
    for (pod, settings) in place.pods.iter_mut().zip(["macvlan mode bridge", "vlan id 7"]) {
        let interface = PodInterface { settings: Some(settings.into()), up: true, ..PodInterface::default() };
        (pod.link, pod.interface) = (None, Some(interface));
        pod.rules.clear();
    }
    let inner = place.pods[1].interface.as_mut().unwrap();
    (inner.on, inner.port_of) = (Some("net1".into()), Some("blue".into()));
    let drawn = "\
mynet  CNI 1.0.0, bridge portmap, 2 pods
└─ eth1  10.1.0.1/24
   ├─ macvlan mode bridge ── eth0  default/web-1
   │     address  10.1.0.2/24
   │     route    default via 10.1.0.1
   └─ vlan id 7           ── eth0  default/web-2
         pod      vlan id 7 on net1
                  port of blue
         address  10.1.0.3/24
         route    default via 10.1.0.1
";
    assert_eq!(text(&tree, TextStyle::default()), drawn);
    assert!(svg(&tree).contains(">macvlan mode bridge</text>"));
}

#[test]
fn an_interface_that_is_down_is_told() {
    let mut tree = tree(2);
    let pods = &mut tree.networks[0].places[0].pods;
    pods[0].interface.as_mut().unwrap().up = false;
    let drawn = text(&tree, TextStyle::default());
    assert!(drawn.contains("├─ veth1         ── eth0 down  default/web-1\n"), "{drawn}");
    assert!(drawn.contains("├─ veth2         ── eth0       default/web-2\n"), "{drawn}");
    assert!(svg(&tree).contains(">eth0 down</text>"));
}

#[test]
fn a_part_of_the_picture_is_kept() {
    let mut one = tree(3);
    one.strays.push("a rule".into());
    assert!(one.shows_faults());
    assert!(!one.clone().keep_network("other"), "nothing is changed");
    assert!(one.keep_network("mynet"));
    assert!(!one.shows_faults() && one.attachments() == 3);
    one.keep_pods(|pod| pod.container_id == "c2");
    let place = &one.networks[0].places[0];
    assert_eq!((place.pods.len(), place.others.len()), (1, 0));
    one.keep_pods(|_| false);
    assert!(one.networks.is_empty());
    let mut faulty = tree(1);
    faulty.networks[0].places[0].pods[0].problem = Some("it is lost".into());
    assert!(faulty.shows_faults());
}

#[test]
fn nothing_and_much_are_drawn() {
    assert_eq!(text(&Tree::default(), TextStyle::default()), "no usable networks\n");
    assert!(svg(&Tree::default()).contains(">no usable networks</text>"));
    let many = tree(200);
    assert_eq!(many.attachments(), 200);
    assert_eq!(text(&many, TextStyle::default()).lines().count(), 2 + 200 * 5 + 1);
    assert_eq!(svg(&many).matches("class=\"pod\"").count(), 200);
}

#[test]
fn svg_is_well_formed_whatever_the_names() {
    let mut tree = tree(1);
    tree.networks[0].places[0].pods[0].name = Some("<a>&\"\u{1}".into());
    tree.strays.push("x < y".into());
    let drawn = svg(&tree);
    assert!(drawn.contains("&lt;a&gt;&amp;&quot;?</text>"), "{drawn}");
    assert!(!drawn.contains("x < y"));
    // Every box ends on the sheet.
    let number = |line: &str, name: &str| -> Option<usize> {
        line.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok()
    };
    let (width, height) = (number(&drawn, "width").unwrap(), number(&drawn, "height").unwrap());
    for line in drawn.lines().filter(|line| line.starts_with("<rect")) {
        let (x, y) = (number(line, "x").unwrap_or(0), number(line, "y").unwrap_or(0));
        assert!(x + number(line, "width").unwrap() <= width, "{line}");
        assert!(y + number(line, "height").unwrap() <= height, "{line}");
    }
}

#[test]
fn notes_are_put_on_the_pod_whose_id_begins_so() {
    let mut notes = Notes::default();
    notes.names.insert("c1234".into(), "shop/a".into());
    notes.problems = vec![("c1234".into(), "it is lost".into()), ("d".into(), "nobody's".into())];
    let mut noted = Default::default();
    let mut cut = Pod { container_id: "c12".into(), problem: Some("no eth0".into()), ..Pod::default() };
    notes.write_notes(&mut cut, &mut noted);
    assert_eq!((cut.name.as_deref(), cut.problem.as_deref()), (Some("shop/a"), Some("no eth0; it is lost")));
    let mut other = Pod { container_id: "c9".into(), name: Some("b".into()), ..Pod::default() };
    notes.write_notes(&mut other, &mut noted);
    assert_eq!((other.name.as_deref(), other.problem), (Some("b"), None));
    let mut nameless = Pod::default();
    notes.write_notes(&mut nameless, &mut noted);
    assert_eq!(nameless, Pod::default());
    assert_eq!(noted, ["c1234"].into());
}

#[test]
fn json_names_the_kinds_of_rules() {
    let value = serde_json::to_value(tree(1)).unwrap();
    let pod = &value["networks"][0]["places"][0]["pods"][0];
    assert_eq!(pod["containerId"], "c1");
    assert_eq!(pod["rules"][1]["kind"], "port-mapping");
    assert_eq!(pod["rules"][1]["hostPort"], 8080);
}
