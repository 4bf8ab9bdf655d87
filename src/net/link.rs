//! Links: `ip link`.

use std::fmt;
use std::os::fd::BorrowedFd;

use super::{Netlink, Request, Result};

/// A hardware address of six bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads `aa:bb:cc:dd:ee:ff`, also with `-`, in any case.
    pub fn parse(_text: &str) -> Option<Mac> {
        todo!()
    }
    /// A random, locally administered unicast address (getrandom(2)).
    pub fn random() -> Mac {
        todo!()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

/// A link as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// `ifi_index`.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Kind: `bridge`, `veth`, …; empty for hardware and lo.
    pub kind: String,
    /// Hardware address, if it has one of six bytes.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// IFF_UP.
    pub up: bool,
    /// IFF_PROMISC was asked for (IFLA_PROMISCUITY > 0).
    pub promisc: bool,
    /// `IFLA_OPERSTATE` is up.
    pub oper_up: bool,
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// `IFLA_LINK`: for a veth, the index of its other end, there.
    pub peer: Option<u32>,
    /// `ip link … alias`.
    pub alias: String,
    /// Bridge port flags, for a port of a bridge.
    pub port: Option<super::port::Port>,
    /// `vlan_filtering`, for a bridge.
    pub vlan_filtering: bool,
}

/// A bridge to make.
#[derive(Debug, Clone)]
pub struct NewBridge<'a> {
    /// Name.
    pub name: &'a str,
    /// MTU in bytes; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Set at creation, so that it never follows the ports.
    pub mac: Mac,
    /// `vlan_filtering 1`.
    pub vlan_filtering: bool,
}

/// A veth pair to make: one end here, the other born in another namespace.
#[derive(Debug, Clone)]
pub struct NewVeth<'a> {
    /// Name of the end in this namespace.
    pub name: &'a str,
    /// Its hardware address; `None` is the kernel's choice.
    pub mac: Option<Mac>,
    /// Its master.
    pub master: Option<u32>,
    /// Whether this end comes up at once.
    pub up: bool,
    /// MTU of both ends; `None` is the kernel's.
    pub mtu: Option<u32>,
    /// Name of the other end.
    pub peer_name: &'a str,
    /// Its hardware address; `None` is the kernel's choice.
    pub peer_mac: Option<Mac>,
    /// The namespace that the other end is born in.
    pub peer_ns: BorrowedFd<'a>,
}

/// What to change of a link; `None` leaves it.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // named as in `ip link set`
pub struct Change<'a> {
    pub up: Option<bool>,
    pub mtu: Option<u32>,
    pub mac: Option<Mac>,
    pub name: Option<&'a str>,
    pub alias: Option<&'a str>,
    /// `Some(0)` takes it off its master.
    pub master: Option<u32>,
    pub promisc: Option<bool>,
    pub allmulti: Option<bool>,
    pub txqlen: Option<u32>,
}

/// `ip link add NAME type bridge`. Use with [`Netlink::create_link`].
pub fn add_bridge(_bridge: &NewBridge<'_>) -> Request {
    todo!()
}

/// `ip link add NAME type veth peer name PEER netns NS`. Use with [`Netlink::create_link`].
pub fn add_veth(_veth: &NewVeth<'_>) -> Request {
    todo!()
}

/// `ip link add link PARENT name NAME type vlan id ID`. Use with [`Netlink::create_link`].
pub fn add_vlan(_name: &str, _parent: u32, _id: u16) -> Request {
    todo!()
}

/// `ip link set`; `name` is for messages.
pub fn set(_index: u32, _name: &str, _change: &Change<'_>) -> Request {
    todo!()
}

/// `ip link del`, by index.
pub fn del(_index: u32, _name: &str) -> Request {
    todo!()
}

/// `ip link del`, by name.
pub fn del_by_name(_name: &str) -> Request {
    todo!()
}

/// `ip link set BRIDGE type bridge vlan_filtering 1`
pub fn set_vlan_filtering(_index: u32, _name: &str, _on: bool) -> Request {
    todo!()
}

/// Which links to list; both filters run in the kernel.
#[derive(Debug, Clone, Default)]
pub struct Filter<'a> {
    /// Only ports of this bridge.
    pub master: Option<u32>,
    /// Only links of this kind.
    pub kind: Option<&'a str>,
}

impl Netlink {
    /// Carries out a creating request and returns the new link, from the kernel's echo
    /// (NLM_F_ECHO), without a look-up.
    ///
    /// # Errors
    /// The kernel's; EEXIST if the name is taken.
    pub fn create_link(&mut self, _request: Request) -> Result<Link> {
        todo!()
    }

    /// The link called `name`.
    ///
    /// # Errors
    /// ENODEV if there is none.
    pub fn link(&mut self, _name: &str) -> Result<Link> {
        todo!()
    }

    /// The link called `name`, or `None`.
    ///
    /// # Errors
    /// Anything but ENODEV.
    pub fn find_link(&mut self, _name: &str) -> Result<Option<Link>> {
        todo!()
    }

    /// The link at `index`.
    ///
    /// # Errors
    /// ENODEV if there is none.
    pub fn link_at(&mut self, _index: u32) -> Result<Link> {
        todo!()
    }

    /// `ip link show [master M] [type K]`
    ///
    /// # Errors
    /// The kernel's.
    pub fn links(&mut self, _filter: &Filter<'_>) -> Result<Vec<Link>> {
        todo!()
    }

    /// Waits until the link is operationally up, by notification (no polling), and returns
    /// it. Checks once before subscribing, so that nothing is lost and nothing is waited for
    /// in vain.
    ///
    /// # Errors
    /// ETIMEDOUT after `timeout`; EINTR if a signal came.
    pub fn wait_oper_up(&mut self, _index: u32, _timeout: std::time::Duration) -> Result<Link> {
        todo!()
    }
}
