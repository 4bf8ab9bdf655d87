//! Keeps published ports off the addresses of Services, as soon as kube-proxy gives one to the node. `guard` and `node`
//! do this. Elsewhere the next ADD does.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use cnimble_cni::Error;
use cnimble_netlink as netlink;
use cnimble_netlink::monitor::AddressMonitor;
use cnimble_netlink::nft::Nft;
use cnimble_rules::portmap::{keep_off_services, links_of_services};

/// The time to wait after a notification. The addresses of several Services come within it, and are handled at once.
const SETTLE: Duration = Duration::from_millis(50);

/// Starts a thread that follows the addresses of the current network namespace. It ends only if notifications can't be
/// read.
pub(super) fn follow() -> netlink::Result<()> {
    let mut monitor = AddressMonitor::open()?;
    let thread = std::thread::Builder::new().name("services".to_owned());
    let thread = thread.spawn(move || keep_off(&mut monitor));
    thread.map(drop).map_err(|err| netlink::Error::io("start a thread that follows addresses", &err))
}

/// Keeps published ports off the addresses of Services. It ends only if notifications can't be read.
fn keep_off(monitor: &mut AddressMonitor) {
    let mut known = BTreeSet::new();
    report(keep_off_services(&mut Nft::new()));
    loop {
        if let Err(err) = wait_for(monitor, &mut known) {
            return log::error!("{err}");
        }
    }
}

/// Waits for changed addresses, and updates the rules if they may be of a Service.
///
/// `known` are the links with addresses of Services at the last look, which this call updates. The kernel's last
/// notification about a link can come after its removal.
fn wait_for(monitor: &mut AddressMonitor, known: &mut BTreeSet<u32>) -> netlink::Result<()> {
    let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(netlink::Error::io("wait for notifications", &errno.into())),
    }
    std::thread::sleep(SETTLE);
    let changed = match monitor.read() {
        // A lost notification may have been about a Service.
        Err(err) if err.is(Errno::ENOBUFS) => None,
        changed => Some(changed?),
    };
    let before = known.clone();
    match links_of_services() {
        Ok(links) => *known = links,
        Err(err) => log::debug!("{err}"),
    }
    let of_services: BTreeSet<u32> = before.union(known).copied().collect();
    if changed.is_none_or(|changed| changed.iter().any(|link| of_services.contains(link))) {
        report(keep_off_services(&mut Nft::new()));
    }
    Ok(())
}

/// Logs a failure.
fn report(outcome: Result<(), Error>) {
    if let Err(err) = outcome {
        log::warn!("published ports may take packets for addresses of Services: {err}");
    }
}
