//! The packet that is followed, with its addresses, its protocol and its ports.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use cnimble_netlink::lookup::Packet;
use cnimble_netlink::raw::Transport;
use serde::Serialize;

/// `IPPROTO_SCTP`.
const SCTP: u8 = 132;

/// The protocol of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// The packet is an echo request.
    Icmp,
    Tcp,
    Udp,
    /// No probe of it is sent.
    Sctp,
}

impl Protocol {
    /// Returns the protocol of a probe. It is `None` if there is no such probe.
    pub fn transport(self) -> Option<Transport> {
        match self {
            Protocol::Icmp => Some(Transport::Icmp),
            Protocol::Tcp => Some(Transport::Tcp),
            Protocol::Udp => Some(Transport::Udp),
            Protocol::Sctp => None,
        }
    }

    /// Returns the number in IP headers (`IPPROTO_…`).
    pub fn number(self, v4: bool) -> u8 {
        self.transport().map_or(SCTP, |transport| transport.number(v4))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The receiver as a user writes it: `HOST`, `HOST:PORT` or `HOST:PORT/PROTOCOL`, with an IPv6 address in brackets
/// before a port. Without a port it is for an echo request, and without a protocol for TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// An address, the name of a pod, `gateway` or `internet`.
    pub host: String,
    pub protocol: Protocol,
    /// The port, or 0 without one.
    pub port: u16,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let echo = |host: &str| Target { host: host.to_owned(), protocol: Protocol::Icmp, port: 0 };
        if text.parse::<IpAddr>().is_ok() {
            return Ok(echo(text));
        }
        // The name of a pod may contain a slash, so a protocol counts only after a port.
        let Some((host, port)) = text.rsplit_once(':') else {
            return if text.is_empty() { Err("the address is empty".to_owned()) } else { Ok(echo(text)) };
        };
        let (port, protocol) = match port.split_once('/') {
            None | Some((_, "tcp")) => (port.trim_end_matches("/tcp"), Protocol::Tcp),
            Some((port, "udp")) => (port, Protocol::Udp),
            Some((port, "sctp")) => (port, Protocol::Sctp),
            Some((_, other)) => {
                return Err(format!("{other} is no protocol that can be traced: tcp, udp or sctp"));
            }
        };
        let number: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
            format!("{port} is no port. An IPv6 address with a port needs brackets: [fd00::1]:80")
        })?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(Target { protocol, port: number, ..echo(host) })
    }
}

/// A packet and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The source. It is `None` until the pod's routes have chosen it.
    pub from: Option<IpAddr>,
    pub to: IpAddr,
    pub protocol: Protocol,
    pub from_port: u16,
    pub to_port: u16,
    /// The length of an echo request in bytes, with the header of IP. No router may fragment it. `None` is a packet so
    /// small that it fits everywhere.
    pub size: Option<u32>,
}

impl Flow {
    /// Returns the packet for a question to a namespace's routing tables. `input` is the link at which it arrives.
    pub(crate) fn packet(&self, input: Option<u32>) -> Packet {
        // The kernel takes ports of these two protocols alone.
        let has_ports = matches!(self.protocol, Protocol::Tcp | Protocol::Udp);
        let transport = (self.protocol.number(self.to.is_ipv4()), self.from_port, self.to_port);
        let transport = has_ports.then_some(transport);
        Packet { to: self.to, from: self.from, input, output: None, transport }
    }

    /// Returns the answer to the packet, which was sent from `from`. Its size does not matter, because the kernel lets
    /// an echo reply be fragmented.
    pub(crate) fn answer(&self, from: IpAddr) -> Flow {
        Flow {
            from: Some(self.to),
            to: from,
            protocol: self.protocol,
            from_port: self.to_port,
            to_port: self.from_port,
            size: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_read() {
        let read = |text: &str| text.parse::<Target>().map(|of| (of.host, of.protocol, of.port));
        let named = |host: &str, protocol, port| Ok((host.to_owned(), protocol, port));
        assert_eq!(read("10.0.0.1"), named("10.0.0.1", Protocol::Icmp, 0));
        assert_eq!(read("fd00::1"), named("fd00::1", Protocol::Icmp, 0));
        assert_eq!(read("10.0.0.1:80"), named("10.0.0.1", Protocol::Tcp, 80));
        assert_eq!(read("10.0.0.1:53/udp"), named("10.0.0.1", Protocol::Udp, 53));
        assert_eq!(read("[fd00::1]:80/tcp"), named("fd00::1", Protocol::Tcp, 80));
        assert_eq!(read("10.0.0.1:9/sctp"), named("10.0.0.1", Protocol::Sctp, 9));
        assert_eq!(read("shop/web:80"), named("shop/web", Protocol::Tcp, 80));
        assert_eq!(read("shop/web"), named("shop/web", Protocol::Icmp, 0));
        assert_eq!(read("gateway"), named("gateway", Protocol::Icmp, 0));
        for bad in ["", "10.0.0.1:0", "10.0.0.1:http", "10.0.0.1:1/dccp", "10.0.0.1:70000"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
