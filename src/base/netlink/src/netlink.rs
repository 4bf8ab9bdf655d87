//! The socket for links, addresses, routes, neighbours and tc.

use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use super::exchange::{Listed, lacking};
use super::request::encode;
use super::socket::{Next, Protocol, Socket};
use super::uapi::netlink::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_REQUEST};
use super::wire::{self, Message, Parsed};
use super::{Error, IfPresent as _, NetNs, Request, Result};

/// Attempts to read a list that changes while the kernel writes it.
pub(super) const DUMP_ATTEMPTS: usize = 20;

/// The maximum number of requests in one send. Their answers must fit into the socket's receive buffer.
pub(super) const BATCH: usize = 64;

/// The longest list that a bounded socket reads, in objects. A pod can fill its namespace with millions of addresses,
/// routes and links.
pub(super) const LONGEST_LIST: usize = 16_384;

/// A NETLINK_ROUTE socket in one namespace.
#[derive(Debug)]
pub struct Netlink {
    pub(super) socket: Socket,
    /// The longest list that is read, in objects.
    pub(super) longest: usize,
    /// The error of a list that was too long. The kernel has not written the rest of it, and takes no other request for
    /// a list through this socket.
    pub(super) too_long: Option<Error>,
}

impl Netlink {
    /// Opens a socket in the current namespace.
    pub fn open() -> Result<Self> {
        Ok(Netlink { socket: Socket::open(Protocol::Route)?, longest: usize::MAX, too_long: None })
    }

    /// Opens a socket in `ns`, which is entered only for this moment.
    pub fn open_in(ns: &NetNs) -> Result<Self> {
        ns.enter(Netlink::open)?
    }

    /// Opens a socket in `ns` for a look at another's namespace. A list of more than 16,384 objects is an error with
    /// E2BIG, as is each later list. Use [`open_in`](Self::open_in) for a DEL, which must succeed in any namespace.
    pub fn open_bounded(ns: &NetNs) -> Result<Self> {
        Ok(Netlink { longest: LONGEST_LIST, ..Netlink::open_in(ns)? })
    }

    /// Makes one change.
    ///
    /// # Errors
    /// The error names the request and has the kernel's explanation.
    pub fn execute(&mut self, request: Request) -> Result<()> {
        self.execute_all(vec![request])
    }

    /// Does what [`execute`](Self::execute) does, and once more if the answer is lost. EEXIST may then mean that the
    /// first time has made the object.
    pub fn execute_until_answered(&mut self, request: &Request) -> Result<()> {
        match self.execute(request.clone()) {
            Err(err) if err.is(Errno::ENOBUFS) => self.execute(request.clone()),
            answered => answered,
        }
    }

    /// Makes several changes in order, up to 64 in one send. Requests behind a failed one are tried all the same. If
    /// the answer is lost (ENOBUFS), changes that make nothing new are sent once more.
    ///
    /// # Errors
    /// Fails with the first refusal. If a request can't be sent at all (a name that is too long), none is.
    pub fn execute_all(&mut self, requests: Vec<Request>) -> Result<()> {
        let mut whats = Vec::with_capacity(requests.len());
        let mut messages = Vec::with_capacity(requests.len());
        for request in requests {
            whats.push(request.what);
            messages.push(request.bytes?);
        }
        let mut first = Ok(());
        for (whats, messages) in whats.chunks(BATCH).zip(messages.chunks_mut(BATCH)) {
            let mut outcome = self.send_batch(whats, messages);
            // The answer is lost: the changes have been made, or refused. Those that make nothing new can be made twice.
            if outcome.as_ref().is_err_and(|err| err.is(Errno::ENOBUFS))
                && messages.iter().all(|message| wire::flags(message, 0) & NLM_F_CREATE == 0)
            {
                outcome = self.send_batch(whats, messages);
            }
            first = first.and(outcome);
        }
        first
    }

    /// Sends the messages at once. None asks for an echo, and only the last one for an acknowledgement, which saves a
    /// system call for each. The kernel reports errors of the others before it.
    fn send_batch(&mut self, whats: &[String], messages: &mut [Vec<u8>]) -> Result<()> {
        let Some(last) = whats.last() else {
            return Ok(());
        };
        let last_index = messages.len().saturating_sub(1);
        let first = self.socket.take_numbers(u32::try_from(messages.len()).unwrap_or(u32::MAX));
        let mut datagram = Vec::new();
        let mut seq = first;
        for (index, message) in messages.iter_mut().enumerate() {
            seq = seq.wrapping_add(wire::number(message, seq));
            let unwanted = if index < last_index { NLM_F_ACK | NLM_F_ECHO } else { NLM_F_ECHO };
            let flags = wire::flags(message, 0) & !unwanted;
            wire::set_flags(message, 0, flags);
            datagram.extend_from_slice(message);
        }
        self.socket.send(last, &datagram)?;
        let mut refused = None;
        self.socket.acknowledgements(last, first, &mut |index, ack| {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            if let Some(what) = whats.get(index) {
                let message = messages.get(index).map_or(&[][..], Vec::as_slice);
                refused = refused
                    .take()
                    .or_else(|| Protocol::Route.refusal(what, ack).map(|err| lacking(err, message)));
            }
            if index == last_index { Next::Done } else { Next::More }
        })?;
        refused.map_or(Ok(()), Err)
    }

    /// Returns the last object that `read` finds in the answers.
    pub(super) fn get<T>(
        &mut self,
        what: &str,
        message: Vec<u8>,
        mut read: impl FnMut(&Message<'_>) -> Parsed<Option<T>>,
    ) -> Result<Option<T>> {
        let mut found = None;
        self.socket.ask(what, message, &mut |message| {
            found = read(message)?.or(found.take());
            Ok(())
        })?;
        Ok(found)
    }

    /// Does what [`get`](Self::get) does, and returns `None` if the kernel answers with one of the errors `missing`.
    pub(super) fn find<T>(
        &mut self,
        what: &str,
        message: Vec<u8>,
        missing: &[Errno],
        read: impl FnMut(&Message<'_>) -> Parsed<Option<T>>,
    ) -> Result<Option<T>> {
        self.get(what, message, read).default_for(missing)
    }

    /// Lists objects. A list that changed while the kernel wrote it is asked for again.
    ///
    /// # Errors
    /// Fails with E2BIG if the list is longer than this socket reads, and with EINTR if it keeps changing.
    pub(super) fn dump<T>(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
        read: impl FnMut(&Message<'_>) -> Parsed<Option<T>>,
    ) -> Result<Vec<T>> {
        self.dump_raw(what, &encode(message, NLM_F_REQUEST | NLM_F_DUMP), read)
    }

    pub(super) fn dump_raw<T>(
        &mut self,
        what: &str,
        message: &[u8],
        mut read: impl FnMut(&Message<'_>) -> Parsed<Option<T>>,
    ) -> Result<Vec<T>> {
        if let Some(err) = &self.too_long {
            return Err(err.clone());
        }
        for _ in 0..DUMP_ATTEMPTS {
            match self.socket.list_up_to(self.longest, what, message, &mut read)? {
                Listed::Whole(found) => return Ok(found),
                Listed::Changed => {}
                Listed::TooLong => {
                    let reason = format!("there are more than {} of them", self.longest);
                    let err = Error::new(what, Errno::E2BIG).explained(reason);
                    self.too_long = Some(err.clone());
                    return Err(err);
                }
            }
        }
        Err(Error::new(what, Errno::EINTR)
            .reason(format!("the list changed while it was read, {DUMP_ATTEMPTS} times in a row")))
    }
}
