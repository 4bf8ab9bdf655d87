//! Work in every namespace that is pinned by a mount, for GC.

use std::path::Path;

use cnimble_cni::Error;
use cnimble_netlink::{NetNs, Netlink, netns};

use super::remove;

/// Does it in the namespaces that are pinned by a mount in our own mount namespace, but for our own, by a
/// socket inside. What a container engine in a pod has pinned is its own business, though its networks may
/// have the names of ours.
///
/// # Errors
/// After all were tried.
pub fn in_pinned(mut work: impl FnMut(&mut Netlink) -> Result<(), Error>) -> Result<(), Error> {
    let own = NetNs::current()?;
    let mut of = |path: &Path| {
        // It may go in this moment.
        match own.find_another(path)? {
            Some(netns) => work(&mut Netlink::open_in(&netns)?),
            None => Ok(()),
        }
    };
    remove::all(netns::pinned().iter().map(|path| of(path)))
}
