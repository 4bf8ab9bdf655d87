//! Routes that others change.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

use cnimble_netlink as netlink;
use cnimble_netlink::monitor::RouteMonitor;

use crate::plan::PROTOCOL;

/// Tells when somebody else has changed routes, or deleted some of ours. The thread that waits for it stays as long as
/// the process.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn disturbances() -> netlink::Result<watch::Receiver<()>> {
    let mut monitor = RouteMonitor::open()?;
    let (sender, receiver) = watch::channel(());
    let wait = move || {
        loop {
            let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(err) => return log::warn!("routes are looked at now and then only: {err}"),
            }
            // What was lost may have been one.
            let disturbed = monitor.disturbs(PROTOCOL).unwrap_or(true);
            if disturbed && sender.send(()).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("routes".to_owned()).spawn(wait);
    thread.map_err(|err| netlink::Error::io("start a thread that watches routes", &err))?;
    Ok(receiver)
}
