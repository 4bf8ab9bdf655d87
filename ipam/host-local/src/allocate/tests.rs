//! Single rules, odd ranges, and a simple model.

use std::collections::{BTreeMap, HashSet};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Subnet, first and last address; empty is the default.
fn set(ranges: &[(&str, &str, &str)]) -> RangeSet {
    let opt = |text: &str| (!text.is_empty()).then(|| ip(text));
    let ranges = ranges
        .iter()
        .map(|(subnet, start, end)| Range::new(subnet.parse().unwrap(), opt(start), opt(end), None).unwrap());
    RangeSet::new(ranges.collect()).unwrap()
}

#[derive(Default)]
struct Book {
    taken: HashSet<IpAddr>,
    void: HashSet<IpAddr>,
    own: Vec<IpAddr>,
    last: BTreeMap<usize, IpAddr>,
}

impl Holders for Book {
    fn is_taken(&self, ip: IpAddr) -> bool {
        self.taken.contains(&ip)
    }
    fn is_void(&self, ip: IpAddr) -> bool {
        self.void.contains(&ip)
    }
    fn own(&self) -> &[IpAddr] {
        &self.own
    }
    fn last(&self, set: usize) -> Option<IpAddr> {
        self.last.get(&set).copied()
    }
}

impl Book {
    fn take(&mut self, set: usize, ip: IpAddr) {
        self.taken.insert(ip);
        self.void.remove(&ip);
        self.last.insert(set, ip);
    }
}

fn pick(sets: &[RangeSet], requested: &[&str], book: &Book) -> Result<Vec<String>, String> {
    let requested: Vec<IpAddr> = requested.iter().map(|text| ip(text)).collect();
    choose(sets, &requested, "c1", book)
        .map(|choices| choices.iter().map(|choice| choice.ip.to_string()).collect())
        .map_err(|err| err.to_string())
}

fn fill(book: &mut Book, sets: &[RangeSet]) -> Vec<String> {
    let mut given = Vec::new();
    while let Ok(choices) = choose(sets, &[], "c1", book) {
        for (n, choice) in choices.iter().enumerate() {
            given.push(choice.ip.to_string());
            book.take(n, choice.ip);
        }
        assert!(given.len() < 1000);
    }
    given
}

#[test]
fn network_broadcast_and_gateways_are_not_given_out_in_turn_on_a_shared_link() {
    let all = [set(&[("10.0.0.0/29", "10.0.0.0", "10.0.0.7")]).on_shared_link()];
    assert_eq!(
        fill(&mut Book::default(), &all),
        ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]
    );
    // In IPv6 the last address is an ordinary one.
    let all = [set(&[("fd00::/126", "fd00::", "fd00::3")]).on_shared_link()];
    assert_eq!(fill(&mut Book::default(), &all), ["fd00::2", "fd00::3"]);
    // 10.0.0.1 is the gateway of the second range, although it lies in the first.
    let halves = [set(&[("10.0.0.0/29", "10.0.0.0", "10.0.0.1"), ("10.0.0.0/29", "10.0.0.6", "10.0.0.7")])];
    let halves = halves.map(RangeSet::on_shared_link);
    assert_eq!(fill(&mut Book::default(), &halves), ["10.0.0.6"]);

    // A requested address in the range is given.
    let book = Book::default();
    assert_eq!(
        pick(&halves, &["10.0.0.1"], &book).unwrap_err(),
        "failed to allocate for range 0: requested ip 10.0.0.1 is subnet's gateway"
    );
    for wanted in ["10.0.0.0", "10.0.0.7"] {
        assert_eq!(pick(&halves, &[wanted], &book).unwrap(), [wanted]);
    }
}

#[test]
fn network_and_broadcast_are_given_if_the_range_contains_them() {
    for (range, expected) in [
        (("10.0.0.0/29", "10.0.0.6", "10.0.0.7"), &["10.0.0.6", "10.0.0.7"][..]),
        (("10.0.0.0/29", "10.0.0.0", "10.0.0.2"), &["10.0.0.0", "10.0.0.2"]),
        (("fd00::/126", "fd00::", "fd00::2"), &["fd00::", "fd00::2"]),
        (("10.0.0.0/23", "10.0.0.255", "10.0.1.0"), &["10.0.0.255", "10.0.1.0"]),
        // Not without a request.
        (("10.0.0.0/30", "", ""), &["10.0.0.2"]),
        (("fd00::/126", "", ""), &["fd00::2", "fd00::3"]),
    ] {
        assert_eq!(fill(&mut Book::default(), &[set(&[range])]), expected, "{range:?}");
    }
    // A subnet of two has neither; the second is the gateway.
    for (subnet, expected) in [("10.0.0.0/31", "10.0.0.0"), ("fd00::/127", "fd00::")] {
        let pair = set(&[(subnet, "", "")]);
        assert_eq!(fill(&mut Book::default(), std::slice::from_ref(&pair)), [expected]);
        assert_eq!(fill(&mut Book::default(), &[pair.on_shared_link()]), [expected]);
    }
}

#[test]
fn allocation_is_round_robin_and_reports_a_full_set() {
    let sets = [set(&[("10.0.0.0/30", "", ""), ("10.0.1.0/29", "", "10.0.1.3")])];
    let mut book = Book::default();
    book.last.insert(0, ip("10.0.1.2"));
    assert_eq!(fill(&mut book, &sets), ["10.0.1.3", "10.0.0.2", "10.0.1.2"]);
    assert_eq!(
        pick(&sets, &[], &book).unwrap_err(),
        "failed to allocate for range 0: no IP addresses available in range set: \
         10.0.0.1-10.0.0.2,10.0.1.1-10.0.1.3"
    );
    assert!(has_room(&sets, &book).is_err());
    // A freed address comes last.
    let sets = [set(&[("10.0.0.0/29", "", "")])];
    let mut book = Book::default();
    book.take(0, ip("10.0.0.2"));
    book.taken.clear();
    assert_eq!(pick(&sets, &[], &book).unwrap(), ["10.0.0.3"]);
}

#[test]
fn leases_of_an_earlier_boot_are_the_last_resort() {
    let sets = [set(&[("10.0.0.0/29", "", "")])];
    let mut book = Book::default();
    for n in 2..=6 {
        book.taken.insert(ip(&format!("10.0.0.{n}")));
    }
    book.void = HashSet::from([ip("10.0.0.4"), ip("10.0.0.5")]);
    book.last.insert(0, ip("10.0.0.4"));
    assert!(has_room(&sets, &book).is_ok());
    assert_eq!(fill(&mut book, &sets), ["10.0.0.5", "10.0.0.4"]);
    // A free one goes first, out of turn.
    book.void.insert(ip("10.0.0.5"));
    book.taken.remove(&ip("10.0.0.3"));
    assert_eq!(pick(&sets, &[], &book).unwrap(), ["10.0.0.3"]);
    assert_eq!(pick(&sets, &["10.0.0.5"], &book).unwrap(), ["10.0.0.5"]);
    assert_eq!(
        pick(&sets, &["10.0.0.6"], &book).unwrap_err(),
        "failed to allocate for range 0: requested IP address 10.0.0.6 is not available in \
         range set 10.0.0.1-10.0.0.6"
    );
}

#[test]
fn requested_addresses_go_to_their_sets() {
    let sets = [set(&[("10.0.0.0/24", "", "")]), set(&[("fd00::/64", "", ""), ("fd01::/64", "", "")])];
    let book = Book::default();
    assert_eq!(pick(&sets, &["fd01::7"], &book).unwrap(), ["10.0.0.2", "fd01::7"]);
    assert_eq!(
        pick(&sets, &["10.0.0.9", "192.168.0.1", "10.0.0.8"], &book).unwrap_err(),
        "failed to allocate all requested IPs: 192.168.0.1 10.0.0.8"
    );
}

#[test]
fn a_second_address_of_a_set_is_refused() {
    let sets = [set(&[("10.0.0.0/24", "", "")]), set(&[("10.0.1.0/24", "", "")])];
    let mut book = Book::default();
    book.take(1, ip("10.0.1.5"));
    book.own.push(ip("10.0.1.5"));
    for requested in [&[][..], &["10.0.1.9"]] {
        assert_eq!(
            pick(&sets, requested, &book).unwrap_err(),
            "failed to allocate for range 1: 10.0.1.5 has been allocated to c1, \
             duplicate allocation is not allowed"
        );
    }
    assert!(pick(&sets[..1], &[], &book).is_ok());
    // The same container, after a reboot.
    book.void.insert(ip("10.0.1.5"));
    assert_eq!(pick(&sets, &[], &book).unwrap(), ["10.0.0.2", "10.0.1.6"]);
}

/// A good address or a refusal.
#[test]
fn odd_ranges_give_a_good_address_or_none() {
    let subnets = [
        "0.0.0.0/0",
        "128.0.0.0/1",
        "10.0.0.0/8",
        "10.0.0.0/30",
        "10.0.0.4/30",
        "10.0.0.0/31",
        "10.0.0.0/32",
        "255.255.255.252/30",
        "255.255.255.255/32",
        "::/0",
        "fd00::/126",
        "fd00::/127",
        "fd00::/128",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126",
    ];
    let ips = [
        "",
        "0.0.0.0",
        "0.0.0.1",
        "10.0.0.0",
        "10.0.0.1",
        "10.0.0.3",
        "10.0.0.5",
        "255.255.255.252",
        "255.255.255.254",
        "255.255.255.255",
        "::",
        "::1",
        "fd00::",
        "fd00::1",
        "fd00::3",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ];
    let ips = ips.map(|text| (!text.is_empty()).then(|| ip(text)));
    let mut given = 0;
    for subnet in subnets {
        let subnet = subnet.parse().unwrap();
        for (start, end) in ips.iter().flat_map(|start| ips.map(|end| (*start, end))) {
            for gateway in ips {
                let Ok(range) = Range::new(subnet, start, end, gateway) else { continue };
                let sets = [RangeSet::new(vec![range.clone()]).unwrap().on_shared_link()];
                for last in ips {
                    let mut book = Book::default();
                    book.last.extend(last.map(|last| (0, last)));
                    let Ok(choices) = choose(&sets, &[], "c1", &book) else { continue };
                    let ip = choices[0].ip;
                    let what = format!("{ip} from {range} in {subnet}");
                    assert!(range.contains(ip) && subnet.contains(ip), "{what}");
                    assert!(ip != range.gateway, "{what}");
                    let is_pair = subnet.prefix() == if ip.is_ipv4() { 31 } else { 127 };
                    assert!(is_pair || ip != subnet.network(), "{what}");
                    assert!(is_pair || ip.is_ipv6() || ip != subnet.broadcast(), "{what}");
                    given += 1;
                }
            }
        }
    }
    assert!(given > 1000, "{given}");
}

/// The model lists the set's addresses from the one after the last given.
#[test]
fn agrees_with_a_simple_model() {
    let mut seed: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for round in 0..300 {
        let count = 1 + random(3);
        let mut usable = Vec::new();
        let mut ranges = Vec::new();
        for n in 0..count {
            let (net, bits) = (format!("10.0.{n}."), 28 + random(3));
            let size = 1u64 << (32 - bits);
            let start = random(size);
            let end = start + random(size - start);
            ranges.push((format!("{net}0/{bits}"), format!("{net}{start}"), format!("{net}{end}")));
            for host in start..=end {
                usable.push((ip(&format!("{net}{host}")), host > 1 && host < size - 1));
            }
        }
        let ranges: Vec<(&str, &str, &str)> =
            ranges.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
        let sets = [set(&ranges).on_shared_link()];
        let mut book = Book::default();
        for step in 0..200 {
            if random(3) == 0 && !book.taken.is_empty() {
                let mut taken: Vec<IpAddr> = book.taken.iter().copied().collect();
                taken.sort();
                let freed = taken[random(taken.len() as u64) as usize];
                book.taken.remove(&freed);
                continue;
            }
            let turn = book.last(0).and_then(|last| usable.iter().position(|(ip, _)| *ip == last));
            let mut turned = usable.clone();
            turned.rotate_left(turn.map_or(0, |at| at + 1));
            let expected = turned.iter().find(|(ip, ok)| *ok && !book.taken.contains(ip));
            let got = choose(&sets, &[], "c", &book).ok().map(|choices| choices[0].ip);
            assert_eq!(got, expected.map(|(ip, _)| *ip), "round {round}, step {step}, {sets:?}");
            if let Some(ip) = got {
                book.take(0, ip);
            }
        }
    }
}
