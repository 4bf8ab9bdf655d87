//! The allocator against a simple model: lists of addresses, and a walk from one to the next.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::allocate::{self, Holders};
use cnimble_leases::range::{Range, RangeSet};

/// They never overlap; some are at the ends of all addresses.
fn subnet(set: usize, range: usize, six: bool, length: u8, edge: bool) -> IpNetwork {
    let (set, range) = (u8::try_from(set).unwrap(), u8::try_from(range).unwrap());
    let ip: IpAddr = match (six, edge && range == 0, set) {
        (false, true, 0) => Ipv4Addr::new(255, 255, 255, 0).into(),
        (false, true, 1) => Ipv4Addr::UNSPECIFIED.into(),
        (false, ..) => Ipv4Addr::new(10, set, range, 0).into(),
        (true, true, 0) => Ipv6Addr::from(u128::MAX << 8).into(),
        (true, true, 1) => Ipv6Addr::UNSPECIFIED.into(),
        (true, ..) => Ipv6Addr::new(0xfd00, set.into(), range.into(), 0, 0, 0, 0, 0).into(),
    };
    let length = if six { 120 + length } else { 24 + length };
    // At the upper end, the last subnet of its size.
    let whole = IpNetwork::new(ip, if six { 120 } else { 24 }).unwrap();
    let small = |ip| IpNetwork::new(ip, length).unwrap();
    if edge && range == 0 && set == 0 {
        let last = small(whole.broadcast());
        small(last.network())
    } else {
        small(ip)
    }
}

fn nth(subnet: IpNetwork, n: u128) -> IpAddr {
    match subnet.network() {
        IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip) + u32::try_from(n).unwrap()).into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) + n).into(),
    }
}

fn size(subnet: IpNetwork) -> u128 {
    1 << (if subnet.is_ipv4() { 32 } else { 128 } - subnet.prefix())
}

/// A range: length of the prefix, start, end, gateway.
type Numbers = (u8, Option<u16>, Option<u16>, Option<u16>);

fn range(set: usize, at: usize, six: bool, edge: bool, (length, start, end, gateway): Numbers) -> Range {
    let subnet = subnet(set, at, six, 2 + length % 5, edge);
    let pick = |number: Option<u16>| number.map(|number| nth(subnet, u128::from(number) % size(subnet)));
    let (start, end) = (pick(start), pick(end));
    let (start, end) = match (start, end) {
        (Some(start), Some(end)) if end < start => (Some(end), Some(start)),
        other => other,
    };
    let whole = || Range::new(subnet, None, None, pick(gateway)).unwrap();
    Range::new(subnet, start, end, pick(gateway)).unwrap_or_else(|_| whole())
}

fn sets() -> impl Strategy<Value = Vec<RangeSet>> {
    let numbers = (any::<u8>(), any::<Option<u16>>(), any::<Option<u16>>(), any::<Option<u16>>());
    let sets = vec((any::<bool>(), any::<bool>(), vec(numbers, 1..4)), 1..4);
    (any::<bool>(), sets).prop_map(|(shared, sets)| {
        let sets = sets.into_iter().enumerate();
        sets.map(|(set, (six, edge, ranges))| {
            let ranges = ranges.into_iter().enumerate();
            let ranges = ranges.map(|(at, numbers)| range(set, at, six, edge, numbers));
            let set = RangeSet::new(ranges.collect()).unwrap();
            if shared { set.on_shared_link() } else { set }
        })
        .collect()
    })
}

/// An event in a store.
#[derive(Debug, Clone)]
enum Event {
    /// `wants` is the n-th address of the n-th range of a set.
    Add { container: u8, wants: Option<(u8, u8, u16)> },
    /// DEL of a container.
    Del { container: u8 },
    /// All leases become those of an earlier boot.
    Boot,
    /// Another program writes a lease, or nonsense as last address.
    Foreign { set: u8, n: u16, last: bool },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let wants = option::weighted(0.2, any::<(u8, u8, u16)>());
    let add = (0..24_u8, wants).prop_map(|(container, wants)| Event::Add { container, wants });
    let del = (0..24_u8).prop_map(|container| Event::Del { container });
    let foreign = any::<(u8, u16, bool)>().prop_map(|(set, n, last)| Event::Foreign { set, n, last });
    vec(prop_oneof![12 => add, 6 => del, 1 => Just(Event::Boot), 1 => foreign], 1..120)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lease {
    container: u8,
    void: bool,
}

/// None of the containers.
const STRANGER: u8 = 255;

/// Seen by one container.
#[derive(Default)]
struct Model {
    leases: BTreeMap<IpAddr, Lease>,
    last: BTreeMap<usize, IpAddr>,
    own: Vec<IpAddr>,
}

impl Holders for Model {
    fn is_taken(&self, ip: IpAddr) -> bool {
        self.leases.contains_key(&ip)
    }
    fn is_void(&self, ip: IpAddr) -> bool {
        self.leases.get(&ip).is_some_and(|lease| lease.void)
    }
    fn own(&self) -> &[IpAddr] {
        &self.own
    }
    fn last(&self, set: usize) -> Option<IpAddr> {
        self.last.get(&set).copied()
    }
}

impl Model {
    fn see_as(&mut self, container: u8) {
        let own = self.leases.iter().filter(|(_, lease)| lease.container == container);
        self.own = own.map(|(ip, _)| *ip).collect();
    }

    /// An address of each set, or nothing.
    fn expected(&self, sets: &[RangeSet], container: u8, mut wanted: Option<IpAddr>) -> Option<Vec<IpAddr>> {
        let gateways: Vec<IpAddr> =
            sets.iter().flat_map(RangeSet::ranges).map(|range| range.gateway).collect();
        let mut given = Vec::new();
        for (n, set) in sets.iter().enumerate() {
            let all: Vec<IpAddr> = set.ranges().iter().flat_map(every_address).collect();
            let holder = |ip: &IpAddr| self.leases.get(ip);
            let in_turn = |ip: &&IpAddr| {
                let reserved =
                    set.ranges().iter().any(|range| range.on_shared_link && is_reserved(range, **ip));
                !reserved && !gateways.contains(ip)
            };
            if all.iter().any(|ip| holder(ip).is_some_and(|own| own.container == container && !own.void)) {
                return None;
            }
            let is_wanted = wanted.take_if(|ip| all.contains(ip));
            if let Some(ip) = is_wanted {
                given.push(
                    Some(ip)
                        .filter(|ip| !gateways.contains(ip) && holder(ip).is_none_or(|lease| lease.void))?,
                );
                continue;
            }
            // From the one behind the last, around and to it.
            let start = self.last.get(&n).and_then(|last| all.iter().position(|ip| ip == last));
            let turn = all.iter().cycle().skip(start.map_or(0, |at| at + 1)).take(all.len());
            let turn: Vec<IpAddr> = turn.filter(in_turn).copied().collect();
            let free =
                |ip: &&IpAddr| holder(ip).is_none_or(|lease| lease.void && lease.container == container);
            let again = |ip: &&IpAddr| holder(ip).is_some_and(|lease| lease.void);
            given.push(*turn.iter().find(free).or_else(|| turn.iter().find(again))?);
        }
        wanted.is_none().then_some(given)
    }

    fn add(&mut self, container: u8, given: &[IpAddr]) {
        self.leases.retain(|_, lease| lease.container != container || !lease.void);
        for (set, ip) in given.iter().enumerate() {
            self.leases.insert(*ip, Lease { container, void: false });
            self.last.insert(set, *ip);
        }
    }
}

/// Subnets here have more than two addresses.
fn is_reserved(range: &Range, ip: IpAddr) -> bool {
    ip == range.subnet.network() || range.subnet.is_ipv4() && ip == range.subnet.broadcast()
}

fn every_address(range: &Range) -> Vec<IpAddr> {
    let all = (0..size(range.subnet)).map(|n| nth(range.subnet, n));
    all.filter(|ip| range.start <= *ip && *ip <= range.end).collect()
}

/// Holds of given addresses in any case.
fn sound(
    model: &Model,
    sets: &[RangeSet],
    given: &[IpAddr],
    wanted: Option<IpAddr>,
) -> Result<(), TestCaseError> {
    for (set, ip) in sets.iter().zip(given) {
        let lease = model.leases.get(ip);
        prop_assert!(lease.is_none_or(|lease| lease.void), "{} is {:?}'s", ip, lease);
        let range = set.range_of(*ip);
        prop_assert!(range.is_some_and(|range| range.subnet.contains(*ip)), "{} is outside", ip);
        for range in sets.iter().flat_map(RangeSet::ranges) {
            prop_assert_ne!(*ip, range.gateway);
            prop_assert!(!range.on_shared_link || !is_reserved(range, *ip) || Some(*ip) == wanted);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_add_gives_what_the_model_gives((sets, events) in (sets(), events())) {
        let mut model = Model::default();
        for event in events {
            match event {
                Event::Add { container, wants } => {
                    model.see_as(container);
                    let wanted = wants.map(|(set, range, n)| {
                        let ranges = sets[usize::from(set) % sets.len()].ranges();
                        let subnet = ranges[usize::from(range) % ranges.len()].subnet;
                        nth(subnet, u128::from(n) % size(subnet))
                    });
                    let requested: Vec<IpAddr> = wanted.into_iter().collect();
                    let chosen = allocate::choose(&sets, &requested, "c", &model);
                    let given: Option<Vec<IpAddr>> =
                        chosen.ok().map(|choices| choices.iter().map(|choice| choice.ip).collect());
                    prop_assert_eq!(&given, &model.expected(&sets, container, wanted));
                    if let Some(given) = given {
                        sound(&model, &sets, &given, wanted)?;
                        model.add(container, &given);
                    }
                }
                Event::Del { container } => model.leases.retain(|_, lease| lease.container != container),
                Event::Boot => model.leases.values_mut().for_each(|lease| lease.void = true),
                Event::Foreign { set, n, last } => {
                    let set = usize::from(set) % sets.len();
                    let subnet = sets[set].ranges()[0].subnet;
                    let ip = nth(subnet, u128::from(n) % size(subnet));
                    if last {
                        model.last.insert(set, ip);
                    } else {
                        model.leases.entry(ip).or_insert(Lease { container: STRANGER, void: false });
                    }
                }
            }
        }
    }

    /// Every address comes once before any comes again, in the same order.
    #[test]
    fn all_addresses_come_before_one_comes_again(sets in sets()) {
        let mut model = Model::default();
        let mut turns: Vec<Vec<IpAddr>> = Vec::new();
        let usable = sets.iter().map(|set| {
            let all = set.ranges().iter().flat_map(every_address);
            all.filter(|ip| sets.iter().flat_map(RangeSet::ranges).all(|range| {
                range.gateway != *ip && !(range.subnet.contains(*ip) && range.leaves_out(*ip))
            })).count()
        });
        let usable: Vec<usize> = usable.collect();
        let rounds = usable.iter().max().copied().unwrap_or(0) * 2 + 1;
        for _ in 0..rounds {
            // Each pod is gone before the next comes.
            let Ok(choices) = allocate::choose(&sets, &[], "c", &model) else { break };
            let given: Vec<IpAddr> = choices.iter().map(|choice| choice.ip).collect();
            sound(&model, &sets, &given, None)?;
            model.add(0, &given);
            model.leases.clear();
            turns.push(given);
        }
        prop_assert!(turns.is_empty() == usable.contains(&0));
        for (set, count) in usable.iter().enumerate() {
            let turn: Vec<IpAddr> = turns.iter().map(|given| given[set]).collect();
            // Without any usable address there are no turns.
            for window in turn.windows((*count).max(1)) {
                let distinct: std::collections::BTreeSet<_> = window.iter().collect();
                prop_assert_eq!(distinct.len(), *count);
            }
            prop_assert!(turn.iter().zip(turn.iter().skip(*count)).all(|(one, next)| one == next));
        }
    }
}
