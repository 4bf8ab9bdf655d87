//! Waits for duplicate address detection (RFC 4862, section 5.4), where it was asked for.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::socket::timed_out;
use super::uapi::rtnetlink::RTNLGRP_IPV6_IFADDR;
use super::{Error, IfPresent as _, Netlink, Result};

impl Netlink {
    /// Waits by notifications until no address of the link is tentative (RFC 4862, section 5.4).
    ///
    /// # Errors
    /// Fails with EADDRINUSE if another host has an address, with ETIMEDOUT after `timeout`, and with EINTR after a
    /// signal.
    pub fn wait_addrs_settled(&mut self, index: u32, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        self.socket.join(RTNLGRP_IPV6_IFADDR)?;
        let outcome = self.await_settled(index, end);
        self.socket.usual_patience()?;
        self.socket.leave(RTNLGRP_IPV6_IFADDR)?;
        outcome
    }

    fn await_settled(&mut self, index: u32, end: Instant) -> Result<()> {
        let what = "wait for duplicate address detection";
        loop {
            let addrs = match self.addrs(index) {
                // Notifications were lost, or the answer with them.
                Err(err) if err.is(Errno::ENOBUFS) && Instant::now() < end => continue,
                addrs => addrs?,
            };
            if let Some(addr) = addrs.iter().find(|addr| addr.duplicate) {
                return Err(Error::new(what, Errno::EADDRINUSE)
                    .reason(format!("another host on the network has {}", addr.net.ip())));
            }
            if !addrs.iter().any(|addr| addr.tentative) {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(timed_out(what));
            }
            self.socket.patience(left)?;
            // The list is read again after any notification, and if some were lost.
            self.socket.datagram(what, 0).map(drop).default_for(&[Errno::ENOBUFS, Errno::ETIMEDOUT])?;
            self.socket.usual_patience()?;
        }
    }
}
