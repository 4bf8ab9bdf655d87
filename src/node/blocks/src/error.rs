use cnimble_cni::{Code, Error};

/// Why nothing was claimed.
#[derive(Debug, thiserror::Error)]
pub enum BlocksError {
    /// No member of etcd answers with a quorum. Another try may succeed.
    #[error("etcd doesn't answer: {0}")]
    Away(String),
    #[error("etcd has nothing of network {0}: run `cnimble ipam init` once for the cluster")]
    Uninitialised(String),
    #[error(
        "etcd was restored from a backup or replaced ({0}): it may not know every block yet, so none is claimed"
    )]
    Restored(String),
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
            BlocksError::Away(_) | BlocksError::Contended => Code::TRY_AGAIN_LATER,
            BlocksError::Full(_) | BlocksError::Taken { .. } => Code::NO_ADDRESS,
            BlocksError::BlockSize { .. } => Code::INVALID_CONFIG,
            BlocksError::Uninitialised(_) | BlocksError::Restored(_) | BlocksError::Identity { .. } => {
                Code::NOT_AVAILABLE
            }
        };
        Error::new(code, err.to_string())
    }
}
