//! The netlink socket for all families. It sends datagrams to the kernel, and receives the kernel's.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_sys::SocketAddr;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_XFRM};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::uapi::netlink::NLMSG_OVERRUN;
use super::wire::{Malformed, Message, Messages};
use super::{Error, IfPresent as _, Result, deferred_close};

/// The longest time that a receive waits. The kernel answers while it reads the request, so only a machine in trouble
/// needs it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kernel's datagrams have at most 32 KiB (netlink_dump() in af_netlink.c).
const BUFFER: usize = 32 * 1024;

/// The largest datagram that needs no larger send buffer. It fits the default one (208 KiB) with plenty of room.
const USUAL_DATAGRAM: usize = 64 * 1024;
/// The largest buffer that is asked for. No request of a plugin comes near it, and the kernel's memory is used for it.
const LARGEST_DATAGRAM: usize = 1 << 20;

/// The number of further attempts after a receive that failed (a signal, memory). Only ENOBUFS means that an answer was
/// lost.
const RECEIVE_RETRIES: u32 = 3;

/// The family of a netlink socket: the third argument of socket(2), see netlink(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Route,
    Netfilter,
    Sockets,
    Xfrm,
}

impl Protocol {
    fn number(self) -> isize {
        match self {
            Protocol::Route => NETLINK_ROUTE,
            Protocol::Netfilter => NETLINK_NETFILTER,
            Protocol::Sockets => NETLINK_SOCK_DIAG,
            Protocol::Xfrm => NETLINK_XFRM,
        }
    }

    /// Explains why there is no socket.
    fn closed(self, err: Error) -> Error {
        match self {
            Protocol::Netfilter if err.is(Errno::EPROTONOSUPPORT) => {
                err.explained("the kernel has no netfilter over netlink (CONFIG_NETFILTER_NETLINK)")
            }
            _ => err,
        }
    }
}

/// A netlink socket in one namespace. The kernel carries requests out one after the other while they are sent, so
/// nothing is asynchronous: an answer is waiting to be read.
#[derive(Debug)]
pub(crate) struct Socket {
    inner: netlink_sys::Socket,
    pub(super) protocol: Protocol,
    /// The address of this socket. The kernel puts it into answers.
    pub(super) port: u32,
    /// The sequence number that was taken last.
    pub(super) seq: u32,
    pub(super) buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread, and sets the usual time limit.
    ///
    /// # Errors
    /// Fails with EPROTONOSUPPORT if the kernel lacks the family.
    pub(crate) fn open(protocol: Protocol) -> Result<Self> {
        let what = match protocol {
            Protocol::Netfilter => "open an nf_tables socket",
            _ => "open a netlink socket",
        };
        let failed = |err: std::io::Error| protocol.closed(Error::io(what, &err));
        let mut inner = netlink_sys::Socket::new(protocol.number()).map_err(failed)?;
        let address = inner.bind_auto().map_err(failed)?;
        if protocol == Protocol::Netfilter {
            deferred_close::keep_socket_open(inner.as_fd());
        }
        // Texts in errors, without a copy of the request; the first is since Linux 4.12.
        inner.set_ext_ack(true).map_err(failed)?;
        inner.set_cap_ack(true).map_err(failed)?;
        if protocol == Protocol::Route {
            // Filters in dumps, since Linux 4.20. Without it, the readers filter.
            let _ = inner.set_netlink_get_strict_chk(true);
        }
        let socket = Socket { inner, protocol, port: address.port_number(), seq: 0, buffer: vec![0; BUFFER] };
        socket.patience(PATIENCE)?;
        Ok(socket)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    /// Takes the next `count` sequence numbers, and returns the first of them.
    pub(crate) fn take_numbers(&mut self, count: u32) -> u32 {
        let first = self.seq.wrapping_add(1);
        self.seq = self.seq.wrapping_add(count);
        first
    }

    /// Joins a multicast group (`enum rtnetlink_groups`).
    pub(super) fn join(&mut self, group: u32) -> Result<()> {
        self.inner.add_membership(group).map_err(|err| Error::io("subscribe to notifications", &err))
    }

    /// Leaves the multicast group. Discards everything that is still waiting, and the report that some of it was lost.
    pub(super) fn leave(&mut self, group: u32) -> Result<()> {
        self.inner.drop_membership(group).map_err(|err| Error::io("unsubscribe from notifications", &err))?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        loop {
            let mut room = self.buffer.as_mut_slice();
            match self.inner.recv(&mut room, flags) {
                Ok(_) => {}
                Err(err) if err.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return Ok(()),
            }
        }
    }

    /// Sets how long a single receive may take, at most [`PATIENCE`].
    pub(super) fn patience(&self, time: Duration) -> Result<()> {
        // 0 would mean for ever.
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX).max(1);
        let time = TimeVal::microseconds(micros.min(PATIENCE.as_micros() as i64));
        setsockopt(&self.inner.as_fd(), sockopt::ReceiveTimeout, &time)
            .map_err(|errno| Error::new("set the time limit of a netlink socket", errno))
    }

    /// Sets the usual time limit again.
    pub(super) fn usual_patience(&self) -> Result<()> {
        self.patience(PATIENCE)
    }

    /// Shrinks the buffer so that few notifications are too many. Tests call it.
    #[cfg(test)]
    pub(super) fn shrink_receive_buffer(&self) {
        self.inner.set_rx_buf_sz(1).unwrap();
    }

    /// How long a receive may take, as the kernel has it.
    #[cfg(test)]
    pub(super) fn receive_limit(&self) -> Duration {
        let time = nix::sys::socket::getsockopt(&self.inner.as_fd(), sockopt::ReceiveTimeout).unwrap();
        Duration::from_micros(time.num_microseconds().try_into().unwrap())
    }

    /// Sends messages to the kernel. `what` names them in errors.
    ///
    /// # Errors
    /// Fails with EMSGSIZE if `datagram` is empty, which means that its writer couldn't fit an attribute in. Fails with
    /// EMSGSIZE or ENOBUFS if it is larger than the socket's buffer may become.
    pub(crate) fn send(&self, what: &str, datagram: &[u8]) -> Result<()> {
        if datagram.is_empty() {
            return Err(Error::new(what, Errno::EMSGSIZE).reason("an attribute of more than 64 KiB"));
        }
        if datagram.len() > USUAL_DATAGRAM {
            self.make_room(datagram.len());
        }
        let kernel = SocketAddr::new(0, 0);
        loop {
            let err = match self.inner.send_to(datagram, &kernel, 0) {
                Ok(_) => return Ok(()),
                Err(err) => Error::io(what, &err),
            };
            return Err(match err.errno {
                Errno::EINTR => continue,
                Errno::EMSGSIZE | Errno::ENOBUFS => {
                    err.reason(format!("{} bytes don't fit into the socket's buffer", datagram.len()))
                }
                _ => err,
            });
        }
    }

    /// Enlarges the send buffer to `length` bytes, but at most to [`LARGEST_DATAGRAM`]. The kernel doubles the number,
    /// for its own needs.
    fn make_room(&self, length: usize) {
        let wanted = length.min(LARGEST_DATAGRAM);
        // Beyond the system's limit only with CAP_NET_ADMIN in the first user namespace; send(2) tells whether it was
        // enough.
        if setsockopt(&self.inner, sockopt::SndBufForce, &wanted).is_err() {
            let _ = setsockopt(&self.inner, sockopt::SndBuf, &wanted);
        }
    }

    /// Receives until `each` returns [`Next::Done`]. Skips messages that aren't answers to this socket. `each` has to
    /// skip late answers to earlier requests.
    ///
    /// # Errors
    /// Fails with the error of `each`. Fails with ETIMEDOUT if no answer comes in time, with ENOBUFS if answers were
    /// lost, and with EBADMSG if one can't be read.
    pub(crate) fn receive(
        &mut self,
        what: &str,
        each: &mut dyn FnMut(&Message<'_>) -> Result<Next>,
    ) -> Result<()> {
        let port = self.port;
        let mut end = None;
        let mut done = false;
        // Something was lost, not necessarily the answer; what wasn't is there already.
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
            let mut ours = false;
            let datagram = self.buffer.get(..length).unwrap_or_default();
            for message in Messages::new(datagram) {
                let message = message.map_err(|Malformed(why)| broken(what, why))?;
                if message.kind == NLMSG_OVERRUN {
                    return Err(Error::new(what, Errno::ENOBUFS).reason("answers were lost"));
                }
                if message.port == port && !done {
                    ours = true;
                    done = each(&message)? == Next::Done;
                }
            }
            // Other processes' notifications don't prolong the wait.
            if !ours && Instant::now() > *end.get_or_insert_with(|| Instant::now() + PATIENCE) {
                return Err(timed_out(what));
            }
        }
        Ok(())
    }

    /// Receives the kernel's next datagram, whatever it is. Tries up to `retries` times more after a failure other than
    /// ENOBUFS.
    ///
    /// # Errors
    /// Fails with ETIMEDOUT if none comes in time, and with ENOBUFS if some were lost.
    pub(super) fn datagram(&mut self, what: &str, retries: u32) -> Result<&[u8]> {
        let length = self.fill(what, retries, 0)?;
        Ok(self.buffer.get(..length).unwrap_or_default())
    }

    /// Receives a datagram that is there already, or returns `None` if none is.
    pub(super) fn waiting(&mut self, what: &str) -> Result<Option<&[u8]>> {
        let length = self.fill(what, RECEIVE_RETRIES, libc::MSG_DONTWAIT).map(Some);
        let length = length.default_for(&[Errno::ETIMEDOUT])?;
        Ok(length.map(|length| self.buffer.get(..length).unwrap_or_default()))
    }

    /// Enlarges the receive buffer, so that many notifications can wait. Beyond the system's limit the kernel allows
    /// that only with CAP_NET_ADMIN in the first user namespace.
    pub(super) fn expect_many(&self) {
        let room = LARGEST_DATAGRAM;
        if setsockopt(&self.inner, sockopt::RcvBufForce, &room).is_err() {
            let _ = setsockopt(&self.inner, sockopt::RcvBuf, &room);
        }
    }

    /// Receives a datagram into the buffer like [`datagram`](Self::datagram), and returns its length. `flags` are those
    /// of recv(2).
    fn fill(&mut self, what: &str, mut retries: u32, flags: libc::c_int) -> Result<usize> {
        let length = loop {
            let mut room = self.buffer.as_mut_slice();
            // With MSG_TRUNC the length is the datagram's, even if it is cut off.
            match self.inner.recv_from(&mut room, libc::MSG_TRUNC | flags) {
                // Any process with CAP_NET_ADMIN can write to our address.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((length, _)) => break length,
                Err(err) => match Error::io(what, &err) {
                    err if err.is(Errno::EAGAIN) => return Err(timed_out(what)),
                    // The change has been made or refused by now: a caller that doesn't read the answer can't know what
                    // to take back.
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

/// Whether [`Socket::receive`] goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    More,
    Done,
}

/// Returns the error (EBADMSG) for an answer that can't be read.
pub(crate) fn broken(what: &str, why: &str) -> Error {
    Error::new(what, Errno::EBADMSG).reason(format!("the kernel's answer makes no sense: {why}"))
}

/// Returns the error (ETIMEDOUT) for a missing answer.
pub(super) fn timed_out(what: &str) -> Error {
    Error::new(what, Errno::ETIMEDOUT).reason("no answer from the kernel in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_netfilter_is_named() {
        let refused = Error::new("open an nf_tables socket", Errno::EPROTONOSUPPORT);
        let err = Protocol::Netfilter.closed(refused.clone());
        assert_eq!(
            err.to_string(),
            "open an nf_tables socket: the kernel has no netfilter over netlink (CONFIG_NETFILTER_NETLINK)"
        );
        assert_eq!(err.errno, Errno::EPROTONOSUPPORT);
        assert_eq!(Protocol::Route.closed(refused.clone()), refused);
    }
}
