//! The rules of iptables' legacy variant, without a child process: the socket options that the command asks with
//! (linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h).
//!
//! **The question makes a missing table.** So ask only for one that `/proc/net/ip_tables_names` lists.

use std::mem::{align_of, size_of};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

use ipnetwork::IpNetwork;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::nft::{End, Ends, Family, Verdict, prefix_of};
use super::wire;
use super::{Error, Result};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, the same for both families.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;

/// `XT_TABLE_MAXNAMELEN`
const NAME: usize = 32;
/// The hooks of netfilter.
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `struct ipt_getinfo`: a name, the hooks, five entries and five underflows, a count and a size.
const INFO: usize = NAME + 4 + 2 * 4 * HOOKS.len() + 8;
/// The largest table that is read, in bytes. One of 200,000 rules has 64 MiB.
const MOST: usize = 128 << 20;
/// Attempts while the table changes between the two questions.
const ATTEMPTS: usize = 20;

/// The length of `struct xt_entry_match` and `xt_entry_target` before their data.
const PART: usize = 32;
/// `XT_RETURN`
const RETURN: i32 = -5;

/// A rule of the legacy variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The chain of the rule.
    pub chain: String,
    /// The number of the rule in its chain, from 1.
    pub number: usize,
    /// The networks that it is for.
    pub ends: Ends,
    /// The protocol, if it is for one.
    pub protocol: Option<u8>,
    /// The destination's ports; empty for any.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Whether some packets of the chain may not match it. It then names an address, an interface or a protocol, or has
    /// a match other than a comment.
    pub is_conditional: bool,
    /// The verdict or the jump. `None` for a rule with another target, or with none.
    pub verdict: Option<Verdict>,
    /// The name of another target, such as SNAT.
    pub target: Option<String>,
}

/// The places of the fields of an entry.
struct Layout {
    /// The length of an address.
    address: usize,
    /// The protocol, the flags and the inverted conditions.
    protocol: usize,
    flags: usize,
    inverted: usize,
    goto: u8,
    /// The field of offsets to the target and to the next entry.
    offsets: usize,
    /// The length of the entry before its matches.
    header: usize,
}

impl Layout {
    fn for_family(family: Family) -> Self {
        let (address, protocol, flags, inverted, goto, offsets) = match family {
            Family::Ipv4 => (4, 80, 82, 83, 0x02, 88),
            _ => (16, 128, 131, 132, 0x04, 140),
        };
        // Offsets, a number and the counters, which are 64 bits each.
        let header = (offsets + 8_usize).next_multiple_of(align_of::<u64>()) + 16;
        Layout { address, protocol, flags, inverted, goto, offsets, header }
    }
}

/// Returns the rules of a table. The table must exist, or the kernel makes it.
pub fn rules(family: Family, table: &str) -> Result<Vec<Rule>> {
    read_table(family, table)
        .map_err(|errno| Error::new(format!("read the legacy table {table} of {family}"), errno))
}

/// Returns the rules of a table. Fails with EAGAIN if other programs keep changing it, and with EFBIG if it is too
/// large.
fn read_table(family: Family, table: &str) -> nix::Result<Vec<Rule>> {
    let domain = if family == Family::Ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(domain, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    for _ in 0..ATTEMPTS {
        let mut info = named(table, INFO);
        get_option(&socket, family, GET_INFO, &mut info)?;
        let size = u32_at(&info, INFO - 4).and_then(|size| usize::try_from(size).ok()).unwrap_or_default();
        if size > MOST {
            return Err(Errno::EFBIG);
        }
        let begin = (NAME + size_of::<u32>()).next_multiple_of(align_of::<u64>());
        let mut entries = named(table, begin + size);
        if let Some(field) = entries.get_mut(NAME..NAME + 4) {
            field.copy_from_slice(info.get(INFO - 4..).unwrap_or_default());
        }
        match get_option(&socket, family, GET_ENTRIES, &mut entries) {
            Ok(()) => return Ok(read(family, &info, entries.get(begin..).unwrap_or_default())),
            // Another program has changed the table.
            Err(Errno::EAGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EAGAIN)
}

fn named(table: &str, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = table.bytes().take(NAME - 1).collect();
    bytes.resize(length, 0);
    bytes
}

fn get_option(
    socket: &OwnedFd,
    family: Family,
    option: i32,
    bytes: &mut [u8],
) -> std::result::Result<(), Errno> {
    let level = if family == Family::Ipv4 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let mut length = libc::socklen_t::try_from(bytes.len()).map_err(|_| Errno::EFBIG)?;
    // SAFETY: the kernel writes at most `length` bytes to `bytes`, which is that long.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, bytes.as_mut_ptr().cast(), &raw mut length)
    };
    Errno::result(answer).map(drop)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads entries. A broken one ends the list.
pub(crate) fn read(family: Family, info: &[u8], entries: &[u8]) -> Vec<Rule> {
    let layout = Layout::for_family(family);
    let begins = hook_places(info, NAME + 4);
    let underflows = hook_places(info, NAME + 4 + 4 * HOOKS.len());
    let (mut rules, mut chains) = (Vec::new(), Vec::new());
    let (mut chain, mut number) = (String::new(), 0);
    let mut at = 0;
    while let Some(entry) = entry_at(&layout, entries, at) {
        if let Some(hook) = begins.iter().position(|place| *place == Some(at)) {
            (chain, number) = (HOOKS.get(hook).copied().unwrap_or_default().to_owned(), 0);
        }
        let next = at + entry.length;
        if let Some(name) = entry.begins {
            (chain, number) = (name, 0);
            chains.push((next, chain.clone()));
        } else if !underflows.contains(&Some(at)) {
            number += 1;
            rules.push((next, entry.standard, Rule { chain: chain.clone(), number, ..entry.rule }));
        }
        at = next;
    }
    let rules = rules.into_iter().map(|(next, standard, mut rule)| {
        if let Some(standard) = standard {
            rule.verdict = standard.resolve(next, &chains);
        }
        rule
    });
    rules.collect()
}

/// Returns the offsets of entries in a `struct ipt_getinfo` that begin at `begin`, one for each hook. Returns `None`
/// for a hook that the table does not have.
fn hook_places(info: &[u8], begin: usize) -> [Option<usize>; HOOKS.len()] {
    let valid = u32_at(info, NAME).unwrap_or_default();
    std::array::from_fn(|hook| {
        let place = u32_at(info, begin + 4 * hook).map(|at| at as usize);
        place.filter(|_| valid & 1 << hook != 0)
    })
}

/// The target without a name: a verdict, or the offset of a chain.
struct Standard {
    verdict: i32,
    is_goto: bool,
}

impl Standard {
    /// Returns the verdict. `next` is the offset of the next entry, and each chain has the offset of its first rule.
    /// Returns `None` if the target leads only to the next entry, or into nothing.
    fn resolve(&self, next: usize, chains: &[(usize, String)]) -> Option<Verdict> {
        let chain = usize::try_from(self.verdict).ok().filter(|to| *to != next);
        let chain = chain.and_then(|to| chains.iter().find(|(begin, _)| *begin == to));
        match (self.verdict, chain) {
            (-2, _) => Some(Verdict::Accept),
            (-1, _) => Some(Verdict::Drop),
            (RETURN, _) => Some(Verdict::Return),
            (_, Some((_, chain))) if self.is_goto => Some(Verdict::Goto(chain.clone())),
            (_, Some((_, chain))) => Some(Verdict::Jump(chain.clone())),
            _ => None,
        }
    }
}

struct Entry {
    length: usize,
    /// The name of the chain that begins behind this entry.
    begins: Option<String>,
    standard: Option<Standard>,
    rule: Rule,
}

fn entry_at(layout: &Layout, entries: &[u8], at: usize) -> Option<Entry> {
    let bytes = entries.get(at..)?;
    let target_at = usize::from(u16_at(bytes, layout.offsets)?);
    let length = usize::from(u16_at(bytes, layout.offsets + 2)?);
    let bytes = bytes.get(..length).filter(|_| length > layout.header)?;
    let target = bytes.get(target_at..)?;
    let name = wire::text(target.get(2..PART - 1)?);
    let inverted = bytes.get(layout.inverted).copied().unwrap_or_default();
    let protocol = u16_at(bytes, layout.protocol).filter(|number| *number != 0 && inverted & 0x40 == 0);
    let mut rule = Rule {
        chain: String::new(),
        number: 0,
        ends: ends(layout, bytes, inverted),
        protocol: protocol.and_then(|number| u8::try_from(number).ok()),
        ports: Vec::new(),
        // Addresses, interfaces with their masks, and the protocol.
        is_conditional: bytes.get(..layout.protocol + 2)?.iter().any(|byte| *byte != 0),
        verdict: None,
        target: None,
    };
    let mut place = layout.header;
    while place < target_at {
        let part = bytes.get(place..target_at)?;
        let size = usize::from(u16_at(part, 0)?);
        let (name, info) = (wire::text(part.get(2..PART - 1)?), part.get(PART..size)?);
        rule.is_conditional |= name != "comment";
        rule.ports.extend(super::nft::ports_of_match(&name, info));
        place += size;
    }
    let (mut standard, mut begins) = (None, None);
    match name.as_str() {
        "" => {
            let verdict = u32_at(target, PART)?.cast_signed();
            let flags = bytes.get(layout.flags).copied().unwrap_or_default();
            standard = Some(Standard { verdict, is_goto: flags & layout.goto != 0 });
        }
        "ERROR" => begins = Some(wire::text(target.get(PART..)?)),
        "REJECT" => rule.verdict = Some(Verdict::Drop),
        _ => rule.target = Some(name),
    }
    Some(Entry { length, begins, standard, rule })
}

/// The four addresses at the beginning: source, destination and their masks.
fn ends(layout: &Layout, entry: &[u8], inverted: u8) -> Ends {
    let mut fields = entry.chunks_exact(layout.address);
    let [source, destination, source_mask, destination_mask] = std::array::from_fn(|_| fields.next());
    Ends {
        source: end(source, source_mask, inverted & 0x08 != 0).into_iter().collect(),
        destination: end(destination, destination_mask, inverted & 0x10 != 0).into_iter().collect(),
    }
}

/// Returns the end with this address and mask. Returns `None` if the mask takes every address or has gaps.
fn end(address: Option<&[u8]>, mask: Option<&[u8]>, is_excluded: bool) -> Option<End> {
    let address: IpAddr = wire::ip(address?)?;
    let network = IpNetwork::new(address, prefix_of(mask?)?).ok()?;
    (network.prefix() > 0).then_some(End { network, is_excluded })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::testing::in_netns;

    fn run(command: &str) -> bool {
        Command::new("sh").args(["-c", command]).status().is_ok_and(|status| status.success())
    }

    #[test]
    fn rules_of_the_command_are_read() {
        in_netns("rules_of_the_command_are_read", || {
            for (family, ipt, net, host) in [
                (Family::Ipv4, "iptables-legacy", "10.1.0.0/16", "192.0.2.1/32"),
                (Family::Ipv6, "ip6tables-legacy", "fd00:1::/64", "2001:db8::1/128"),
            ] {
                let ours = [
                    "-N own",
                    &format!("-A POSTROUTING -s {net} ! -d {host} -m comment --comment no -j ACCEPT"),
                    "-A POSTROUTING -o eth7 -j RETURN",
                    "-A POSTROUTING -m comment --comment all -j own",
                    "-A POSTROUTING -g own",
                    &format!("-A own -p udp --dport 53:54 -j RETURN -s {host}"),
                    "-A own -j MASQUERADE",
                    "-A PREROUTING -p tcp -m multiport --dports 80,90:99 -j ACCEPT",
                    "-A PREROUTING -m comment --comment nothing",
                ];
                if !ours.iter().all(|rule| run(&format!("{ipt} -t nat {rule}"))) {
                    return eprintln!("SKIP rules_of_the_command_are_read: {ipt}");
                }
                let rules = rules(family, "nat").unwrap();
                let found: Vec<_> = rules.iter().filter(|rule| rule.chain == "POSTROUTING").collect();
                let [accept, ret, jump, goto] = found.as_slice() else { panic!("{rules:#?}") };
                let end = |text: &str, is_excluded| vec![End { network: text.parse().unwrap(), is_excluded }];
                assert_eq!(accept.ends, Ends { source: end(net, false), destination: end(host, true) });
                assert_eq!((accept.verdict.clone(), accept.number), (Some(Verdict::Accept), 1));
                assert_eq!(ret.verdict, Some(Verdict::Return));
                assert!(ret.is_conditional && ret.ends == Ends::default());
                assert_eq!(jump.verdict, Some(Verdict::Jump("own".into())));
                assert!(!jump.is_conditional);
                assert_eq!(goto.verdict, Some(Verdict::Goto("own".into())));
                let own: Vec<_> = rules.iter().filter(|rule| rule.chain == "own").collect();
                assert_eq!((own[0].protocol, own[0].ports.as_slice()), (Some(17), &[53..=54][..]));
                assert_eq!(own[0].ends.source, end(host, false));
                assert_eq!(own[1].target.as_deref(), Some("MASQUERADE"));
                let pre: Vec<_> = rules.iter().filter(|rule| rule.chain == "PREROUTING").collect();
                assert_eq!((pre[0].protocol, pre[0].ports.as_slice()), (Some(6), &[80..=80, 90..=99][..]));
                assert_eq!((pre[1].verdict.clone(), pre[1].is_conditional), (None, false));
            }
        });
    }

    #[test]
    fn masks_have_prefixes() {
        for (mask, prefix) in [
            (&[0, 0][..], Some(0)),
            (&[0xff, 0xf0], Some(12)),
            (&[0xff, 0xff], Some(16)),
            (&[0xff, 0x0f], None),
            (&[0x7f, 0xff], None),
            (&[0, 0xff], None),
        ] {
            assert_eq!(prefix_of(mask), prefix, "{mask:?}");
        }
    }

    #[test]
    fn broken_tables_are_read_without_a_panic() {
        let info = vec![0xff; INFO];
        for length in 0..400 {
            for byte in [0, 1, 0x70, 0xff] {
                read(Family::Ipv4, &info, &vec![byte; length]);
                read(Family::Ipv6, &info, &vec![byte; length]);
            }
        }
    }
}
