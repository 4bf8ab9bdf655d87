//! Makes the conditions of nf_tables rules that match a probe and its answer.

use cnimble_netlink::nft::{Expr, Header, Meta, REG1};
use cnimble_netlink::raw::Transport;

use super::packet::{ERRORS, Probe};

impl Probe {
    /// Returns the conditions of rules that match the probe, and its answer. Each list is one rule.
    pub(super) fn conditions(&self) -> Vec<Vec<Expr>> {
        let protocol = is_protocol(self.protocol_number());
        let number = self.number.to_be_bytes();
        let number_at = if self.transport == Transport::Tcp { 4 } else { 8 };
        let probe = [&protocol[..], &has(number_at, &number)].concat();
        match self.transport {
            Transport::Icmp => vec![probe],
            Transport::Tcp => vec![probe, [&protocol[..], &self.acknowledges()].concat()],
            Transport::Udp => {
                // The port from which the answer comes may be translated after this rule.
                let to_sender = has(2, &self.flow.from_port.to_be_bytes());
                vec![probe, [&protocol[..], &to_sender].concat()]
            }
        }
    }

    /// Returns the conditions of rules that match the answer to a probe of TCP or UDP, and an error that quotes the
    /// probe.
    pub(super) fn answer_conditions(&self) -> Vec<Vec<Expr>> {
        let is_v4 = self.flow.to.is_ipv4();
        let (icmp, quoted_header, errors) = if is_v4 { (1, 20, ERRORS[0]) } else { (58, 40, ERRORS[1]) };
        let ports =
            [has(0, &self.flow.to_port.to_be_bytes()), has(2, &self.flow.from_port.to_be_bytes())].concat();
        let mut answer = [&is_protocol(self.protocol_number())[..], &ports].concat();
        // The probe's number is the sequence number of a SYN, or the first data of a datagram.
        let number_at = if self.transport == Transport::Tcp {
            answer.extend(self.acknowledges());
            4
        } else {
            8
        };
        // An error has eight bytes in front of the header that it quotes.
        let quotes = has(8 + quoted_header + number_at, &self.number.to_be_bytes());
        let mut rules = vec![answer];
        for kind in errors {
            rules.push([&is_protocol(icmp)[..], &has(0, &[*kind]), &quotes].concat());
        }
        rules
    }

    /// Returns the condition for a segment that acknowledges the SYN.
    fn acknowledges(&self) -> [Expr; 2] {
        has(8, &self.number.wrapping_add(1).to_be_bytes())
    }
}

/// Returns the condition for packets of this protocol (`IPPROTO_…`).
pub(super) fn is_protocol(number: u8) -> [Expr; 2] {
    [Expr::meta(Meta::L4proto, REG1), Expr::equal(REG1, &[number])]
}

/// Returns the condition for packets with these bytes at this offset of the transport header.
pub(super) fn has(offset: u32, value: &[u8]) -> [Expr; 2] {
    let length = u32::try_from(value.len()).unwrap_or(0);
    [Expr::payload(Header::Transport, offset, length, REG1), Expr::equal(REG1, value)]
}
