//! IPsec policies: `ip xfrm policy`. linux/xfrm.h.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use super::socket::{Protocol, Socket};
use super::uapi::netlink::{NLM_F_DUMP, NLM_F_REQUEST};
use super::uapi::xfrm::{
    XFRM_MSG_GETPOLICY, XFRM_MSG_NEWPOLICY, XFRM_POLICY_BLOCK, XFRM_POLICY_FWD, XFRM_POLICY_IN,
    XFRM_POLICY_OUT, XFRM_USERPOLICY_ID, XFRM_USERPOLICY_INFO, XFRMA_TMPL,
};
use super::wire::{self, Attributes, Malformed, Message, Parsed, u8_at, u16_ne, u32_ne};
use super::{Error, IfPresent as _, Result};

const SHORT: Malformed = Malformed("an IPsec policy is too short");

/// The packets that an IPsec policy decides about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpsecDirection {
    /// Packets for this host.
    In,
    /// Packets that leave, also forwarded ones.
    Out,
    /// Packets that are forwarded.
    Forward,
}

impl fmt::Display for IpsecDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpsecDirection::In => "in",
            IpsecDirection::Out => "out",
            IpsecDirection::Forward => "fwd",
        })
    }
}

/// What an IPsec policy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpsecAction {
    /// It drops its packets.
    Block,
    /// It lets them pass as they are.
    Pass,
    /// It lets them pass in IPsec: out of this host encrypted, and into it only if they were.
    Transform,
}

/// A policy with the conditions that are known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpsecPolicy {
    /// The packets that it decides about.
    pub direction: IpsecDirection,
    /// The sources.
    pub from: IpNetwork,
    /// The destinations.
    pub to: IpNetwork,
    /// The protocol of its packets (`IPPROTO_…`). 0 is any.
    pub protocol: u8,
    /// Whether it has conditions that these fields lack: ports or a link.
    pub more: bool,
    /// Policies with a lower number come first.
    pub priority: u32,
    /// What it does.
    pub action: IpsecAction,
}

/// Lists the policies of this thread's network namespace. A kernel without IPsec has none.
///
/// # Errors
/// Fails with EAGAIN if the list changes while it is read.
pub fn policies() -> Result<Vec<IpsecPolicy>> {
    let what = "list IPsec policies";
    let socket = Socket::open(Protocol::Xfrm).map(Some);
    let Some(mut socket) = socket.default_for(&[Errno::EPROTONOSUPPORT])? else { return Ok(Vec::new()) };
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let message = wire::message(XFRM_MSG_GETPOLICY, flags, &[0; XFRM_USERPOLICY_ID], |_| {});
    let listed = socket.list(what, &message, read)?;
    listed.ok_or_else(|| Error::new(what, Errno::EAGAIN).reason("it changed while it was listed"))
}

/// Reads a policy. `None` for one of a single socket, and for another message.
fn read(message: &Message<'_>) -> Parsed<Option<IpsecPolicy>> {
    if message.kind != XFRM_MSG_NEWPOLICY {
        return Ok(None);
    }
    // `struct xfrm_userpolicy_info` begins with `struct xfrm_selector`.
    let body = message.body;
    let info = body.get(..XFRM_USERPOLICY_INFO).ok_or(SHORT)?;
    let byte = |offset| u8_at(info, offset).ok_or(SHORT);
    let direction = match byte(160)? {
        XFRM_POLICY_IN => IpsecDirection::In,
        XFRM_POLICY_OUT => IpsecDirection::Out,
        XFRM_POLICY_FWD => IpsecDirection::Forward,
        _ => return Ok(None),
    };
    let family = u16_ne(info, 40).ok_or(SHORT)?;
    let (to, from) = (network(info, 0, family, byte(42)?)?, network(info, 16, family, byte(43)?)?);
    let masks = [34, 38].map(|offset| u16_ne(info, offset).unwrap_or(0));
    let link = u32_ne(info, 48).ok_or(SHORT)?;
    let transforms = Attributes::behind(body, XFRM_USERPOLICY_INFO).find(XFRMA_TMPL)?.is_some();
    let action = match byte(161)? {
        XFRM_POLICY_BLOCK => IpsecAction::Block,
        _ if transforms => IpsecAction::Transform,
        _ => IpsecAction::Pass,
    };
    Ok(Some(IpsecPolicy {
        direction,
        from,
        to,
        protocol: byte(44)?,
        more: link != 0 || masks != [0, 0],
        priority: u32_ne(info, 152).ok_or(SHORT)?,
        action,
    }))
}

/// Reads an address with its prefix length. The family 0 is any address, and is read as that of IPv4.
fn network(info: &[u8], offset: usize, family: u16, prefix: u8) -> Parsed<IpNetwork> {
    let bytes: [u8; 16] = *info.get(offset..).and_then(<[u8]>::first_chunk).ok_or(SHORT)?;
    let ip: IpAddr = if i32::from(family) == libc::AF_INET6 {
        Ipv6Addr::from(bytes).into()
    } else {
        let [a, b, c, d, ..] = bytes;
        Ipv4Addr::new(a, b, c, d).into()
    };
    IpNetwork::new(ip, prefix).map_err(|_| Malformed("an IPsec policy has an impossible prefix length"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::testing::in_netns;

    #[test]
    fn policies_are_listed() {
        in_netns("xfrm", || {
            assert_eq!(policies().unwrap(), []);
            for (direction, line) in [
                (IpsecDirection::Forward, "dir fwd src 10.1.0.0/24 dst 192.0.2.1/32 priority 7 action block"),
                (IpsecDirection::Out, "dir out src fd00::/64 dst ::/0 proto udp dport 53 priority 7"),
            ] {
                let args = ["xfrm", "policy", "add"].into_iter().chain(line.split(' '));
                let added = Command::new("ip").args(args).status();
                if !added.as_ref().is_ok_and(std::process::ExitStatus::success) {
                    return eprintln!(
                        "SKIP policies_are_listed: no ip, or a kernel without IPsec: {added:?}"
                    );
                }
                let found = policies().unwrap();
                let policy = found.iter().find(|of| of.direction == direction).unwrap();
                let words: Vec<&str> = line.split(' ').collect();
                assert_eq!(policy.from, words[3].parse().unwrap());
                assert_eq!(policy.to, words[5].parse().unwrap());
                assert_eq!(policy.priority, 7);
                let blocks = line.ends_with("block");
                let action = if blocks { IpsecAction::Block } else { IpsecAction::Pass };
                assert_eq!((policy.action, policy.more), (action, !blocks));
            }
        });
    }

    #[test]
    fn a_short_policy_is_refused() {
        let body = [0; XFRM_USERPOLICY_INFO - 1];
        let message = Message { kind: XFRM_MSG_NEWPOLICY, flags: 0, seq: 0, port: 0, body: &body };
        assert!(read(&message).is_err());
    }
}
