//! The veth pair: one end a port of the bridge, the other born in the pod's namespace.

use std::os::fd::AsFd;

use nix::errno::Errno;

use cnimble::net::link::{self, Change, Link, Mac, NewVeth};
use cnimble::net::port::{self, Port};
use cnimble::net::{NetNs, Netlink};
use cnimble::plugin::Call;
use cnimble::rules::Owner;
use cnimble::spec::{Code, Error};

use crate::bridge;
use crate::config::Config;
use crate::vlan;

/// How many names are tried for the host's end. One in four billion is taken by chance.
const NAMES: u32 = 8;

/// A pair that was made.
pub(crate) struct Pair {
    /// The host's end.
    pub(crate) host: Link,
    /// Index of the pod's end, in the pod.
    pub(crate) pod_index: u32,
    /// Its name there.
    pub(crate) pod_name: String,
    /// Its hardware address.
    pub(crate) pod_mac: Mac,
}

/// The names that the host's end may have: `veth` and eight hex digits of a hash of the
/// attachment, so that DEL finds it without namespace or prevResult. All but the first are
/// for the case that another attachment has the same hash.
pub(crate) fn host_names(owner: &Owner) -> impl Iterator<Item = String> {
    let tag = owner.tag();
    (0..NAMES).map(move |salt| {
        let hash = cnimble::rules::hash16(&if salt == 0 { tag.clone() } else { format!("{tag}-{salt}") });
        format!("veth{}", hash.get(..8).unwrap_or_default())
    })
}

/// Makes the pair and everything that belongs to the port: master, flags, vlans, and the
/// alias that says whose it is.
pub(crate) fn create(
    call: &Call,
    host: &mut Netlink,
    config: &Config,
    bridge: &Link,
    owner: &Owner,
    netns: &NetNs,
    mac: Option<Mac>,
) -> Result<Pair, Error> {
    let pod_mac = mac.unwrap_or_else(Mac::random);
    let mut free_name = None;
    for name in host_names(owner) {
        let wanted = NewVeth {
            name: &name,
            mac: None,
            master: Some(bridge.index),
            up: true,
            mtu: config.mtu,
            peer_name: &call.ifname,
            peer_mac: Some(pod_mac),
            peer_ns: netns.as_fd(),
        };
        match host.create_link(link::add_veth(&wanted)) {
            Ok(link) => {
                free_name = Some(link);
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
    let Some(link) = free_name else {
        return Err(Error::new(Code::CONFLICT, "all names for the host's end of the veth pair are taken")
            .details(host_names(owner).collect::<Vec<_>>().join(", ")));
    };
    let (index, name) = (link.index, link.name.clone());
    call.undo.push(format!("remove veth {name}"), move || {
        match Netlink::open()?.execute(link::del(index, &name)) {
            Err(err) if !err.is_missing() => Err(err.into()),
            _ => Ok(()),
        }
    });

    let alias = owner.comment();
    let mut requests =
        vec![link::set(link.index, &link.name, &Change { alias: Some(&alias), ..Change::default() })];
    // A new port has neither flag; saying so again costs a message.
    if config.hairpin || config.isolated {
        let flags = Port { hairpin: config.hairpin, isolated: config.isolated };
        requests.push(port::set(link.index, &link.name, flags));
    }
    host.execute_all(requests)?;
    bridge::ignore_router_advertisements(call, &link.name)?;
    vlan::configure_port(host, config, bridge, &link)?;

    let pod_index = link.peer.ok_or_else(|| {
        Error::new(Code::KERNEL, format!("the kernel didn't say what the peer of {} is", link.name))
    })?;
    Ok(Pair { host: link, pod_index, pod_name: call.ifname.clone(), pod_mac })
}

fn pod_name_taken(call: &Call) -> Error {
    Error::new(Code::CONFLICT, format!("container interface name \"{}\" is already taken", call.ifname))
        .details(format!("in {}", call.netns))
}

fn already_attached(call: &Call, taken: &Link) -> Error {
    Error::new(
        Code::CONFLICT,
        format!("container {} already has {} in this network", call.container_id, call.ifname),
    )
    .details(format!("its veth on the host is {}; call DEL first", taken.name))
}
