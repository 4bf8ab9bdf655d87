//! A packet that the host receives as if a host outside had sent it.
//!
//! A veth pair carries it. One end is in a namespace without a name, and the other end is on the host. A packet that
//! arrives there is redirected to the link behind which the sender is (`tc … action mirred ingress redirect`). The
//! kernel removes the pair with the namespace, which ends with the process.

use std::os::fd::AsFd;

use cnimble_netlink::link::{self, Change, Mac, NewVeth};
use cnimble_netlink::packet::{Socket, SocketPurpose};
use cnimble_netlink::tc::{qdisc, redirect};
use cnimble_netlink::{Error, NetNs, Netlink, sysctl};

use super::packet::Probe;

/// The name of the pair's end in the namespace.
const PEER: &str = "probe0";

/// A pair of links that delivers packets to a link of the host. It is deleted on drop.
pub(crate) struct Injector {
    host: Netlink,
    name: String,
    index: u32,
    mac: Mac,
    socket: Socket,
    /// The pair's other end is in this namespace, and is removed with it.
    _peer_ns: NetNs,
}

impl Injector {
    /// Makes the pair. The link `target` of the host will receive the packets.
    ///
    /// # Errors
    /// Fails if the kernel refuses a step, for example without the module act_mirred.
    pub(crate) fn new(target: u32, probe: &Probe) -> Result<Self, Error> {
        let mut host = Netlink::open()?;
        let peer_ns = NetNs::create()?;
        let name = format!("cnitrace{}", std::process::id() % 10_000_000);
        let pair = NewVeth {
            name: &name,
            mac: None,
            master: None,
            up: false,
            mtu: None,
            peer_name: PEER,
            peer_mac: None,
            peer_ns: peer_ns.as_fd(),
        };
        let index = host.create_link(link::add_veth(&pair))?.index;
        host.execute(qdisc::add_ingress(index, &name))?;
        host.execute(redirect::add_receiver(index, &name, target))?;
        // Otherwise the host would solicit routers on it. Without IPv6 there is no such switch.
        drop(sysctl::write(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1"));
        let up = Change { up: Some(true), ..Change::default() };
        host.execute(link::set(index, &name, &up))?;
        // The peer is set up second. So it has a carrier at once, and a queue for packets.
        let socket = peer_ns.enter(|| {
            let mut peer = Netlink::open()?;
            let end = peer.link(PEER)?;
            peer.execute(link::set(end.index, PEER, &up))?;
            let opened = Socket::open(SocketPurpose::Ip(probe.pattern()), end.index);
            opened.map_err(|err| Error::io("open a packet socket", &err))
        })??;
        let mac = host.link_at(index)?.mac.unwrap_or(Mac([0xff; 6]));
        Ok(Injector { host, name, index, mac, socket, _peer_ns: peer_ns })
    }

    /// Sends a packet that begins with the header of IP.
    pub(crate) fn send(&self, packet: &[u8]) -> Result<(), Error> {
        self.socket.send_ip(self.mac, packet).map_err(|err| Error::io("send the probe", &err))
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        // Without this the kernel would remove the pair only a moment after the process has ended.
        if let Err(err) = self.host.execute(link::del(self.index, &self.name)) {
            log::debug!("{err}");
        }
    }
}
