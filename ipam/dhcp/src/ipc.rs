//! The messages between verbs and the lease daemon: one line of JSON each way, on a socket of unix(7).

use serde::{Deserialize, Serialize};

use cnimble_cni::{Attachment, Code, Error, Owner};
use cnimble_netlink::netns::Identity;

use crate::held::AnyLease;

/// The longest line of a message, in bytes. A list of 10,000 attachments has 1 MB.
pub(crate) const LONGEST_LINE: usize = 16 << 20;

/// The attachment that a lease belongs to: an interface of a container in a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseOwner {
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
}

impl LeaseOwner {
    /// Returns the owner in the form of messages and files.
    pub(crate) fn from_owner(owner: &Owner) -> LeaseOwner {
        let Attachment { container_id, ifname } = &owner.attachment;
        let (container, ifname) = (container_id.clone(), ifname.clone());
        LeaseOwner { network: owner.network.clone(), container, ifname }
    }

    /// Returns the key of the lease, which is also the name of its file.
    pub(crate) fn key(&self, family: Family) -> String {
        let attachment = Attachment { container_id: self.container.clone(), ifname: self.ifname.clone() };
        format!("{}{}", Owner { network: self.network.clone(), attachment }.tag(), family.suffix())
    }

    /// Returns the owner in words for the log. The Go daemon sends the same text to a server as client ID.
    pub(crate) fn words(&self) -> String {
        format!("{}/{}/{}", self.container, self.network, self.ifname)
    }
}

/// Returns the error of CHECK for an interface without a lease, with code 103.
pub(crate) fn no_lease(ifname: &str) -> Error {
    Error::check(format!("dhcp: the daemon knows no lease for {ifname}"))
        .details("hint: create the pod again")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Family {
    #[default]
    Ipv4,
    Ipv6,
}

impl Family {
    pub(crate) const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// Returns the name of the protocol for this family in messages: `DHCP` for IPv4, `DHCPv6` for IPv6.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Family::Ipv4 => "DHCP",
            Family::Ipv6 => "DHCPv6",
        }
    }

    /// Returns the text that follows the owner's tag in the name of the lease's file: nothing for IPv4, `-6` for IPv6.
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

/// A lease that an ADD asks for. The daemon keeps it in the file of the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRequest {
    #[serde(rename = "whose")]
    pub(crate) owner: LeaseOwner,
    /// IPv4 if it is missing, because a lease daemon without families writes none.
    #[serde(default, skip_serializing_if = "Family::is_default")]
    pub(crate) family: Family,
    /// The path of the namespace, as the runtime sees it.
    pub(crate) netns: String,
    /// The namespace, if the daemon has it only by a descriptor. The path does not lead there in the daemon's mount
    /// namespace. The daemon sets this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sent: Option<Identity>,
    pub(crate) provide: Vec<(u8, Vec<u8>)>,
    pub(crate) request: Vec<u8>,
    pub(crate) priority: Option<u32>,
    /// The longest wait for an address, in seconds. Without it the daemon's own limit holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<u32>,
}

impl LeaseRequest {
    /// Returns the key of the lease ([`LeaseOwner::key`]).
    pub(crate) fn key(&self) -> String {
        self.owner.key(self.family)
    }
}

/// A request of a verb.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// A new lease, or the one that the interface has. The reply comes when there is one.
    Add(LeaseRequest),
    /// A new or existing lease of IPv6. The name is one of its own, so that an older lease daemon refuses it.
    Add6(LeaseRequest),
    /// Releases the leases of both families.
    Del(LeaseOwner),
    /// Returns the lease of IPv4.
    Check(LeaseOwner),
    /// Returns the lease of IPv6.
    Check6(LeaseOwner),
    /// Releases all leases of a network except the valid ones, which are pairs of container and interface.
    Gc { network: String, valid: Vec<(String, String)> },
    /// Does nothing. A reply shows that the daemon works.
    Status,
}

/// The answer of the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// The request is carried out.
    Done,
    /// The lease that was asked for.
    Lease(AnyLease),
    /// The lease does not exist.
    Nothing,
    /// The error of the verb.
    Error { code: u32, msg: String, details: String },
}

impl From<Error> for Reply {
    fn from(err: Error) -> Reply {
        Reply::Error { code: err.code.0, msg: err.msg, details: err.details }
    }
}

impl Reply {
    /// Returns the error in the reply as an error, and any other reply as it is.
    pub(crate) fn checked(self) -> Result<Reply, Error> {
        match self {
            Reply::Error { code, msg, details } => Err(Error::new(Code(code), msg).details(details)),
            reply => Ok(reply),
        }
    }
}
