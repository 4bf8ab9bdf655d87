use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

use cnimble_netlink as netlink;
use cnimble_netlink::monitor::RouteMonitor;

use crate::plan::PROTOCOL;

/// Reports changes of routes by other programs, also when they remove the agent's routes. A thread waits for them. It
/// ends if poll(2) fails, and at the first change after the receiver is dropped.
pub fn disturbances() -> netlink::Result<watch::Receiver<()>> {
    let monitor = RouteMonitor::open()?;
    let (sender, receiver) = watch::channel(());
    let thread = std::thread::Builder::new().name("routes".to_owned());
    thread
        .spawn(move || report_changes(monitor, &sender))
        .map_err(|err| netlink::Error::io("start a thread that watches routes", &err))?;
    Ok(receiver)
}

/// Waits for changes of routes, and reports each to `sender`. Returns if poll(2) fails, or if nobody receives.
fn report_changes(mut monitor: RouteMonitor, sender: &watch::Sender<()>) {
    loop {
        let mut fds = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(err) => return log::warn!("routes are looked at now and then only: {err}"),
        }
        // After a lost message, a route may have changed.
        let disturbed = monitor.disturbs(PROTOCOL).unwrap_or(true);
        if disturbed && sender.send(()).is_err() {
            return;
        }
    }
}
