use cnimble_cni::{Code, Error};

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// No member of etcd answers with a quorum, or no API server does. Another try may succeed.
    #[error("{0} doesn't answer: {1}")]
    Away(&'static str, String),
    #[error(
        "{0} has nothing of network {1}: run `cnimble ipam init --new` once for a new cluster, or \
         `cnimble ipam init --recover` if nodes have had addresses of it"
    )]
    Uninitialised(&'static str, String),
    /// The network isn't set up, and this node has seen it in the store before.
    #[error(
        "{0} has lost network {1}: run `cnimble ipam init --recover` once for the cluster, and each node claims \
         again what it owns"
    )]
    Lost(&'static str, String),
    #[error(
        "{0} was restored from a backup or replaced ({1}): it may not know every block yet, so none is claimed"
    )]
    Restored(&'static str, String),
    /// The store refuses the request, because the account lacks the right to it.
    #[error("{0} can't be used: {1}")]
    Forbidden(&'static str, String),
    #[error("node {name}: {why}")]
    Identity { name: String, why: String },
    #[error("ipam.blockSize: the cluster's blocks have /{cluster}, this configuration says /{ours}")]
    BlockSize { cluster: u32, ours: u32 },
    #[error("no address left in the cluster for range set {0}")]
    Full(String),
    #[error("{ip} is in the block of node {node}, which gives its addresses")]
    Taken { ip: String, node: String },
    #[error("other nodes claim at the same time; try again")]
    Contended,
    #[error("{0}")]
    Local(#[from] Error),
}

impl From<BlocksError> for Error {
    fn from(err: BlocksError) -> Self {
        let code = match &err {
            BlocksError::Local(local) => return local.clone(),
            BlocksError::Away(..) | BlocksError::Contended => Code::TRY_AGAIN_LATER,
            BlocksError::Full(_) | BlocksError::Taken { .. } => Code::NO_ADDRESS,
            BlocksError::BlockSize { .. } => Code::INVALID_CONFIG,
            BlocksError::Uninitialised(..)
            | BlocksError::Lost(..)
            | BlocksError::Restored(..)
            | BlocksError::Forbidden(..)
            | BlocksError::Identity { .. } => Code::NOT_AVAILABLE,
        };
        Error::new(code, err.to_string())
    }
}
