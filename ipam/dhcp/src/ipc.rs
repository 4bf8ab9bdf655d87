//! The protocol between a verb and the lease daemon: one line of JSON each way, on a socket of unix(7).

use serde::{Deserialize, Serialize};

use cnimble_cni::{Attachment, Code, Error, Owner};
use cnimble_netlink::netns::Identity;

use crate::held::Held;

/// The longest request and the longest reply. A list of 10,000 attachments has 1 MB.
pub(crate) const LONGEST_LINE: usize = 16 << 20;

/// The owner of a lease: the container's interface in a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseOwner {
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
}

impl LeaseOwner {
    pub(crate) fn of(owner: &Owner) -> LeaseOwner {
        let Attachment { container_id, ifname } = &owner.attachment;
        let (container, ifname) = (container_id.clone(), ifname.clone());
        LeaseOwner { network: owner.network.clone(), container, ifname }
    }

    /// The name of its lease, which is also the name of the lease's file.
    pub(crate) fn key(&self, family: Family) -> String {
        let attachment = Attachment { container_id: self.container.clone(), ifname: self.ifname.clone() };
        format!("{}{}", Owner { network: self.network.clone(), attachment }.tag(), family.suffix())
    }

    /// The owner as text, for the log. The Go daemon sends the same text to a server as the client's ID.
    pub(crate) fn words(&self) -> String {
        format!("{}/{}/{}", self.container, self.network, self.ifname)
    }
}

/// Returns the error of CHECK for an interface without a lease.
pub(crate) fn no_lease(ifname: &str) -> Error {
    Error::check(format!("dhcp: there is no lease for {ifname}")).details("hint: create the pod again")
}

/// The family of the address that an interface requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Family {
    #[default]
    Ipv4,
    Ipv6,
}

impl Family {
    pub(crate) const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// The name of the protocol.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Family::Ipv4 => "DHCP",
            Family::Ipv6 => "DHCPv6",
        }
    }

    /// The suffix that follows the owner's tag in the name of the lease.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Family::Ipv4 => "",
            Family::Ipv6 => "-6",
        }
    }

    fn is_default(&self) -> bool {
        *self == Family::default()
    }
}

/// A request for an address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    #[serde(rename = "whose")]
    pub(crate) owner: LeaseOwner,
    /// A lease daemon without families writes none.
    #[serde(default, skip_serializing_if = "Family::is_default")]
    pub(crate) family: Family,
    pub(crate) netns: String,
    /// The namespace, if the daemon has it by a descriptor because the path does not lead there in its mount namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sent: Option<Identity>,
    pub(crate) provide: Vec<(u8, Vec<u8>)>,
    pub(crate) request: Vec<u8>,
    pub(crate) priority: Option<u32>,
    /// How many seconds ADD waits for an address. Without it the daemon's own limit holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<u32>,
}

impl Wanted {
    pub(crate) fn key(&self) -> String {
        self.owner.key(self.family)
    }
}

/// A request from a verb.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    Add(Wanted),
    /// An ADD for IPv6, under a name that an older lease daemon refuses.
    Add6(Wanted),
    /// Releases all leases of the owner.
    Del(LeaseOwner),
    Check(LeaseOwner),
    Check6(LeaseOwner),
    /// Releases all leases of a network except the valid ones, given as container and interface.
    Gc {
        network: String,
        valid: Vec<(String, String)>,
    },
    Status,
}

/// The reply of the lease daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    Done,
    Lease(Held),
    /// The lease does not exist.
    Nothing,
    Error {
        code: u32,
        msg: String,
        details: String,
    },
}

impl From<Error> for Reply {
    fn from(err: Error) -> Reply {
        Reply::Error { code: err.code.0, msg: err.msg, details: err.details }
    }
}

impl Reply {
    /// Returns the lease daemon's error as an [`Error`].
    pub(crate) fn checked(self) -> Result<Reply, Error> {
        match self {
            Reply::Error { code, msg, details } => Err(Error::new(Code(code), msg).details(details)),
            reply => Ok(reply),
        }
    }
}
