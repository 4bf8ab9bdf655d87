//! nf_tables over netlink, without a child process.
//!
//! [`Batch`] collects changes, [`Nft::commit`] hands them to the kernel, which makes them
//! all or none; the other methods of [`Nft`] look things up. `man nft` explains tables,
//! chains, rules, sets and maps; linux/netfilter/nf_tables.h has the numbers used here.
//!
//! The bytes are written and read by a module of our own (`attr`) rather than by the crate
//! netlink-packet-netfilter: its parser takes attributes of a reply without looking at
//! their length (`NlaBuffer::new`, which panics on a short one), and it would decode whole
//! rules of other programs (iptables keeps C structures in them) where we want a jump's
//! target. What is left after that is a list of attribute numbers.
//!
//! # What it costs
//!
//! Measured on Linux 6.18:
//!
//! - A query takes 3–5 µs. Adding an element takes some 20 µs however large the set is, as
//!   long as it is a *set*. A *verdict map* with jumps is another matter: at every new
//!   element the kernel checks all the others for loops, so that one took 50 µs among 300
//!   elements, 470 µs among 5,000 and 2 ms among 20,000.
//! - A batch that is **refused** (or only tried out) takes 5–15 ms: the kernel waits until
//!   nobody can see what it takes back. Asking first is cheaper than failing.
//! - Deleting takes 60 µs, but **closing** the socket then waits (up to 15 ms) until the
//!   deleted objects of the namespace are gone. A caller that has other slow work left, such
//!   as removing a link, keeps the [`Nft`] until that is done, and the two waits overlap.

pub(crate) mod attr;
mod batch;
mod comment;
mod element;
mod expr;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod key;
mod look;
mod place;
mod rule;
pub(crate) mod socket;

use std::time::{Duration, Instant};

use nix::errno::Errno;

pub use batch::Batch;
pub use element::Element;
pub use expr::{Expr, Header, Meta, REG1, REG2, Verdict, word};
pub use key::{Key, KeyType, SetType, protocol_name};
pub use place::{Chain, Family, Hook, HookPoint, Set, Table};
pub use rule::Rule;

use super::{Error, NetNs, Result};
use attr::Writer;
use batch::{GETGEN, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, SUBSYSTEM};
use socket::{Answer, Socket};

/// For how long a listing is begun again when something changed meanwhile. One takes well
/// below a millisecond, so that this is many attempts.
const PATIENCE: Duration = Duration::from_secs(5);

/// A NETLINK_NETFILTER socket in one namespace.
#[derive(Debug, Default)]
pub struct Nft {
    socket: Option<Socket>,
    sequence: u32,
}

/// What went over a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams sent.
    pub requests: usize,
    /// Bytes sent.
    pub bytes_out: usize,
    /// Bytes received.
    pub bytes_in: usize,
}

impl Nft {
    /// A socket in the namespace of the thread that makes the first request, opened then:
    /// most DELs need it, but a plugin without rules should not pay for it.
    pub fn new() -> Self {
        Nft::default()
    }

    /// A socket in `ns`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_in(ns: &NetNs) -> Result<Self> {
        Ok(Nft { socket: Some(ns.enter(Socket::open)??), sequence: 0 })
    }

    /// What went over this socket up to now.
    pub fn traffic(&self) -> Traffic {
        self.socket.as_ref().map(|socket| socket.traffic).unwrap_or_default()
    }

    fn socket(&mut self) -> Result<&mut Socket> {
        if self.socket.is_none() {
            self.socket = Some(Socket::open()?);
        }
        self.socket.as_mut().ok_or_else(|| Error::new("open an nf_tables socket", Errno::EBADF))
    }

    /// Makes all changes of the batch, or none.
    ///
    /// # Errors
    /// The kernel's for the first change that it refused.
    pub fn commit(&mut self, batch: &Batch) -> Result<()> {
        self.transact(batch, true)
    }

    /// Whether the kernel would make the changes: it makes them and takes them back before
    /// anybody sees them.
    ///
    /// # Errors
    /// As [`Nft::commit`].
    pub fn try_out(&mut self, batch: &Batch) -> Result<()> {
        self.transact(batch, false)
    }

    fn transact(&mut self, batch: &Batch, end: bool) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let first = self.sequence.wrapping_add(1);
        let Some((writer, last)) = batch.finish(first, end) else {
            return Err(Error::new(batch.what(0), Errno::EMSGSIZE).reason("an attribute of more than 64 KiB"));
        };
        self.sequence = last.wrapping_add(1);
        let socket = self.socket()?;
        socket.send(writer.finished().unwrap_or_default(), batch.what(0))?;

        let mut failure: Option<Error> = None;
        let mut overrun = None;
        loop {
            let received = socket.receive(batch.what(0), overrun.is_none(), |sequence, answer| {
                // Anything else is left over from a request that was given up.
                let index = sequence.wrapping_sub(first);
                if index > last.wrapping_sub(first) {
                    return false;
                }
                if let Answer::Refused(errno, reason) = answer {
                    failure.get_or_insert_with(|| Error::new(batch.what(index), errno).reason(reason));
                }
                // An answer to the batch's beginning speaks for the batch as a whole.
                sequence == last || index == 0
            });
            match received {
                Ok(false) => {}
                Ok(true) => return failure.map_or(Ok(()), Err),
                // Many refusals can overrun the receive buffer: the first ones are still in it.
                Err(err) if err.is(Errno::ENOBUFS) && overrun.is_none() => overrun = Some(err),
                Err(err) => return Err(failure.or(overrun).unwrap_or(err)),
            }
        }
    }

    /// Sends a query and gives each object of the answer to `each`.
    fn query(
        &mut self,
        kind: u16,
        family: u8,
        dump: bool,
        what: &str,
        fill: impl Fn(&mut Writer),
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let flags = NLM_F_REQUEST | if dump { NLM_F_DUMP } else { NLM_F_ACK };
        let mut writer = Writer::default();
        writer.message((SUBSYSTEM << 8) | kind, flags, family, 0, &fill);
        writer.number(sequence);
        let socket = self.socket()?;
        let Some(bytes) = writer.finished() else {
            return Err(Error::new(what, Errno::EMSGSIZE));
        };
        socket.send(bytes, what)?;
        let mut outcome = Ok(());
        let mut interrupted = false;
        while !socket.receive(what, true, |answered, answer| {
            if answered != sequence {
                return false;
            }
            match answer {
                Answer::Object(message) => {
                    each(message.kind & 0xff, message.attrs());
                    false
                }
                Answer::Done => true,
                Answer::Refused(errno, reason) => {
                    outcome = Err(Error::new(what, errno).reason(reason));
                    true
                }
                Answer::Interrupted => {
                    interrupted = true;
                    false
                }
            }
        })? {}
        if interrupted {
            return Err(Error::new(what, Errno::EAGAIN).reason(socket::INTERRUPTED));
        }
        outcome
    }

    /// A listing, begun again when something changed while it was made.
    fn list<T>(
        &mut self,
        kind: u16,
        reply: u16,
        family: Family,
        what: &str,
        fill: impl Fn(&mut Writer),
        parse: impl Fn(&[u8]) -> Vec<T>,
    ) -> Result<Vec<T>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.list_once(kind, reply, family, what, &fill, &parse) {
                Err(err) if err.is(Errno::EAGAIN) && Instant::now() < deadline => {}
                other => return other,
            }
        }
    }

    fn list_once<T>(
        &mut self,
        kind: u16,
        reply: u16,
        family: Family,
        what: &str,
        fill: impl Fn(&mut Writer),
        parse: impl Fn(&[u8]) -> Vec<T>,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        self.query(kind, family.number(), true, what, fill, |kind, attrs| {
            if kind == reply {
                found.extend(parse(attrs));
            }
        })?;
        Ok(found)
    }

    /// Whether nf_tables answers at all.
    ///
    /// # Errors
    /// The kernel's, EOPNOTSUPP or EINVAL where it has none.
    pub fn probe(&mut self) -> Result<()> {
        self.query(GETGEN, 0, false, "ask for nf_tables", |_| {}, |_, _| {})
    }

    /// A number that every change to nf_tables in this namespace raises.
    ///
    /// # Errors
    /// The kernel's, EPROTO if it doesn't say.
    pub fn generation(&mut self) -> Result<u32> {
        const NFTA_GEN_ID: u16 = 1;
        let what = "ask for the generation of nf_tables";
        let mut generation = None;
        self.query(
            GETGEN,
            0,
            false,
            what,
            |_| {},
            |_, attrs| generation = attr::find_u32(attrs, NFTA_GEN_ID),
        )?;
        generation.ok_or_else(|| Error::new(what, Errno::EPROTO))
    }

    /// Asks for one object, and hands it to `each`; whether it is there.
    fn ask(
        &mut self,
        kind: u16,
        family: Family,
        what: &str,
        fill: impl Fn(&mut Writer),
        each: impl FnMut(u16, &[u8]),
    ) -> Result<bool> {
        match self.query(kind, family.number(), false, what, fill, each) {
            Ok(()) => Ok(true),
            Err(err) if err.is(Errno::ENOENT) => Ok(false),
            Err(err) => Err(err),
        }
    }

    fn exists(&mut self, kind: u16, family: Family, what: &str, fill: impl Fn(&mut Writer)) -> Result<bool> {
        self.ask(kind, family, what, fill, |_, _| {})
    }
}
