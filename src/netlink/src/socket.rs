//! The netlink socket: datagrams out, and the kernel's back.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

use super::wire::{self, Malformed, Message, Messages};
use super::{Error, NetNs, Result};

/// How long the kernel may take for one answer. It answers while it reads the request, so
/// this is for a machine in trouble.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kernel's datagrams have at most 32 KiB (netlink_dump() in af_netlink.c).
const BUFFER: usize = 32 * 1024;

/// A NETLINK_ROUTE socket in one namespace.
///
/// The kernel carries requests out while they are sent, one after the other, so nothing
/// here is asynchronous: what comes back is waiting to be read.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    /// Our address, which the kernel puts into answers.
    pub(super) port: u32,
    /// The sequence number of the last request.
    pub(super) seq: u32,
    pub(super) buffer: Vec<u8>,
}

impl Netlink {
    /// A socket in the current namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let failed = |err: std::io::Error| Error::io("open a netlink socket", &err);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        let address = socket.bind_auto().map_err(failed)?;
        // Texts in errors, without a copy of the request; the first is since Linux 4.12.
        socket.set_ext_ack(true).map_err(failed)?;
        socket.set_cap_ack(true).map_err(failed)?;
        // Filters in dumps, since Linux 4.20. Without it, dumps bring all there is, and the
        // readers filter.
        let _ = socket.set_netlink_get_strict_chk(true);
        let netlink = Netlink { port: address.port_number(), socket, seq: 0, buffer: vec![0; BUFFER] };
        netlink.patience(PATIENCE)?;
        Ok(netlink)
    }

    /// A socket in `ns`, entered only for this moment.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_in(ns: &NetNs) -> Result<Self> {
        ns.enter(Netlink::open)?
    }

    /// Joins or leaves a multicast group (`enum rtnetlink_groups`). Notifications that are
    /// still waiting after leaving are thrown away, and so is the word that some were lost.
    pub(super) fn member(&mut self, group: u32, join: bool) -> Result<()> {
        let changed =
            if join { self.socket.add_membership(group) } else { self.socket.drop_membership(group) };
        changed.map_err(|err| Error::io("subscribe to notifications", &err))?;
        if !join {
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            loop {
                let mut room = self.buffer.as_mut_slice();
                match self.socket.recv(&mut room, flags) {
                    Ok(_) => {}
                    Err(err) if err.raw_os_error() == Some(libc::ENOBUFS) => {}
                    Err(_) => break,
                }
            }
        }
        Ok(())
    }

    /// How long a single receive may take.
    pub(super) fn patience(&self, time: Duration) -> Result<()> {
        // 0 would mean for ever.
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX).max(1);
        let time = TimeVal::microseconds(micros.min(PATIENCE.as_micros() as i64));
        setsockopt(&self.socket.as_fd(), ReceiveTimeout, &time)
            .map_err(|errno| Error::new("set the time limit of a netlink socket", errno))
    }

    /// Sets the usual time limit again.
    pub(super) fn usual_patience(&self) -> Result<()> {
        self.patience(PATIENCE)
    }

    /// So that few notifications are too many.
    #[cfg(test)]
    pub(super) fn shrink_receive_buffer(&self) {
        self.socket.set_rx_buf_sz(1).unwrap();
    }

    /// How long a receive may take, as the kernel has it.
    #[cfg(test)]
    pub(super) fn receive_limit(&self) -> Duration {
        let time = nix::sys::socket::getsockopt(&self.socket.as_fd(), ReceiveTimeout).unwrap();
        Duration::from_micros(time.num_microseconds().try_into().unwrap())
    }

    pub(super) fn send(&self, what: &str, datagram: &[u8]) -> Result<()> {
        let kernel = SocketAddr::new(0, 0);
        match self.socket.send_to(datagram, &kernel, 0) {
            Ok(_) => Ok(()),
            Err(err) => Err(Error::io(what, &err)),
        }
    }

    /// Receives until `each` is done. Messages that aren't answers to us (notifications, an
    /// answer that came after its request had been given up) are skipped.
    pub(super) fn receive(
        &mut self,
        what: &str,
        mut each: impl FnMut(&Message<'_>) -> Result<Next>,
    ) -> Result<()> {
        let port = self.port;
        let end = Instant::now() + PATIENCE;
        let mut done = false;
        // Something was lost, not necessarily what we wait for; what wasn't is there already.
        let mut lost = None;
        while !done {
            let flags = if lost.is_some() { libc::MSG_DONTWAIT } else { 0 };
            let length = match self.fill(what, RECEIVE_RETRIES, flags) {
                Err(err) if err.is(Errno::ENOBUFS) && lost.is_none() => {
                    lost = Some(err.reason("answers were lost"));
                    continue;
                }
                Err(err) => return Err(lost.unwrap_or(err)),
                Ok(length) => length,
            };
            let datagram = self.buffer.get(..length).unwrap_or_default();
            for message in Messages::new(datagram) {
                let message = message.map_err(|Malformed(why)| broken(what, why))?;
                if message.kind == wire::OVERRUN {
                    return Err(Error::new(what, Errno::ENOBUFS).reason("answers were lost"));
                }
                if message.port == port && !done {
                    done = each(&message)? == Next::Done;
                }
            }
            if !done && Instant::now() > end {
                return Err(timed_out(what));
            }
        }
        Ok(())
    }

    /// One datagram from the kernel; a receive that failed (a signal, memory) is tried again
    /// so many times.
    pub(super) fn datagram(&mut self, what: &str, retries: u32) -> Result<&[u8]> {
        let length = self.fill(what, retries, 0)?;
        Ok(self.buffer.get(..length).unwrap_or_default())
    }

    /// As [`datagram`](Self::datagram); how long it is.
    fn fill(&mut self, what: &str, mut retries: u32, flags: libc::c_int) -> Result<usize> {
        let length = loop {
            let mut room = self.buffer.as_mut_slice();
            // With MSG_TRUNC the length is the datagram's, even if it is cut off.
            match self.socket.recv_from(&mut room, libc::MSG_TRUNC | flags) {
                // Anyone with CAP_NET_ADMIN can write to our address.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((length, _)) => break length,
                Err(err) => match Error::io(what, &err) {
                    err if err.is(Errno::EAGAIN) => return Err(timed_out(what)),
                    // The change has been made by now, or refused: its answer is in the
                    // queue, and whoever doesn't read it doesn't know what to take back.
                    err if retries > 0 && !err.is(Errno::ENOBUFS) => retries -= 1,
                    err => return Err(err),
                },
            }
        };
        if length > self.buffer.len() {
            return Err(Error::new(what, Errno::EMSGSIZE)
                .reason(format!("an answer of {length} bytes has been cut off")));
        }
        Ok(length)
    }
}

/// For answers to requests, which nobody may miss. Only ENOBUFS means that one has been lost.
const RECEIVE_RETRIES: u32 = 3;

/// Whether a receiver has seen enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    More,
    Done,
}

pub(super) fn broken(what: &str, why: &str) -> Error {
    Error::new(what, Errno::EBADMSG).reason(format!("the kernel's answer makes no sense: {why}"))
}

pub(super) fn timed_out(what: &str) -> Error {
    Error::new(what, Errno::ETIMEDOUT).reason("no answer from the kernel in time")
}
