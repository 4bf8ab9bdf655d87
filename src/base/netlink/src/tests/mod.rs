//! Against the real kernel, each test in a network namespace of its own.

mod addr;
mod dad;
mod details;
mod disturbance;
mod fdb;
mod filters;
mod host_end;
mod kind;
mod link;
mod malformed;
mod monitor;
mod neigh;
mod netns;
mod next_hop;
mod nft;
mod port;
mod request;
mod route;
mod rule;
mod sysfs;
mod trace;
mod wait;

use super::link::{Link, Mac, NewBridge, NewVeth, add_bridge, add_veth};
use super::{NetNs, Netlink};

/// A bridge that is down.
fn bridge(netlink: &mut Netlink, name: &str) -> Link {
    let bridge = NewBridge { name, mtu: None, mac: Mac::random(), vlan_filtering: false, group: None };
    netlink.create_link(add_bridge(&bridge)).unwrap()
}

/// A veth pair: this end down, the other one, `peer`, in `ns`.
fn veth(netlink: &mut Netlink, name: &str, peer: &str, ns: &NetNs) -> Link {
    netlink.create_link(add_veth(&plain_veth(name, peer, ns))).unwrap()
}

fn plain_veth<'a>(name: &'a str, peer_name: &'a str, ns: &'a NetNs) -> NewVeth<'a> {
    use std::os::fd::AsFd;
    NewVeth {
        name,
        mac: None,
        master: None,
        up: false,
        mtu: None,
        peer_name,
        peer_mac: None,
        peer_ns: ns.as_fd(),
    }
}

/// A second, empty namespace.
fn other_netns() -> NetNs {
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        NetNs::current().unwrap()
    })
    .join()
    .unwrap()
}
