//! The master, which is the link that a pod's interface is made on (macvlan, ipvlan, vlan).

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::kind::Kind;
use cnimble_netlink::link::Link;
use cnimble_netlink::{NetNs, Netlink};

use super::check;

/// The master in a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MasterSelector {
    /// The name of the link. `None` stands for the link of the default route.
    pub name: Option<String>,
    /// Whether the master is in the pod (`linkInContainer`).
    pub in_pod: bool,
}

/// The master that was found.
#[derive(Debug)]
pub struct Master {
    pub link: Link,
    /// A socket in the master's namespace.
    pub(super) netlink: Netlink,
    pub(super) in_pod: bool,
}

impl MasterSelector {
    /// Reads the key `master`, which may be empty. Fails with code 7 if no interface can have the name.
    pub fn read(name: &str) -> Result<Self, Error> {
        Ok(MasterSelector { name: super::named("master", name)?, in_pod: false })
    }

    fn place(&self) -> &'static str {
        if self.in_pod { "in the pod" } else { "on the host" }
    }

    /// Finds the master, on the host or in the pod's namespace `netns`. Fails with code 100 and the name if there is
    /// none.
    pub fn find(&self, netns: &NetNs) -> Result<Master, Error> {
        let mut netlink = if self.in_pod { Netlink::open_in(netns)? } else { Netlink::open()? };
        let link = self.find_link(&mut netlink)?;
        Ok(Master { link, netlink, in_pod: self.in_pod })
    }

    /// Does what [`find`](Self::find) does, with a socket in the master's namespace.
    pub(super) fn find_link(&self, netlink: &mut Netlink) -> Result<Link, Error> {
        let place = self.place();
        match &self.name {
            Some(name) => netlink.find_link(name)?.ok_or_else(|| {
                Error::new(Code::KERNEL, format!("master \"{name}\" is missing {place}"))
                    .details("the configuration's key master names it")
            }),
            None => match netlink.default_link()? {
                Some(index) => Ok(netlink.link_at(index)?),
                None => Err(Error::new(Code::KERNEL, format!("no default route interface {place}")).details(
                    "without the key master, the master is the link of the default route; hint: set it",
                )),
            },
        }
    }

    /// STATUS of the master. Fails with code 51 if it does not exist, or is down and an interface of this `kind` needs
    /// it up. Then existing pods have no connection, either. Fails with code 50 if `mtu` is larger than the master's. A
    /// master in a pod is not checked.
    pub fn status(&self, kind: Kind, mtu: Option<u32>) -> Result<(), Error> {
        if self.in_pod {
            return Ok(());
        }
        let mut host = super::usable_netlink()?;
        let link = self.find_link(&mut host).map_err(|err| err.with_code(Code::LIMITED_CONNECTIVITY))?;
        // The kernel refuses to bring up a vlan on a master that is down, and no other kind.
        if !link.up && matches!(kind, Kind::Vlan(_)) {
            return Err(Error::new(Code::LIMITED_CONNECTIVITY, format!("master \"{}\" is down", link.name)));
        }
        within(&link, mtu).map_err(|err| err.with_code(Code::NOT_AVAILABLE))
    }

    /// CHECK: the pod's interface `link` was made on this master. A macvlan on a macvlan has the master of the lower
    /// one, and so has an ipvlan.
    pub fn check(&self, inside: &mut Netlink, link: &Link) -> Result<(), Error> {
        let mut host;
        let netlink = if self.in_pod {
            &mut *inside
        } else {
            host = Netlink::open()?;
            &mut host
        };
        let known = match &self.name {
            Some(name) => {
                let master = check::find_link(netlink, name, self.place())?;
                link.peer == Some(master.index) || (link.kind == master.kind && link.peer == master.peer)
            }
            // The default route may have moved to another link since.
            None => match link.peer.map(|index| netlink.link_at(index)) {
                Some(Ok(_)) => true,
                Some(Err(err)) if !err.is_missing() => return Err(err.into()),
                _ => false,
            },
        };
        // A pod can make an interface on a link of a third namespace. The kernel reports a master in the same namespace
        // without a namespace's number.
        let is_there = match (link.peer_netnsid, self.in_pod) {
            (peer_netnsid, true) => peer_netnsid.is_none(),
            (None, false) => false,
            (peer_netnsid, false) => inside.number_of(&NetNs::current()?)? == peer_netnsid,
        };
        if known && is_there {
            return Ok(());
        }
        let name = self.name.as_deref().unwrap_or("any link");
        Err(Error::check(format!("interface {} isn't made on {name} {}", link.name, self.place())))
    }
}

impl Master {
    /// Fails with code 7 if the MTU is larger than the master's, because frames would be lost.
    pub fn allows(&self, mtu: Option<u32>) -> Result<(), Error> {
        within(&self.link, mtu)
    }
}

/// Fails with code 7 if the MTU is larger than the master's.
fn within(master: &Link, mtu: Option<u32>) -> Result<(), Error> {
    match mtu {
        Some(mtu) if mtu > master.mtu => {
            Err(Error::config(format!("mtu: invalid MTU {mtu}, must be [0, master MTU({})]", master.mtu))
                .details(format!("the master is {}", master.name)))
        }
        _ => Ok(()),
    }
}

/// Adds the state of the master to the kernel's reason why it has refused an interface on it. EEXIST gets code 102.
pub(super) fn explained(master: &Link, kind: Kind, err: cnimble_netlink::Error) -> Error {
    let state = if master.up { "up" } else { "down" };
    let about = match master.master {
        Some(_) => format!("its master {} is {state}, and a port of another link", master.name),
        None => format!("its master {} is {state}", master.name),
    };
    let (taken, busy) = (err.is(Errno::EEXIST), err.is(Errno::EBUSY));
    let mut err = Error::from(err).details(format!("{kind}; {about}"));
    // The other interfaces are in the namespaces of pods, where nothing names them from here.
    if busy {
        err = err.details(
            "a link carries either macvlans or ipvlans, or is a port of a bridge or bond; hint: use another master, \
             or the kind that it carries already",
        );
    }
    if taken { err.with_code(Code::CONFLICT) } else { err }
}
