//! Blocks as custom resources of a Kubernetes API server (`deploy/cluster-local/crds.yaml`). The server has no
//! transactions over several objects, so each change is one write that the resource's version guards:
//!
//! - A block belongs to the boot that created its object. A released block belongs to the boot that claims it by a
//!   rewrite of the old object.
//! - A silent boot's record is deleted first. Its finalizer keeps it until the blocks are released.
//! - A block that a dead process was about to return is adopted by a write, which voids the late deletion.

mod objects;
mod request;
mod store;
mod watch;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use cnimble_api::{Collection, Connection};

use crate::BlocksError;
use crate::record::{Fence, Owner};

const NAME: &str = "the API server";

/// Owners and objects by their first address.
type Owners = BTreeMap<IpAddr, (Owner, Value)>;

/// A session with an API server.
pub(crate) struct Kubernetes {
    connection: Arc<Connection>,
    /// The name of the network, which is that of its IPPool.
    pool: String,
    fence: Fence,
    /// The IPPool as it was read.
    object: Value,
    /// This boot's blocks, as this session has read or written them.
    own: BTreeMap<IpAddr, Value>,
    /// All owners, if this session has listed them since its last claim.
    listed: Option<Owners>,
    revision: i64,
}

/// A kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pool,
    NodeClaim,
    Block,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Pool => "IPPool",
            Kind::NodeClaim => "NodeClaim",
            Kind::Block => "Block",
        }
    }

    /// Returns the path of all objects of the kind.
    fn path(self) -> &'static str {
        match self {
            Kind::Pool => "/apis/ipam.cnimble.dev/v1alpha1/ippools",
            Kind::NodeClaim => "/apis/ipam.cnimble.dev/v1alpha1/nodeclaims",
            Kind::Block => "/apis/ipam.cnimble.dev/v1alpha1/blocks",
        }
    }

    /// Returns the path of an object.
    fn path_of(self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }

    /// Returns the objects with all of these labels.
    fn labelled(self, labels: &str) -> Collection {
        Collection::new(self.path()).labelled(labels)
    }
}

/// Returns the error of an API server that does not answer.
fn away(why: impl std::fmt::Display) -> BlocksError {
    BlocksError::Away(NAME, why.to_string())
}
