//! One interface in a pod, with its client and what that needs of the kernel.

use std::net::IpAddr;
use std::path::Path;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{NetNs, Netlink, addr};
use nix::errno::Errno;

use super::flags::Flags;
use crate::client::{Client, Identity, To};
use crate::frame;
use crate::lease::Lease;
use crate::message::{Answer, Question, code};
use crate::socket::{Kind, Socket};
use crate::talk::{Wanted, Whose};

/// An Ethernet frame's, and jumbo ones.
const LARGEST_PACKET: usize = 9216;
/// Packets that are read in one go; the rest waits for the others.
const BURST: usize = 32;
/// What a client's ID has room for, with the byte in front.
const LONGEST_ID: usize = 254;

/// What has come by a socket.
pub(super) enum Heard {
    Answer(Mac, Answer),
    Holder(Mac),
}

/// An interface, in a namespace that is held open: it can say good-bye when its pod has died.
pub(super) struct Pod {
    pub(super) wanted: Wanted,
    pub(super) mac: Mac,
    pub(super) client: Client,
    /// The verb that waits for the lease, and until when.
    pub(super) waiting: Option<(u64, u64)>,
    /// What is on the interface, whoever put it there.
    applied: Option<Lease>,
    netns: NetNs,
    index: u32,
    dhcp: Option<Socket>,
    arp: Option<Socket>,
}

impl Pod {
    /// Finds the interface, for a first lease or with one out of a file.
    ///
    /// # Errors
    /// Code 8 without the namespace, code 3 without the interface; the kernel's.
    pub(super) fn find(
        flags: &Flags,
        wanted: Wanted,
        now: u64,
        known: Option<(Mac, Option<Lease>)>,
    ) -> Result<Pod, Error> {
        let path = flags.on_host(&wanted.netns);
        let netns = NetNs::find(&path)?.ok_or_else(|| {
            let why = format!("failed to open netns \"{}\"", path.display());
            Error::new(Code::INVALID_NETNS, why).details("no network namespace is there")
        })?;
        let ifname = &wanted.whose.ifname;
        let link = Netlink::open_in(&netns)?.find_link(ifname)?;
        let link = link.ok_or_else(|| missing(ifname, &wanted.netns))?;
        let mac = link.mac.ok_or_else(|| {
            Error::new(Code::UNSUPPORTED_FIELD, format!("interface {ifname} has no hardware address"))
                .details("DHCP needs Ethernet")
        })?;
        if known.as_ref().is_some_and(|(before, _)| *before != mac) {
            // Another pod's, in a namespace that has the number of the one before.
            return Err(missing(ifname, &wanted.netns));
        }
        let pause = flags.timeout.min(flags.resend_max);
        let identity = identity(flags, &wanted, &link, mac);
        let applied = known.and_then(|(_, lease)| lease);
        let client = match applied.clone() {
            Some(lease) => Client::with(identity, pause, now, lease),
            None => Client::new(identity, pause, now),
        };
        let (index, waiting, dhcp, arp) = (link.index, None, None, None);
        Ok(Pod { wanted, mac, client, waiting, applied, netns, index, dhcp, arp })
    }

    /// Whether the path that the runtime named leads to the namespace no more. What says nothing about it (no
    /// descriptor is left) is no death.
    pub(super) fn has_died(&self, flags: &Flags) -> bool {
        match NetNs::find(&flags.on_host(&self.wanted.netns)) {
            Ok(Some(there)) => there.same_as(&self.netns).is_ok_and(|same| !same),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Whether the path leads to the same namespace as `path`.
    pub(super) fn is_in(&self, path: &Path) -> bool {
        self.netns.is_at(path)
    }

    /// The sockets that are open.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.dhcp.iter().chain(&self.arp)
    }

    /// Opens what the client's state needs, and closes what it doesn't.
    pub(super) fn listen(&mut self) -> std::io::Result<()> {
        let open = |wanted: bool, kind: Kind, now: Option<Socket>| match (wanted, now) {
            (false, _) => Ok(None),
            (true, Some(socket)) => Ok(Some(socket)),
            (true, None) => {
                self.netns.enter(|| Socket::open(kind, self.index)).map_err(|err| other(&err))?.map(Some)
            }
        };
        let (dhcp, arp) = (self.dhcp.take(), self.arp.take());
        let dhcp = open(self.client.listens(), Kind::Dhcp, dhcp);
        let arp = open(self.client.probes(), Kind::Arp, arp);
        (self.dhcp, self.arp) = (dhcp?, arp?);
        Ok(())
    }

    /// Sends a message.
    pub(super) fn send(&self, question: &Question, from: std::net::Ipv4Addr, to: To) -> std::io::Result<()> {
        let (ip, mac) = match to {
            To::Everybody => (std::net::Ipv4Addr::BROADCAST, Mac([0xff; 6])),
            To::Server(ip, mac) => (ip, mac),
        };
        let packet = frame::wrap(from, ip, &question.encode());
        match &self.dhcp {
            Some(socket) => socket.send(mac, &packet),
            // A good-bye of one that waits for nothing.
            None => self
                .netns
                .enter(|| Socket::open(Kind::Dhcp, self.index))
                .map_err(|err| other(&err))??
                .send(mac, &packet),
        }
    }

    /// Asks the link who has the address.
    pub(super) fn probe(&self, address: std::net::Ipv4Addr) -> std::io::Result<()> {
        let packet = frame::probe(self.mac, address);
        self.arp.as_ref().map_or(Ok(()), |arp| arp.send(Mac([0xff; 6]), &packet))
    }

    /// What has come. A socket that fails is closed: the next message opens it anew.
    pub(super) fn hear(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut buffer = [0; LARGEST_PACKET];
        if let Some(socket) = &self.dhcp {
            let failed = drain(socket, &mut buffer, |from, packet| {
                let answer = frame::unwrap(packet).and_then(|message| Answer::parse(message, self.mac));
                heard.extend(answer.map(|answer| Heard::Answer(from, answer)));
            });
            if failed {
                self.dhcp = None;
            }
        }
        if let (Some(socket), Some(address)) = (&self.arp, self.client.probed()) {
            let failed = drain(socket, &mut buffer, |_, packet| {
                heard.extend(frame::holder(packet, address).map(Heard::Holder));
            });
            if failed {
                self.arp = None;
            }
        }
        heard
    }

    /// The verb that waits gets the lease, and puts it on the interface.
    pub(super) fn handed_over(&mut self, lease: &Lease) {
        self.applied = Some(lease.clone());
    }

    /// The interface follows its lease; what has changed, if anything.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn renewed(&mut self, lease: &Lease) -> Result<Option<String>, Error> {
        let same = |old: &Lease| {
            (old.net(), old.gateway, &old.routes) == (lease.net(), lease.gateway, &lease.routes)
        };
        let change = if self.applied.as_ref().is_some_and(same) {
            None
        } else {
            self.follow(self.applied.as_ref(), Some(lease))?;
            let from = self.applied.as_ref().map_or("nothing".to_owned(), |old| old.net().to_string());
            Some(format!("{} has followed from {from} to {}", self.wanted.whose.ifname, lease.net()))
        };
        self.applied = Some(lease.clone());
        Ok(change)
    }

    /// The interface loses its lease.
    ///
    /// # Errors
    /// The kernel's; not that the interface is gone.
    pub(super) fn taken(&mut self) -> Result<(), Error> {
        let applied = self.applied.take();
        match applied.map_or(Ok(()), |lease| self.follow(Some(&lease), None)) {
            Err(err) if err.code == Code::UNKNOWN_CONTAINER => Ok(()),
            outcome => outcome,
        }
    }

    /// The interface gets what `new` gives in place of what `old` gave.
    fn follow(&self, old: Option<&Lease>, new: Option<&Lease>) -> Result<(), Error> {
        let mut inside = Netlink::open_in(&self.netns)?;
        let name = &self.wanted.whose.ifname;
        let Some(link) = inside.find_link(name)?.filter(|link| link.index == self.index) else {
            return Err(missing(name, &self.wanted.netns));
        };
        // The old address first: with the first of a network the kernel takes the others of that network.
        if let Some(old) = old {
            for wanted in self.routes(old) {
                tolerant(inside.execute(route::del(&wanted, name)))?;
            }
            tolerant(inside.execute(addr::del(link.index, name, old.net())))?;
        }
        if let Some(new) = new {
            tolerant(inside.execute(addr::add(link.index, name, new.net(), false)))?;
            for wanted in self.routes(new) {
                tolerant(inside.execute(route::prepend(&wanted, name)))?;
            }
        }
        Ok(())
    }

    fn routes(&self, lease: &Lease) -> Vec<NewRoute> {
        let routes = lease.routes(self.wanted.priority).into_iter();
        let gateway = lease.gateway.map(IpAddr::V4);
        routes
            .map(|route| NewRoute {
                dst: route.dst,
                // As the plugins do: without a next hop it is the address's gateway, unless it is the link.
                via: route.gw.or(gateway.filter(|_| route.scope.is_none())),
                index: self.index,
                src: None,
                mtu: route.mtu,
                advmss: route.advmss,
                priority: route.priority,
                table: route.table,
                scope: route.scope,
                onlink: false,
            })
            .collect()
    }
}

fn identity(flags: &Flags, wanted: &Wanted, link: &Link, mac: Mac) -> Identity {
    let mut own = wanted.provide.clone();
    if !own.iter().any(|(code, _)| *code == code::CLIENT_ID) {
        own.insert(0, (code::CLIENT_ID, client_id(&wanted.whose)));
    }
    // An ipvlan takes what is for its addresses, and it has none yet.
    let broadcast = flags.broadcast || link.kind == "ipvlan";
    Identity { mac, broadcast, own, request: wanted.request.clone() }
}

/// As the Go daemon makes it, so that a server gives the same address to either.
fn client_id(whose: &Whose) -> Vec<u8> {
    let mut id = vec![0];
    id.extend(whose.words().bytes().take(LONGEST_ID));
    id
}

fn missing(ifname: &str, netns: &str) -> Error {
    Error::new(Code::UNKNOWN_CONTAINER, format!("there is no interface {ifname} in {netns}"))
}

fn other(err: &cnimble_netlink::Error) -> std::io::Error {
    std::io::Error::other(err.to_string())
}

/// What is there already, or gone already, is no failure.
fn tolerant(outcome: cnimble_netlink::Result<()>) -> Result<(), Error> {
    match outcome {
        Err(err) if err.is(Errno::EEXIST) || err.is_missing() => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Reads what has come; whether the socket has failed.
fn drain(socket: &Socket, buffer: &mut [u8], mut each: impl FnMut(Mac, &[u8])) -> bool {
    for _ in 0..BURST {
        match socket.receive(buffer) {
            Ok(Some((from, packet))) => each(from, packet),
            Ok(None) => return false,
            // ENETDOWN: the interface was down for a moment.
            Err(err) if err.raw_os_error() == Some(libc::ENETDOWN) => return false,
            Err(_) => return true,
        }
    }
    false
}
