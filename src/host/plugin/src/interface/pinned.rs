//! Work in every namespace that is pinned by a mount, for GC.

use cnimble_cni::Error;
use cnimble_netlink::{NetNs, Netlink, netns};

use super::remove;

/// Runs `work` in the namespaces that are pinned by a mount in this mount namespace, except its own, with a socket
/// inside. Those of a container engine in a pod are not visited, because its networks may have the same names. Tries
/// all namespaces before it fails.
pub fn in_pinned(mut work: impl FnMut(&mut Netlink) -> Result<(), Error>) -> Result<(), Error> {
    let own = NetNs::current()?;
    remove::all(netns::pinned().iter().map(|path| {
        // The namespace may be removed at this moment.
        match own.find_another(path)? {
            Some(netns) => work(&mut Netlink::open_bounded(&netns)?)
                .map_err(|err| err.context(format_args!("in the namespace {}", path.display()))),
            None => Ok(()),
        }
    }))
}
