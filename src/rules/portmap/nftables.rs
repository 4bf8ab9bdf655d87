//! Port mappings in nf_tables: maps in the table `inet cnimble`.
//!
//! A mapping is one element of a map, from protocol and port (and address of the host, if it
//! is for one) to the pod's address and port, and one rule looks all of them up:
//!
//! ```text
//! dnat ip to meta l4proto . th dport map @portmap4
//! ```
//!
//! Only packets to an address of this host get there (`fib daddr type local`): somebody
//! else's port 80 is none of our business, although its packets may pass (CVE-2025-67499).

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use super::{Forward, Mapping, localnet};
use crate::net;
use crate::net::nft::{
    Batch, Element, Expr, Family, Header, Hook, HookPoint, Key, KeyType, Meta, Nft, REG1, SetType, Table,
    Verdict, word,
};
use crate::rules::Owner;
use crate::rules::elements::{self, Changes, Layout, Placed, Refusal};
use crate::rules::packet::{
    DESTINATION, SOURCE, load_address, load_network, network_name, network_named, octets, of_family,
};
use crate::spec::{Attachment, Code, Error};

pub(super) struct Portmap;

/// Where the mappings are looked up.
const DISPATCH: &str = "portmap";
const PREROUTING: &str = "portmap-prerouting";
const OUTPUT: &str = "portmap-output";
const POSTROUTING: &str = "portmap-postrouting";
const GUARD: &str = "portmap-guard";

/// Mappings for all addresses of the host, IPv4 and IPv6.
const PORTS: [&str; 2] = ["portmap4", "portmap6"];
/// Mappings for one address.
const ADDR_PORTS: [&str; 2] = ["portmap-addr4", "portmap-addr6"];
/// Pods that localhost may talk to.
const LOCAL: &str = "portmap-local4";
/// Links where `route_localnet` was switched on. No rule looks at it: it is a note for [`leave`].
const LINKS: &str = "portmap-localnet";
/// Pods that see the host instead of everybody.
const ALL: [&str; 2] = ["portmap-all4", "portmap-all6"];
/// Pods of a network: what comes from there is masqueraded. The network is in the name.
const HAIRPIN: &str = "portmap-hairpin-";

/// `priority dstnat`, `srcnat` and `raw` (nft(8)).
const DSTNAT: i32 = -100;
const SRCNAT: i32 = 100;
const RAW: i32 = -300;

/// `RTN_LOCAL` (linux/rtnetlink.h), `IPS_DST_NAT` (linux/netfilter/nf_conntrack_common.h).
const RTN_LOCAL: u32 = 2;
const IPS_DST_NAT: u32 = 0x20;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));

impl Layout for Portmap {
    const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
    const CHAINS: &'static [&'static str] = &[DISPATCH, PREROUTING, OUTPUT, POSTROUTING, GUARD];
    /// The mapping for one address is looked up before that for all.
    const FIXED: &'static [&'static str] = &[
        "portmap-addr4",
        "portmap4",
        "portmap-addr6",
        "portmap6",
        LOCAL,
        "portmap-all4",
        "portmap-all6",
        LINKS,
    ];
    /// Until [`leave`] has switched `route_localnet` off, the guard has to be there.
    const STAYS: bool = true;

    fn is_ours(set: &str) -> bool {
        Self::FIXED.contains(&set) || set.starts_with(HAIRPIN)
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let place = Self::TABLE.chain(chain);
        let (kind, hook, priority) = match chain {
            PREROUTING => ("nat", HookPoint::Prerouting, DSTNAT),
            OUTPUT => ("nat", HookPoint::Output, DSTNAT),
            POSTROUTING => ("nat", HookPoint::Postrouting, SRCNAT),
            GUARD => ("filter", HookPoint::Prerouting, RAW),
            _ => return batch.create_chain(place),
        };
        batch.create_base_chain(place, Hook { kind, hook, priority });
    }

    fn add_first_rules(batch: &mut Batch, chain: &str) {
        let rules = match chain {
            DISPATCH => vec![not_localhost6()],
            PREROUTING | OUTPUT => vec![to_this_host()],
            GUARD => vec![guard(DESTINATION), guard(SOURCE)],
            _ => Vec::new(),
        };
        for rule in rules {
            batch.add_rule(Self::TABLE.chain(chain), &rule, "");
        }
    }

    fn create_set(batch: &mut Batch, set: &str) {
        use KeyType::{InetProto, InetService};
        let place = Self::TABLE.set(set);
        if set == LINKS {
            return batch.create_set(place, &SetType { key: &[KeyType::Ifname], verdicts: false });
        }
        let Some(ip) = family(set) else { return };
        let addr = addr_type(ip);
        if PORTS.contains(&set) {
            batch.create_map(place, &[InetProto, InetService], &[addr, InetService]);
        } else if ADDR_PORTS.contains(&set) {
            batch.create_map(place, &[addr, InetProto, InetService], &[addr, InetService]);
        } else {
            batch.create_set(place, &SetType { key: &[addr], verdicts: false });
        }
    }

    fn add_rule(batch: &mut Batch, set: &str) {
        let Some(ip) = family(set) else { return };
        if PORTS.contains(&set) || ADDR_PORTS.contains(&set) {
            return batch.add_rule(Self::TABLE.chain(DISPATCH), &dnat(set, ip), "");
        }
        // Which sources are masqueraded on their way to a pod of the set.
        let sources = match set {
            LOCAL => Some((LOOPBACK, 8)),
            _ => hairpin_network(set).map(|network| (network.ip(), network.prefix())),
        };
        let mut rule = redirected(ip);
        if let Some((network, prefix)) = sources {
            rule.extend(load_network(network, SOURCE, prefix));
            rule.push(Expr::equal(REG1, &octets(network)));
        }
        rule.push(load_address(ip, DESTINATION));
        rule.push(Expr::in_set(REG1, set));
        rule.push(Expr::masquerade());
        batch.add_rule(Self::TABLE.chain(POSTROUTING), &rule, "");
    }
}

/// The family of a set of ours, as an address.
fn family(set: &str) -> Option<IpAddr> {
    match hairpin_network(set) {
        Some(network) => Some(network.ip()),
        None if set.ends_with('4') => Some(V4),
        None if set.ends_with('6') => Some(V6),
        None => None,
    }
}

fn addr_type(ip: IpAddr) -> KeyType {
    if ip.is_ipv4() { KeyType::Ipv4Addr } else { KeyType::Ipv6Addr }
}

fn name(names: [&'static str; 2], index: usize) -> &'static str {
    let [v4, v6] = names;
    if index == 0 { v4 } else { v6 }
}

fn for_family(names: [&'static str; 2], ip: IpAddr) -> &'static str {
    name(names, usize::from(ip.is_ipv6()))
}

/// `iifname != "lo" ip daddr 127.0.0.0/8 drop`, or the source: no packet from outside has such
/// an address. Before connection tracking, so that answers to localhost, which get their old
/// destination back after it, pass.
fn guard(end: (u32, u32)) -> Vec<Expr> {
    let mut lo = b"lo".to_vec();
    lo.resize(16, 0);
    let mut rule = vec![Expr::meta(Meta::Iifname, REG1), Expr::differ(REG1, &lo)];
    rule.extend(of_family(V4));
    rule.extend(load_network(LOOPBACK, end, 8));
    rule.push(Expr::equal(REG1, &octets(LOOPBACK)));
    rule.push(Expr::verdict(Verdict::Drop));
    rule
}

/// `fib daddr type local jump portmap`
fn to_this_host() -> Vec<Expr> {
    vec![
        Expr::destination_type(REG1),
        Expr::equal(REG1, &RTN_LOCAL.to_ne_bytes()),
        Expr::verdict(Verdict::Jump(DISPATCH.to_owned())),
    ]
}

/// `ip6 daddr ::1 return`: packets from ::1 can't leave the host. Rather a refusal at once than
/// silence.
fn not_localhost6() -> Vec<Expr> {
    let mut rule = of_family(V6);
    rule.push(load_address(V6, DESTINATION));
    rule.push(Expr::equal(REG1, &Ipv6Addr::LOCALHOST.octets()));
    rule.push(Expr::verdict(Verdict::Return));
    rule
}

/// `dnat ip to meta l4proto . th dport map @portmap4`, or with `ip daddr .` in front.
fn dnat(map: &str, ip: IpAddr) -> Vec<Expr> {
    // An address takes one word of the registers, or four.
    let behind = if ip.is_ipv4() { 1 } else { 4 };
    let mut rule = Vec::new();
    let mut at = 0;
    if ADDR_PORTS.contains(&map) {
        rule.extend(of_family(ip));
        rule.push(load_address(ip, DESTINATION));
        at = behind;
    }
    rule.push(Expr::meta(Meta::L4proto, word(at)));
    rule.push(Expr::payload(Header::Transport, 2, 2, word(at + 1)));
    rule.push(Expr::map(REG1, map, REG1));
    rule.push(Expr::dnat(ip.is_ipv6(), REG1, word(behind)));
    rule
}

/// `ct status dnat` and the family: packets of connections that were given a new destination.
fn redirected(ip: IpAddr) -> Vec<Expr> {
    let mut rule = vec![
        Expr::ct_status(REG1),
        Expr::mask(REG1, &IPS_DST_NAT.to_ne_bytes()),
        Expr::differ(REG1, &0_u32.to_ne_bytes()),
    ];
    rule.extend(of_family(ip));
    rule
}

/// `portmap-hairpin-10.1.0.0/16`
fn hairpin_set(pod: &IpNetwork) -> String {
    format!("{HAIRPIN}{}", network_name(pod))
}

fn hairpin_network(set: &str) -> Option<IpNetwork> {
    network_named(set.strip_prefix(HAIRPIN)?)
}

/// The element of a mapping, without a comment.
fn element(mapping: &Mapping, pod: &IpNetwork) -> Placed {
    let number = mapping.protocol.number();
    let (set, key) = match mapping.address() {
        Some(ip) => (for_family(ADDR_PORTS, ip), Key::ip(ip).and_port(number, mapping.host_port)),
        None => (for_family(PORTS, pod.ip()), Key::port(number, mapping.host_port)),
    };
    let target = Key::ip(pod.ip()).and_service(mapping.container_port);
    Placed { set: set.to_owned(), element: Element::mapped(key, target, "") }
}

/// The owner's comment with the number of its elements behind the tag, so that DEL knows
/// whether it has found all.
fn comment(owner: &Owner, count: usize) -> String {
    const LIMIT: usize = 128;
    let comment = owner.comment();
    let tag = owner.tag();
    let names = comment.strip_prefix(&tag).unwrap_or_default();
    let mut comment = format!("{tag}, of: {count}{names}");
    let mut end = comment.len().min(LIMIT);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    comment.truncate(end);
    comment
}

/// The number in a comment.
fn count_in(comment: &str) -> Option<usize> {
    let (_, rest) = comment.split_once(", of: ")?;
    rest.split(',').next()?.parse().ok()
}

fn wanted(owner: &Owner, forward: &Forward) -> Vec<Placed> {
    let mut wanted: Vec<Placed> = forward.targets().map(|(mapping, pod)| element(mapping, pod)).collect();
    let used: Vec<IpNetwork> =
        forward.addrs.iter().filter(|pod| forward.targets().any(|(_, used)| used == *pod)).copied().collect();
    for pod in used.iter().filter(|_| forward.snat) {
        let mut put = |set: String| {
            wanted.push(Placed { set, element: Element::new(Key::ip(pod.ip()), "") });
        };
        if forward.masq_all {
            put(for_family(ALL, pod.ip()).to_owned());
        } else {
            put(hairpin_set(pod));
        }
        if forward.localhost() == Some(pod.ip()) {
            put(LOCAL.to_owned());
        }
    }
    let comment = comment(owner, wanted.len());
    for placed in &mut wanted {
        placed.element.comment.clone_from(&comment);
    }
    wanted
}

/// How many elements DEL asks for one by one.
const ONE_BY_ONE: usize = 64;

/// Why nothing was added.
#[derive(Debug)]
pub(super) enum Refused {
    Kernel(net::Error),
    /// A port is another's.
    Taken(Error),
}

impl From<net::Error> for Refused {
    fn from(err: net::Error) -> Self {
        Refused::Kernel(err)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Kernel(err) => err.into(),
            Refused::Taken(err) => err,
        }
    }
}

pub(super) fn add(nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<Changes, Refused> {
    let wanted = wanted(owner, forward);
    refuse_overlap(nft, owner, &wanted)?;
    // A stale mapping of the same owner is replaced, and so is what stands for an address of
    // the pod: IPAM has given it to this one.
    let may = |old: &Element| old.data.is_none() || owner.owns(&old.comment);
    match elements::insert_many::<Portmap>(nft, &wanted, may) {
        Ok(changes) => Ok(changes),
        Err(Refusal::Kernel(err)) => Err(Refused::Kernel(err)),
        Err(Refusal::Taken(old)) => Err(taken(&old)),
    }
}

fn taken(old: &Element) -> Refused {
    let port = match old.key.as_port() {
        Some((_, protocol, port)) => {
            let protocol = Key::port(protocol, port).to_string();
            let protocol = protocol.split(' ').next().unwrap_or_default().to_owned();
            let addr = old.key.as_port().and_then(|(addr, ..)| addr);
            let on = addr.map(|addr| format!(" of {addr}")).unwrap_or_default();
            format!("host port {port}/{protocol}{on}")
        }
        None => format!("host port {}", old.key),
    };
    let target = old.data.as_ref().and_then(Key::as_service);
    let target = target.map(|(ip, port)| format!(" and leads to {ip} port {port}")).unwrap_or_default();
    let holder = old.comment.find("net: ").and_then(|at| old.comment.get(at..)).unwrap_or(&old.comment);
    Refused::Taken(
        Error::new(Code::CONFLICT, format!("{port} is already taken"))
            .details(format!("it belongs to {holder}{target}"))
            .details("if that container is gone, its DEL or a GC of its network frees the port"),
    )
}

/// A port of all addresses and the same port of one address, of different owners: the kernel
/// wouldn't mind, but one would take packets from the other.
fn refuse_overlap(nft: &mut Nft, owner: &Owner, wanted: &[Placed]) -> Result<(), Refused> {
    for index in [0, 1] {
        for (mine, others) in [(PORTS, ADDR_PORTS), (ADDR_PORTS, PORTS)] {
            let ports: HashMap<(u8, u16), &Placed> = wanted
                .iter()
                .filter(|placed| placed.set == name(mine, index))
                .filter_map(|placed| {
                    let (_, protocol, port) = placed.element.key.as_port()?;
                    Some(((protocol, port), placed))
                })
                .collect();
            if ports.is_empty() {
                continue;
            }
            let set = Portmap::TABLE.set(name(others, index));
            let there = match ports.keys().collect::<Vec<_>>().as_slice() {
                // A few are looked up; that way the many mappings of others cost nothing.
                few if mine == ADDR_PORTS && few.len() <= 8 => {
                    let mut there = Vec::new();
                    for (protocol, port) in few {
                        there.extend(nft.element(set, &Key::port(*protocol, *port))?);
                    }
                    there
                }
                _ => nft.elements(set)?,
            };
            for element in there {
                let port = element.key.as_port().map(|(_, protocol, port)| (protocol, port));
                if port.is_some_and(|port| ports.contains_key(&port)) && !owner.owns(&element.comment) {
                    return Err(taken(&element));
                }
            }
        }
    }
    Ok(())
}

pub(super) fn revert(nft: &mut Nft, changes: &Changes) -> net::Result<()> {
    elements::revert::<Portmap>(nft, changes)
}

/// Notes that `route_localnet` is about to be switched on.
pub(super) fn note_link(nft: &mut Nft, link: &str) -> net::Result<()> {
    let mut batch = Batch::new();
    batch.create_element(Portmap::TABLE.set(LINKS), &Element::new(Key::ifname(link), ""));
    match nft.commit(&batch) {
        // Noted before, and switched off by somebody since.
        Err(err) if err.is(Errno::EEXIST) => Ok(()),
        // Somebody deleted the set.
        Err(err) if err.is(Errno::ENOENT) => {
            let mut whole = Batch::new();
            Portmap::create_set(&mut whole, LINKS);
            whole.create_element(Portmap::TABLE.set(LINKS), &Element::new(Key::ifname(link), ""));
            nft.commit(&whole)
        }
        outcome => outcome,
    }
}

/// Switches `route_localnet` off again, unless others than those of `changes` need it by now.
pub(super) fn close_link(nft: &mut Nft, changes: &Changes, link: &str) -> net::Result<()> {
    let there = nft.elements(Portmap::TABLE.set(LOCAL))?;
    if there.iter().any(|element| !changes.has_inserted(LOCAL, element)) {
        return Ok(());
    }
    localnet::set(link, false)?;
    forget_links(nft, &[Element::new(Key::ifname(link), "")])
}

fn forget_links(nft: &mut Nft, links: &[Element]) -> net::Result<()> {
    let links: Vec<Placed> =
        links.iter().map(|element| Placed { set: LINKS.to_owned(), element: element.clone() }).collect();
    elements::delete::<Portmap>(nft, &links)
}

/// Mappings are gone, perhaps the last of a network: then its set goes; perhaps the last of all:
/// then `route_localnet` is switched off where it was switched on, and the part goes.
fn leave(nft: &mut Nft, removed: &[Placed]) -> net::Result<()> {
    // Nearly always a look at the sets that they were in says that there are others.
    let left: BTreeSet<&str> = removed.iter().map(|placed| placed.set.as_str()).collect();
    let mut shared = !left.is_empty();
    for set in left {
        shared = shared && !nft.is_empty(Portmap::TABLE.set(set))?;
    }
    if shared {
        return Ok(());
    }
    let (mut used, mut empty) = (false, Vec::new());
    for set in nft.sets(Portmap::TABLE)? {
        if set == LINKS || !Portmap::is_ours(&set) {
            continue;
        }
        if !nft.is_empty(Portmap::TABLE.set(&set))? {
            used = true;
        } else if set.starts_with(HAIRPIN) {
            empty.push(set);
        }
    }
    elements::drop_unused::<Portmap>(nft, &empty, false)?;
    if used {
        return Ok(());
    }
    let links = nft.elements(Portmap::TABLE.set(LINKS))?;
    let names: Vec<String> = links.iter().filter_map(|element| element.key.as_ifname()).collect();
    for name in &names {
        localnet::set(name, false)?;
    }
    forget_links(nft, &links)?;
    if !elements::drop_part::<Portmap>(nft)? {
        // Somebody has just come, and may rely on it.
        for name in &names {
            note_link(nft, name)?;
            localnet::set(name, true)?;
        }
    }
    Ok(())
}

/// Removes the owner's elements and returns them. If those that the configuration leads to are
/// all that the owner has, nothing is listed.
pub(super) fn remove(nft: &mut Nft, owner: &Owner, forward: Option<&Forward>) -> net::Result<Vec<Placed>> {
    let told = told(nft, owner, forward)?;
    elements::delete::<Portmap>(nft, &told)?;
    let complete =
        !told.is_empty() && told.iter().all(|placed| count_in(&placed.element.comment) == Some(told.len()));
    let mut removed = told;
    // Again, as a listing may lack something while the kernel's hash table grows, because of others.
    if !complete {
        loop {
            let found = elements::remove::<Portmap>(nft, owner, &[])?;
            if found.is_empty() {
                break;
            }
            removed.extend(found);
        }
    }
    if !removed.is_empty() {
        leave(nft, &removed)?;
    }
    Ok(removed)
}

/// The owner's elements among those that the configuration leads to; none if there are too many
/// to ask for each.
fn told(nft: &mut Nft, owner: &Owner, forward: Option<&Forward>) -> net::Result<Vec<Placed>> {
    let mut found = Vec::new();
    let told = forward.map(|forward| wanted(owner, forward)).unwrap_or_default();
    if told.len() > ONE_BY_ONE {
        return Ok(found);
    }
    for placed in told {
        match nft.element(Portmap::TABLE.set(&placed.set), &placed.element.key)? {
            Some(element) if owner.owns(&element.comment) => {
                found.push(Placed { set: placed.set, element });
            }
            _ => {}
        }
    }
    Ok(found)
}

pub(super) fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> net::Result<Vec<Placed>> {
    let removed = elements::gc::<Portmap>(nft, network, valid)?;
    if !removed.is_empty() {
        leave(nft, &removed)?;
    }
    Ok(removed)
}

/// Pods that localhost may talk to.
pub(super) fn local_pods(nft: &mut Nft) -> net::Result<Vec<IpAddr>> {
    Ok(nft.elements(Portmap::TABLE.set(LOCAL))?.iter().filter_map(|element| element.key.as_ip()).collect())
}

/// All elements of pods.
pub(in crate::rules) fn all(nft: &mut Nft) -> net::Result<Vec<Placed>> {
    let mut all = elements::find::<Portmap>(nft, |_| true)?;
    all.retain(|placed| placed.set != LINKS);
    Ok(all)
}

/// Whether there is something that nobody uses.
pub(in crate::rules) fn is_idle(nft: &mut Nft) -> net::Result<bool> {
    elements::is_idle::<Portmap>(nft, &[LINKS])
}

/// Deletes elements that are still as they were found, and what nobody uses without them.
pub(in crate::rules) fn forget(nft: &mut Nft, found: &[Placed]) -> net::Result<()> {
    let there = elements::still_there::<Portmap>(nft, found)?;
    elements::delete::<Portmap>(nft, &there)?;
    super::stale::after(super::stale::of_elements(&there).collect());
    leave(nft, &[])
}

pub(super) fn usable(nft: &mut Nft) -> Result<(), Error> {
    Ok(elements::try_out::<Portmap>(nft, Some(&format!("{HAIRPIN}0.0.0.0/0")))?)
}

/// What is missing, or `None` if all is there.
pub(super) fn check(nft: &mut Nft, owner: &Owner, forward: &Forward) -> net::Result<Option<String>> {
    let wanted = wanted(owner, forward);
    let mut sets: Vec<&str> = wanted.iter().map(|placed| placed.set.as_str()).collect();
    sets.sort_unstable();
    sets.dedup();
    for set in &sets {
        let there: HashMap<Vec<u8>, Element> = nft
            .elements(Portmap::TABLE.set(set))?
            .into_iter()
            .map(|element| (element.key.bytes().to_vec(), element))
            .collect();
        for placed in wanted.iter().filter(|placed| placed.set == *set) {
            let key = &placed.element.key;
            let set = Portmap::TABLE.set(set);
            match there.get(key.bytes()) {
                None => return Ok(Some(format!("{set} has no element {key}"))),
                Some(there) if !owner.owns(&there.comment) => {
                    return Ok(Some(format!("element {key} of {set} is another's: {}", there.comment)));
                }
                Some(there) if there.data != placed.element.data => {
                    return Ok(Some(format!("element {key} of {set} leads elsewhere")));
                }
                Some(_) => {}
            }
        }
    }
    missing_rule(nft, &sets, forward)
}

fn missing_rule(nft: &mut Nft, sets: &[&str], forward: &Forward) -> net::Result<Option<String>> {
    let rules = nft.rules(Portmap::TABLE, None)?;
    let missing = |chain: &str, what: &str| {
        Ok(Some(format!("chain {} has no rule {what}", Portmap::TABLE.chain(chain))))
    };
    for set in sets {
        let is_map = [PORTS, ADDR_PORTS].iter().flatten().any(|name| name == set);
        let (chain, action) = if is_map { (DISPATCH, "nat") } else { (POSTROUTING, "masq") };
        if !rules.iter().any(|rule| rule.chain == chain && rule.uses_set(set) && rule.has(action)) {
            return missing(chain, &format!("for {set}"));
        }
    }
    for chain in [PREROUTING, OUTPUT] {
        if !rules.iter().any(|rule| rule.chain == chain && rule.target().as_deref() == Some(DISPATCH)) {
            return missing(chain, &format!("that leads to {DISPATCH}"));
        }
    }
    if forward.localhost().is_some() && rules.iter().filter(|rule| rule.chain == GUARD).count() < 2 {
        return missing(GUARD, "that keeps others from 127.0.0.0/8");
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_names_say_their_network() {
        for (pod, name) in [
            ("10.1.2.3/16", "portmap-hairpin-10.1.0.0/16"),
            ("10.1.2.3/32", "portmap-hairpin-10.1.2.3/32"),
            ("fd00:1::5/64", "portmap-hairpin-fd00-1--/64"),
        ] {
            let pod: IpNetwork = pod.parse().unwrap();
            assert_eq!(hairpin_set(&pod), name);
            let back = hairpin_network(name).unwrap();
            assert_eq!((back.ip(), back.prefix()), (pod.network(), pod.prefix()));
            assert!(Portmap::is_ours(name));
        }
        assert!(Portmap::is_ours("portmap4") && !Portmap::is_ours("masq-10.1.0.0/16"));
        for set in Portmap::FIXED {
            assert!(family(set).is_some() || *set == LINKS, "{set}");
        }
    }
}
