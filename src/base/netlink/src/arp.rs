//! Addresses of IPv4 that other hosts have, by ARP (RFC 826), and probes for them (RFC 5227).

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::link::Mac;
use super::packet::{Socket, SocketPurpose};
use super::{Error, Result};

/// The pauses after each probe: PROBE_NUM, PROBE_MIN and ANNOUNCE_WAIT of RFC 5227, section 1.1.
const PROBES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(1), Duration::from_secs(2)];

const BROADCAST: Mac = Mac([0xff; 6]);

/// A socket of a link for probes of some addresses.
#[derive(Debug)]
pub struct Asking {
    socket: Socket,
    mac: Mac,
    ips: Vec<Ipv4Addr>,
}

impl Asking {
    /// Opens a packet socket of the link with this index and hardware address, in the namespace of this thread.
    ///
    /// # Errors
    /// Fails with EPERM without CAP_NET_RAW.
    pub fn open(index: u32, mac: Mac, ips: Vec<Ipv4Addr>) -> Result<Self> {
        let socket = Socket::open(SocketPurpose::Arp, index)
            .map_err(|err| Error::io("open a socket for ARP", &err))?;
        Ok(Asking { socket, mac, ips })
    }

    /// Probes for the addresses, for four seconds.
    ///
    /// # Errors
    /// Fails with EADDRINUSE if another host has one of them, or probes for it as well. Fails with EINTR if a signal
    /// came.
    pub fn probe(&self) -> Result<()> {
        self.probe_with(&PROBES)
    }

    /// Probes once before each pause. The neighbour of an address answers within milliseconds.
    ///
    /// # Errors
    /// Fails as [`Asking::probe`] does.
    pub fn probe_with(&self, pauses: &[Duration]) -> Result<()> {
        for pause in pauses {
            self.send(probe)?;
            self.listen(Instant::now() + *pause)?;
        }
        Ok(())
    }

    /// Announces the addresses (RFC 5227, section 2.3): like a probe, but with the address as that of the sender, too.
    ///
    /// # Errors
    /// Fails with ENETDOWN if the link is down.
    pub fn announce(&self) -> Result<()> {
        self.send(|mac, ip| request(mac, ip, ip))
    }

    fn send(&self, packet: impl Fn(Mac, Ipv4Addr) -> Vec<u8>) -> Result<()> {
        for ip in &self.ips {
            let sent = self.socket.send(BROADCAST, &packet(self.mac, *ip));
            sent.map_err(|err| Error::io(format!("ask for {ip} by ARP"), &err))?;
        }
        Ok(())
    }

    fn listen(&self, end: Instant) -> Result<()> {
        let what = "wait for answers by ARP";
        let mut buffer = [0; 64];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            // Rounded up: a wait of less than a millisecond would be none.
            let wait = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            poll(&mut fds, wait).map_err(|errno| Error::new(what, errno))?;
            let received = self.socket.receive(&mut buffer).map_err(|err| Error::io(what, &err))?;
            if let Some((_, packet)) = received
                && let Some(ip) = self.ips.iter().find(|ip| self.is_claimed(packet, **ip))
            {
                let reason = format!("another host on the network has {ip}");
                return Err(Error::new("probe for addresses by ARP", Errno::EADDRINUSE).reason(reason));
            }
        }
    }

    /// Returns whether a packet shows that another host has the address, or probes for it.
    fn is_claimed(&self, packet: &[u8], ip: Ipv4Addr) -> bool {
        holder(packet, ip).or_else(|| prober(packet, ip)).is_some_and(|mac| mac != self.mac)
    }
}

/// Returns an ARP probe (RFC 5227), which asks who has this address.
pub fn probe(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    request(mac, Ipv4Addr::UNSPECIFIED, address)
}

fn request(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend_from_slice(&mac.0);
    packet.extend_from_slice(&sender.octets());
    packet.extend_from_slice(&[0; 6]);
    packet.extend_from_slice(&target.octets());
    packet
}

/// The hardware address of a host that an ARP packet shows to have `address`, rather than to probe for it.
pub fn holder(packet: &[u8], address: Ipv4Addr) -> Option<Mac> {
    let (mac, sender, _) = read(packet)?;
    (sender == address).then_some(mac)
}

/// Returns the hardware address of a host that probes for `address`.
fn prober(packet: &[u8], address: Ipv4Addr) -> Option<Mac> {
    let (mac, sender, target) = read(packet)?;
    (sender.is_unspecified() && target == address).then_some(mac)
}

/// Reads an ARP packet of Ethernet and IPv4: the sender, and the address that it is about.
fn read(packet: &[u8]) -> Option<(Mac, Ipv4Addr, Ipv4Addr)> {
    if packet.get(..6)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    Some((Mac(packet.get(8..14)?.try_into().ok()?), ip_at(packet, 14)?, ip_at(packet, 24)?))
}

/// Returns the address in a packet that begins at an offset. Returns `None` if the packet is too short.
fn ip_at(packet: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
    Some(octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arp_tells_who_has_an_address() {
        let theirs = Mac([4; 6]);
        let address = Ipv4Addr::new(10, 1, 2, 9);
        assert_eq!(holder(&probe(theirs, address), address), None, "it wants it");
        assert_eq!(prober(&probe(theirs, address), address), Some(theirs));
        let mut reply = probe(theirs, Ipv4Addr::UNSPECIFIED);
        reply[7] = 2;
        reply[14..18].copy_from_slice(&address.octets());
        assert_eq!(holder(&reply, address), Some(theirs));
        assert_eq!(holder(&request(theirs, address, address), address), Some(theirs), "an announcement");
        for length in 0..reply.len() {
            assert_eq!(holder(&reply[..length], address), None);
        }
    }
}
