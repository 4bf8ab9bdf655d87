//! The veth pair is made: one end on the host, the other born in the pod's namespace.

use std::os::fd::AsFd;

use nix::errno::Errno;

use cnimble_cni::{Code, Error, Interface, Owner, hash16};
use cnimble_netlink::link::{self, Change, Link, Mac, NewVeth};
use cnimble_netlink::port::{self, Port};
use cnimble_netlink::{NetNs, Netlink, Request};

use crate::Call;

/// How many names are tried for the host's end. One in four billion is taken by chance.
const NAMES: u32 = 8;

/// A pair to make.
#[derive(Debug, Clone, Default)]
pub struct NewPair {
    /// The bridge that the host's end becomes a port of.
    pub master: Option<u32>,
    /// Whether the host's end comes up at once.
    pub up: bool,
    /// Bytes, of both ends; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Hardware address of the pod's end; `None` is a random one.
    pub mac: Option<Mac>,
    /// Hardware address of the host's end; `None` is the kernel's choice.
    pub host_mac: Option<Mac>,
}

/// A pair that was made.
#[derive(Debug)]
pub struct Pair {
    /// The host's end.
    pub host: Link,
    /// Index of the pod's end, in the pod.
    pub pod_index: u32,
    /// Its name there.
    pub pod_name: String,
    /// Its hardware address.
    pub pod_mac: Mac,
}

impl Pair {
    /// The pod's end as it stands in a result.
    pub fn described(&self, call: &Call) -> Interface {
        Interface {
            name: self.pod_name.clone(),
            mac: self.pod_mac.to_string(),
            sandbox: call.netns.clone(),
            ..Interface::default()
        }
    }

    /// Writes the owner into the alias of the host's end. To be sent before any other change of
    /// the pair.
    pub fn claim(&self, owner: &Owner) -> Request {
        let alias = owner.comment();
        let change = Change { alias: Some(&alias), ..Change::default() };
        link::set(self.host.index, &self.host.name, &change)
    }

    /// The same for a port of a bridge, while it is down, with its flags. The port hears
    /// nothing itself: the bridge takes every frame that comes in by it, also those to reserved
    /// addresses ([`port::claim`]). So an address of its own is good for nothing, not even a
    /// link-local one: that would cost a duplicate address detection, and a route that the
    /// kernel puts behind those of all other ports.
    pub fn claim_port(&self, owner: &Owner, flags: Port) -> Request {
        let alias = owner.comment();
        // Without IPv6 (no module, an MTU below 1280 bytes) the kernel tells nothing of it.
        let addrgenmode_none = self.host.accept_ra.is_some();
        let change = Change { alias: Some(&alias), addrgenmode_none, ..Change::default() };
        port::claim(self.host.index, &self.host.name, flags, &change)
    }
}

/// The names that the host's end may have: `veth` and eight hex digits of a hash of the
/// attachment, so that DEL finds it without namespace or prevResult. All but the first are
/// for the case that another attachment has the same hash.
pub fn host_names(owner: &Owner) -> impl Iterator<Item = String> {
    let tag = owner.tag();
    (0..NAMES).map(move |salt| {
        let hash = hash16(&if salt == 0 { tag.clone() } else { format!("{tag}-{salt}") });
        format!("veth{}", hash.get(..8).unwrap_or_default())
    })
}

/// Makes the pair, with its undo. The caller goes on with [`Pair::claim`].
///
/// # Errors
/// Code 102 if the pod has an interface of that name, or the attachment is there already;
/// the kernel's.
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
                // Either end may be the one whose name is taken.
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
    call.undo.push(format!("remove veth {name}"), move || match Netlink::open()?.remove_link(index, &name) {
        Err(err) if !err.is_missing() => Err(err.into()),
        _ => Ok(()),
    });
    let pod_index = link.peer.ok_or_else(|| {
        Error::new(Code::KERNEL, format!("the kernel didn't say what the peer of {} is", link.name))
    })?;
    Ok(Pair { host: link, pod_index, pod_name: call.ifname.clone(), pod_mac })
}

/// The error for an interface of the pod that has CNI_IFNAME already.
pub fn pod_name_taken(call: &Call) -> Error {
    Error::new(Code::CONFLICT, format!("container interface name \"{}\" is already taken", call.ifname))
        .details(format!("in {}", call.netns))
}

fn already_attached(call: &Call, taken: &Link) -> Error {
    Error::new(
        Code::CONFLICT,
        format!("container {} already has {} in this network", call.container_id, call.ifname),
    )
    .details(format!("its veth on the host is {}; hint: call DEL first", taken.name))
}
