//! nf_tables over netlink, without a child process.
//!
//! [`Batch`] collects changes, [`Nft::commit`] hands them to the kernel, which makes all or none; the other methods of
//! [`Nft`] look things up. `man nft` explains tables, chains, rules, sets and maps; linux/netfilter/nf_tables.h has the
//! messages.
//!
//! The parser of the crate netlink-packet-netfilter does not check the length of a reply's attributes (`NlaBuffer::new`
//! panics on a short one). It would also decode whole rules of other programs to find the target of a jump.
//!
//! # What it costs
//!
//! Measured on Linux 6.18:
//!
//! - A query takes 3–5 µs. Adding an element to a *set* takes some 20 µs at any size. For a *verdict map* with jumps the
//!   kernel checks all elements for loops at every new one: 470 µs among 5,000 and 2 ms among 20,000.
//! - A batch that is **refused** (or only tried out) takes 5–15 ms, because the kernel waits until no packet can see the
//!   undone objects. A query first is cheaper than a failure.
//! - Deleting takes 60 µs, but **closing** the socket then waits up to 15 ms for the deleted objects of the namespace. A
//!   caller with other slow work, such as removing a link, keeps the [`Nft`] until then, and the two waits overlap.

mod batch;
mod destination;
mod element;
mod ends;
mod exact;
mod expr;
mod key;
mod missing;
mod objects;
pub mod packet;
mod query;
mod rule;
mod trace;
mod udata;
mod xtables;

use std::time::{Duration, Instant};

use nix::errno::Errno;

pub use batch::Batch;
use batch::Purpose;
pub use destination::Destination;
pub(super) use destination::ports_of_match;
pub use element::Element;
pub(super) use ends::prefix_of;
pub use ends::{End, Ends};
pub use expr::{Expr, Header, Meta, REG1, REG2, Verdict, word};
pub use key::{Key, KeyType, protocol_name};
pub use objects::{BaseChain, Chain, Family, Hook, HookPoint, Set, Table};
pub use rule::Rule;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use trace::read as read_trace;
pub use trace::{DROPPING_CHAIN, DeviceChain, HookedChain, TraceMonitor, TraceStep};

use super::socket::{Next, Protocol, Socket};
use super::uapi::netlink::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use super::uapi::nf_tables::{NFT_MSG_GETGEN, NFTA_GEN_ID};
use super::uapi::nfnetlink::{NFGENMSG, NFNL_SUBSYS_NFTABLES, NFPROTO_UNSPEC};
use super::wire::{self, Attributes, Message, Writer};
use super::{Error, IfPresent as _, NetNs, Result};

/// The errors by which a kernel without nf_tables refuses a query.
const LACKING: [Errno; 4] = [Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::EINVAL];

/// The time for which a listing is repeated that other changes disturb. One listing takes well below a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

/// A NETLINK_NETFILTER socket in one namespace, for nf_tables.
#[derive(Debug, Default)]
pub struct Nft {
    socket: Option<Socket>,
    /// The socket was opened in a given namespace, which need not be that of the thread. So it is never opened anew.
    elsewhere: bool,
    generation: Option<u32>,
}

/// A query for objects of nf_tables.
struct Query<'a> {
    kind: u16,
    family: u8,
    what: &'a str,
}

impl<'a> Query<'a> {
    fn new(kind: u16, family: Family, what: &'a str) -> Self {
        Query { kind, family: family.number(), what }
    }

    /// Whether the message answers the query: `NFT_MSG_NEW…` is the number before `NFT_MSG_GET…`.
    fn is_answer(&self, message: &Message<'_>) -> bool {
        message.kind.wrapping_add(1) == type_of(self.kind)
    }
}

impl Nft {
    /// A socket in the namespace of the thread that makes the first request. It is opened then, so a plugin without
    /// rules does not pay for it.
    ///
    /// A listing that ends early ([`Nft::rules_until`]) drops the socket, and the next request opens another. The
    /// kernel then deletes the tables that belong to the socket. So make such tables with [`Nft::open_in`] or
    /// [`Nft::open_here`].
    pub fn new() -> Self {
        Nft::default()
    }

    /// Opens a socket in `ns`.
    pub fn open_in(ns: &NetNs) -> Result<Self> {
        Ok(Nft {
            socket: Some(ns.enter(|| Socket::open(Protocol::Netfilter))??),
            elsewhere: true,
            generation: None,
        })
    }

    fn socket(&mut self) -> Result<&mut Socket> {
        if self.socket.is_none() {
            self.socket = Some(Socket::open(Protocol::Netfilter)?);
        }
        self.socket.as_mut().ok_or_else(|| Error::new("open an nf_tables socket", Errno::EBADF))
    }

    /// Makes all changes of the batch, or none.
    ///
    /// # Errors
    /// Fails with the first change that the kernel refused. Then nothing has changed. After another error, such as a
    /// missing answer, it is unknown whether the changes were made.
    pub fn commit(&mut self, batch: &Batch) -> Result<()> {
        self.transact(batch, Purpose::Commit)
    }

    /// Whether the kernel would make the changes: it makes them and takes them back before they take effect.
    ///
    /// # Errors
    /// Fails as [`Nft::commit`] does.
    pub fn try_out(&mut self, batch: &Batch) -> Result<()> {
        self.transact(batch, Purpose::TryOut)
    }

    fn transact(&mut self, batch: &Batch, purpose: Purpose) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let what = batch.what(0);
        let socket = self.socket()?;
        let first = socket.take_numbers(batch.messages());
        let Some(bytes) = batch.finish(first, purpose) else {
            return Err(Error::new(what, Errno::EMSGSIZE).reason("an attribute of more than 64 KiB"));
        };
        // The number of the last message that makes a change. The beginning has the number 0, and the end isn't
        // acknowledged.
        let last = batch.messages() - 2;
        socket.send(what, &bytes)?;
        let mut failure = None;
        let received = socket.acknowledgements(what, first, &mut |index, ack| {
            // Other answers are left over from a request that was given up.
            if index > last {
                return Next::More;
            }
            let refused = Protocol::Netfilter.refusal(batch.what(index), ack);
            failure = failure.take().or(refused.map(|err| missing::in_batch(err, batch, index)));
            // An answer to the batch's beginning speaks for the batch as a whole.
            if index == last || index == 0 { Next::Done } else { Next::More }
        });
        // Many refusals can overrun the receive buffer: the first ones are still in it.
        failure.map_or(received, Err)
    }

    /// Lists objects. Begins again if something changed meanwhile.
    ///
    /// # Errors
    /// Fails with EAGAIN if something changes during all listings of [`PATIENCE`].
    fn list<T>(
        &mut self,
        query: &Query<'_>,
        fill: impl FnOnce(&mut Writer),
        parse: impl Fn(u8, Attributes<'_>) -> Vec<T>,
    ) -> Result<Vec<T>> {
        self.list_until(query, fill, parse, |_| false)
    }

    /// Lists objects up to the first that is `last`, with it. The kernel writes a list while it is read, so a rest that
    /// is not read costs nothing.
    ///
    /// Such an early end drops the socket, whose next answers would be those of the list, and with it the tables that
    /// the socket owns. A socket in a given namespace is kept, and reads the list to its end.
    fn list_until<T>(
        &mut self,
        query: &Query<'_>,
        fill: impl FnOnce(&mut Writer),
        parse: impl Fn(u8, Attributes<'_>) -> Vec<T>,
        last: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>> {
        let what = query.what;
        let deadline = Instant::now() + PATIENCE;
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        let message = wire::message(type_of(query.kind), flags, &header(query.family), fill);
        loop {
            let (mut found, mut ended) = (Vec::new(), false);
            // A new socket would be in another namespace.
            let to_the_end = self.elsewhere;
            let listed = self.socket()?.each_listed(what, &message, &mut |message| {
                if query.is_answer(message) && !ended {
                    let family = message.body.first().copied().unwrap_or(NFPROTO_UNSPEC);
                    let read = parse(family, Attributes::behind(message.body, NFGENMSG));
                    ended = read.iter().any(&last);
                    found.extend(read);
                }
                Ok(if ended && !to_the_end { Next::Done } else { Next::More })
            });
            if ended && !to_the_end {
                self.socket = None;
            }
            match listed.map_err(|err| missing::in_query(err, query.kind))? {
                true => return Ok(found),
                false if Instant::now() < deadline => {}
                false => return Err(Error::new(what, Errno::EAGAIN).reason("it changed while it was listed")),
            }
        }
    }

    /// Returns true if and only if the kernel has nf_tables.
    ///
    /// # Errors
    /// Fails with any error except those of a kernel without nf_tables. EPERM or ENOMEM says nothing about the kernel.
    pub fn is_supported(&mut self) -> Result<bool> {
        let query = Query { kind: NFT_MSG_GETGEN, family: NFPROTO_UNSPEC, what: "ask for nf_tables" };
        let asked = self.get(&query, |_| {}, |attrs| attrs.u32_be(NFTA_GEN_ID));
        self.generation = asked.as_ref().ok().copied().flatten();
        asked.map(|_| true).default_for(&LACKING)
    }

    /// The generation that [`Nft::is_supported`] was told by the way, for a [`Batch::only_in`]. What was looked up since
    /// was there in it, unless the batch is refused.
    pub fn told_generation(&self) -> Option<u32> {
        self.generation
    }

    /// Returns a number that every change to nf_tables in this namespace raises.
    ///
    /// # Errors
    /// Fails if the kernel refuses the query, and with EPROTO if its answer has no number.
    pub fn generation(&mut self) -> Result<u32> {
        let what = "ask for the generation of nf_tables";
        let query = Query { kind: NFT_MSG_GETGEN, family: NFPROTO_UNSPEC, what };
        let generation = self.get(&query, |_| {}, |attrs| attrs.u32_be(NFTA_GEN_ID))?;
        generation.ok_or_else(|| Error::new(what, Errno::EPROTO))
    }

    /// Looks up one object. Returns `None` if it is missing, or if `read` returns `None` for it.
    fn find<T>(
        &mut self,
        query: &Query<'_>,
        fill: impl FnOnce(&mut Writer),
        read: impl FnMut(Attributes<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(query, fill, read).default_for(&[Errno::ENOENT])
    }

    fn get<T>(
        &mut self,
        query: &Query<'_>,
        fill: impl FnOnce(&mut Writer),
        mut read: impl FnMut(Attributes<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let message = wire::message(type_of(query.kind), flags, &header(query.family), fill);
        let mut found = None;
        let asked = self.socket()?.ask(query.what, message, &mut |message| {
            if query.is_answer(message) {
                found = read(Attributes::behind(message.body, NFGENMSG));
            }
            Ok(())
        });
        asked.map(|()| found).map_err(|err| missing::in_query(err, query.kind))
    }
}

/// The type of a message, `NFT_MSG_…`, in `struct nlmsghdr`.
const fn type_of(message: u16) -> u16 {
    NFNL_SUBSYS_NFTABLES << 8 | message
}

fn header(family: u8) -> [u8; NFGENMSG] {
    [family, 0, 0, 0]
}
