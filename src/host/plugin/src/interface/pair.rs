//! Creates a veth pair: one end on the host, the other in the pod's namespace.

use std::os::fd::AsFd;

use nix::errno::Errno;

use cnimble_cni::{Code, Error, Interface, Owner, hash16};
use cnimble_netlink::link::{self, Change, Link, Mac, NewVeth};
use cnimble_netlink::port::{self, Port};
use cnimble_netlink::{IfPresent, NetNs, Netlink, Request};

use super::pod;
use crate::Call;

/// The number of names for the host's end that are tried. One in four billion is taken by coincidence.
const NAMES: u32 = 8;

/// The wanted pair.
#[derive(Debug, Clone, Default)]
pub struct NewPair {
    /// The index of the host's end's master.
    pub master: Option<u32>,
    /// Whether the host's end is up from the beginning.
    pub up: bool,
    /// The MTU of both ends in bytes, or `None` for the kernel's default.
    pub mtu: Option<u32>,
    /// The hardware address of the pod's end, or `None` for a random one.
    pub mac: Option<Mac>,
    /// The hardware address of the host's end, or `None` for the kernel's choice.
    pub host_mac: Option<Mac>,
}

/// A new pair.
#[derive(Debug)]
pub struct Pair {
    /// The host's end.
    pub host: Link,
    /// The index of the pod's end in the pod's namespace.
    pub pod_index: u32,
    pub pod_name: String,
    pub pod_mac: Mac,
}

impl Pair {
    /// Returns the pod's end in the form of a result.
    pub fn described(&self, call: &Call) -> Interface {
        Interface::new(self.pod_name.as_str(), self.pod_mac.to_string(), call.netns.as_str())
    }

    /// Returns the request that writes the owner into the alias of the host's end. Execute it before any other change
    /// of the pair.
    pub fn claim(&self, owner: &Owner) -> Request {
        let alias = owner.comment();
        let change = Change { alias: Some(&alias), ..Change::default() };
        link::set(self.host.index, &self.host.name, &change)
    }

    /// Returns the request that claims a port of a bridge, which must be down. The port receives nothing itself: the
    /// bridge takes every frame, also those to reserved addresses ([`port::claim`]). So it needs no link-local address.
    /// That would cost a duplicate address detection, and a route that the kernel adds after those of all other ports.
    pub fn claim_port(&self, owner: &Owner, flags: Port) -> Request {
        let alias = owner.comment();
        // Without IPv6 (no module, or an MTU below 1280 bytes) the kernel does not report the setting.
        let addrgenmode_none = self.host.accept_ra.is_some();
        let change = Change { alias: Some(&alias), addrgenmode_none, ..Change::default() };
        port::claim(self.host.index, &self.host.name, flags, &change)
    }
}

/// Returns the names that the host's end may have: `veth` and eight hexadecimal digits of a hash of the attachment. So
/// DEL finds it without namespace or prevResult. The first one is used, unless another attachment has it.
pub fn host_names(owner: &Owner) -> impl Iterator<Item = String> {
    let tag = owner.tag();
    (0..NAMES).map(move |salt| {
        let hash = hash16(&if salt == 0 { tag.clone() } else { format!("{tag}-{salt}") });
        format!("veth{}", hash.get(..8).unwrap_or_default())
    })
}

/// Creates the pair, with its undo. The caller continues with [`Pair::claim`]. Fails with code 102 if the pod has an
/// interface of that name, or if the attachment exists already. It also fails so if all names of the host's end are
/// taken.
pub fn create(
    call: &Call,
    host: &mut Netlink,
    owner: &Owner,
    netns: &NetNs,
    new: &NewPair,
) -> Result<Pair, Error> {
    let pod_mac = new.mac.unwrap_or_else(Mac::random);
    let mut made = None;
    for name in host_names(owner) {
        let wanted = NewVeth {
            name: &name,
            mac: new.host_mac,
            master: new.master,
            up: new.up,
            mtu: new.mtu,
            peer_name: &call.ifname,
            peer_mac: Some(pod_mac),
            peer_ns: netns.as_fd(),
        };
        match host.create_link(link::add_veth(&wanted)) {
            Ok(link) => {
                made = Some(link);
                break;
            }
            Err(err) if err.is(Errno::EEXIST) => {
                // The name of either end may be the one that is taken.
                let Some(taken) = host.find_link(&name)? else { return Err(pod_name_taken(call)) };
                if owner.owns(&taken.alias) {
                    return Err(already_attached(call, &taken));
                }
            }
            Err(err) => return Err(err.into()),
        }
    }
    let Some(link) = made else {
        return Err(Error::new(Code::CONFLICT, "all names for the host's end of the veth pair are taken")
            .details(host_names(owner).collect::<Vec<_>>().join(", ")));
    };
    let (index, name) = (link.index, link.name.clone());
    call.undo.push(format!("remove veth {name}"), move || {
        Netlink::open()?.remove_link(index, &name).if_present()?;
        Ok(())
    });
    let pod_index = link.peer.ok_or_else(|| {
        Error::new(Code::KERNEL, format!("the kernel didn't say what the peer of {} is", link.name))
    })?;
    pod::ignore_routers(call, netns, &call.ifname, link.peer_netnsid)?;
    Ok(Pair { host: link, pod_index, pod_name: call.ifname.clone(), pod_mac })
}

/// Returns the error for an interface of the pod that has CNI_IFNAME already.
pub fn pod_name_taken(call: &Call) -> Error {
    Error::new(Code::CONFLICT, format!("container interface name \"{}\" is already taken", call.ifname))
        .details(format!("in {}", call.netns))
}

/// Returns the error for a second ADD of the attachment, whose host's end is `taken`.
fn already_attached(call: &Call, taken: &Link) -> Error {
    Error::new(
        Code::CONFLICT,
        format!("container {} already has {} in this network", call.container_id, call.ifname),
    )
    .details(format!("its veth on the host is {}; hint: call DEL first", taken.name))
}

/// Returns whether the port of a bridge is a pod's, also of the Go plugins. The name decides, because on a node in a
/// container an uplink may be a veth, too.
pub fn is_a_pods(port: &Link) -> bool {
    port.kind == "veth" && port.peer_netnsid.is_some() && port.name.starts_with("veth")
}
