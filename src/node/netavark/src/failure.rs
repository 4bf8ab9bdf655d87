//! Why a call failed. netavark gets the text, and podman shows it to the user.

/// A failure, as one text.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Said(String),
    /// A signal has arrived. podman gets one, too, and takes the container down.
    #[error("interrupted by a signal")]
    Interrupted,
    #[error(transparent)]
    Protocol(#[from] cnimble_cni::Error),
    #[error(transparent)]
    Plugins(#[from] cnimble_runtime::Error),
    #[error(transparent)]
    Records(#[from] cnimble_runtime::CacheError),
    #[error(transparent)]
    Configuration(#[from] cnimble_runtime::ConfError),
    #[error(transparent)]
    Kernel(#[from] cnimble_netlink::Error),
}

/// Returns the failure with this text.
pub fn said<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Said(text.into()))
}
