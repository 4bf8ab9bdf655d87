use cnimble_cni::{Attachment, Owner};

use super::{other_netns, veth};
use crate::Netlink;
use crate::link::{Change, set};
use crate::testing::in_netns;

fn owner(network: &str, container_id: &str) -> Owner {
    let attachment = Attachment { container_id: container_id.to_owned(), ifname: "eth0".to_owned() };
    Owner { network: network.to_owned(), attachment }
}

#[test]
fn a_pair_of_the_same_indices_is_not_the_other_end() {
    in_netns("a_pair_of_the_same_indices_is_not_the_other_end", || {
        let [pod, hostile, nested] = [(); 3].map(|()| other_netns());
        let mut host = Netlink::open().unwrap();
        assert_eq!(host.number_of(&pod).unwrap(), None);
        let end = veth(&mut host, "veth1", "eth0", &pod);
        let eth0 = Netlink::open_in(&pod).unwrap().link("eth0").unwrap();
        assert_eq!(host.number_of(&pod).unwrap(), end.peer_netnsid);
        assert_eq!(host.other_end(&eth0, &pod).unwrap().map(|end| end.name), Some("veth1".to_owned()));

        // Fresh namespaces count alike, so this pair has the indices of the other.
        let copy = veth(&mut Netlink::open_in(&hostile).unwrap(), "eth0", "x", &nested);
        assert_eq!((copy.index, copy.peer), (eth0.index, Some(end.index)));
        assert_eq!(host.other_end(&copy, &hostile).unwrap(), None);
        // The namespace has a number as soon as a link leads there, and it is another one.
        veth(&mut host, "veth2", "eth1", &hostile);
        assert_ne!(host.number_of(&hostile).unwrap(), end.peer_netnsid);
        assert_eq!(host.other_end(&copy, &hostile).unwrap(), None);
        let known = ["br0", "veth1"];
        assert_eq!(host.host_end(&owner("n", "c"), &known, &copy, &hostile).unwrap(), None);
    });
}

#[test]
fn the_hosts_end_is_proven_by_its_alias_or_by_name_and_namespace() {
    in_netns("the_hosts_end_is_proven_by_its_alias_or_by_name_and_namespace", || {
        let (pod, elsewhere) = (other_netns(), other_netns());
        let mut host = Netlink::open().unwrap();
        let end = veth(&mut host, "veth1", "eth0", &pod);
        veth(&mut host, "veth2", "eth0", &elsewhere);
        let eth0 = Netlink::open_in(&pod).unwrap().link("eth0").unwrap();
        let (own, another) = (owner("n", "c"), owner("n", "d"));
        let mut found = |alias: &str, known: &[&str], netns| {
            let change = Change { alias: Some(alias), ..Change::default() };
            host.execute(set(end.index, "veth1", &change)).unwrap();
            let mut pod = eth0.clone();
            // The pod can write this one.
            pod.alias = own.comment();
            host.host_end(&own, known, &pod, netns).unwrap().map(|end| end.name)
        };
        let veth1 = Some("veth1".to_owned());
        let (listed, renamed): (&[&str], &[&str]) = (&["br0", "veth1"], &["br0", "veth9"]);
        for known in [listed, renamed, &[]] {
            assert_eq!(found(&own.comment(), known, &pod), veth1, "{known:?}");
            assert_eq!(found(&another.comment(), known, &pod), None, "{known:?}");
        }
        // A pod of the Go plugins, of another program, and of a plugin that delegates.
        for alias in ["", "the administrator's", &owner("delegate", "c").comment()] {
            assert_eq!(found(alias, listed, &pod), veth1, "{alias}");
            assert_eq!(found(alias, listed, &elsewhere), None, "{alias}");
            assert_eq!(found(alias, renamed, &pod), None, "{alias}");
            assert_eq!(found(alias, &["veth2"], &pod), None, "{alias}");
        }
    });
}
