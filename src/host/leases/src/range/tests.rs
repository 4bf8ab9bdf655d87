use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn build(subnet: &str, start: &str, end: &str, gateway: &str) -> Result<Range, String> {
    let opt = |text: &str| (!text.is_empty()).then(|| ip(text));
    Range::new(subnet.parse().unwrap(), opt(start), opt(end), opt(gateway))
}

/// `10.0.0.0/29` or `10.0.0.0/29:START-END`, with an optional `@GATEWAY`; IPv6 too.
fn set(ranges: &[(&str, &str, &str)]) -> RangeSet {
    let ranges = ranges.iter().map(|(subnet, start, end)| build(subnet, start, end, "").unwrap());
    RangeSet::new(ranges.collect()).unwrap()
}

fn addresses(set: &RangeSet, last: &str) -> Vec<String> {
    let last = (!last.is_empty()).then(|| ip(last));
    set.cycle(last).take(100).map(|(ip, _)| ip.to_string()).collect()
}

#[test]
fn fills_in_the_defaults() {
    for (subnet, range, gateway) in [
        ("10.1.2.0/24", "10.1.2.1-10.1.2.254", "10.1.2.1"),
        ("10.1.2.4/30", "10.1.2.5-10.1.2.6", "10.1.2.5"),
        ("0.0.0.0/0", "0.0.0.1-255.255.255.254", "0.0.0.1"),
        ("fd00::/64", "fd00::1-fd00::ffff:ffff:ffff:ffff", "fd00::1"),
        ("fd00::4/126", "fd00::5-fd00::7", "fd00::5"),
        ("::/0", "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"),
    ] {
        let made = build(subnet, "", "", "").unwrap();
        assert_eq!(made.to_string(), range);
        assert_eq!(made.gateway, ip(gateway));
    }
    let outside = build("10.1.2.0/24", "10.1.2.0", "10.1.2.255", "192.168.0.1").unwrap();
    assert_eq!(outside.gateway, ip("192.168.0.1"));
    assert_eq!(outside.to_string(), "10.1.2.0-10.1.2.255");
}

#[test]
fn refuses_odd_ranges_in_the_words_of_the_reference() {
    for ((subnet, start, end, gateway), error) in [
        (("10.1.2.1/32", "", "", ""), "Network 10.1.2.1/32 too small to allocate from"),
        (("fd00::1/128", "", "", ""), "Network fd00::1/128 too small to allocate from"),
        (
            ("10.1.2.3/24", "", "", ""),
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
        ),
        (("10.1.2.0/24", "10.1.3.1", "", ""), "RangeStart 10.1.3.1 not in network 10.1.2.0/24"),
        (("10.1.2.0/24", "", "10.1.1.1", ""), "RangeEnd 10.1.1.1 not in network 10.1.2.0/24"),
        (
            ("10.1.2.0/24", "10.1.2.9", "10.1.2.8", ""),
            "RangeEnd 10.1.2.8 is before RangeStart 10.1.2.9 in network 10.1.2.0/24",
        ),
        (("10.1.2.0/24", "fd00::1", "", ""), "IP fd00::1 is not the same protocol as subnet 10.1.2.0/24"),
        (("fd00::/64", "", "", "10.0.0.1"), "IP 10.0.0.1 is not the same protocol as subnet fd00::/64"),
        // The default start lies behind an explicit end: only the network address.
        (
            ("10.1.2.0/24", "", "10.1.2.0", ""),
            "RangeEnd 10.1.2.0 is before RangeStart 10.1.2.1 in network 10.1.2.0/24",
        ),
        (
            ("10.1.2.0/24", "10.1.2.255", "", ""),
            "RangeEnd 10.1.2.254 is before RangeStart 10.1.2.255 in network 10.1.2.0/24",
        ),
    ] {
        assert_eq!(build(subnet, start, end, gateway).unwrap_err(), error);
    }
}

#[test]
fn a_set_is_of_one_family_and_without_overlap() {
    let of = |subnets: &[&str]| {
        let ranges = subnets.iter().map(|subnet| build(subnet, "", "", "").unwrap());
        RangeSet::new(ranges.collect())
    };
    assert_eq!(of(&[]).unwrap_err(), "empty range set");
    assert_eq!(of(&["10.0.0.0/24", "fd00::/64"]).unwrap_err(), "mixed address families");
    assert_eq!(
        of(&["10.0.0.0/24", "10.1.0.0/24", "10.0.0.128/25"]).unwrap_err(),
        "subnets 10.0.0.1-10.0.0.254 and 10.0.0.129-10.0.0.254 overlap"
    );
    assert_eq!(
        of(&["10.0.0.0/30", "10.0.0.4/30"]).unwrap().to_string(),
        "10.0.0.1-10.0.0.2,10.0.0.5-10.0.0.6"
    );
    assert!(of(&["::/0"]).unwrap().overlaps(&of(&["fd00::/64"]).unwrap()));
    assert!(!of(&["0.0.0.0/0"]).unwrap().overlaps(&of(&["::/0"]).unwrap()));
}

#[test]
fn the_cycle_goes_around_once() {
    let one = set(&[("10.0.0.0/29", "", "")]);
    assert_eq!(addresses(&one, ""), ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    assert_eq!(
        addresses(&one, "10.0.0.4"),
        ["10.0.0.5", "10.0.0.6", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
    );
    assert_eq!(addresses(&one, "10.0.0.6"), addresses(&one, ""));
    assert_eq!(addresses(&one, "10.9.9.9"), addresses(&one, ""));

    let two = set(&[("10.0.0.0/30", "", ""), ("10.0.1.0/30", "", "")]);
    assert_eq!(addresses(&two, "10.0.0.1"), ["10.0.0.2", "10.0.1.1", "10.0.1.2", "10.0.0.1"]);
    assert_eq!(addresses(&two, "10.0.1.1"), ["10.0.1.2", "10.0.0.1", "10.0.0.2", "10.0.1.1"]);
}

#[test]
fn excluded_prefixes_split_a_range() {
    let rest = |subnet: &str, start: &str, end: &str, excluded: &[&str]| {
        let excluded: Vec<IpNetwork> = excluded.iter().map(|prefix| prefix.parse().unwrap()).collect();
        match build(subnet, start, end, "").unwrap().without(&excluded) {
            Ok(ranges) => RangeSet::new(ranges).unwrap().to_string(),
            Err(err) => err,
        }
    };
    for ((subnet, start, end), excluded, expected) in [
        (("10.0.0.0/24", "", ""), &[][..], "10.0.0.1-10.0.0.254"),
        (("10.0.0.0/24", "", ""), &["10.0.0.9"], "10.0.0.1-10.0.0.8,10.0.0.10-10.0.0.254"),
        // In any order, touching, one in another, and at both ends.
        (
            ("10.0.0.0/24", "", ""),
            &["10.0.0.240/28", "10.0.0.16/28", "10.0.0.20", "10.0.0.0/28", "10.0.0.33/32"],
            "10.0.0.32-10.0.0.32,10.0.0.34-10.0.0.239",
        ),
        (("10.0.0.0/24", "10.0.0.10", "10.0.0.20"), &["10.0.0.0/29", "10.0.0.64/26"], "10.0.0.10-10.0.0.20"),
        (
            ("10.0.0.0/24", "10.0.0.10", "10.0.0.20"),
            &["10.0.0.12/30"],
            "10.0.0.10-10.0.0.11,10.0.0.16-10.0.0.20",
        ),
        (("fd00::/64", "", ""), &["fd00::/65"], "fd00::8000:0:0:0-fd00::ffff:ffff:ffff:ffff"),
        (("::/0", "", ""), &["8000::/1"], "::1-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        (
            ("0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
            &["0.0.0.0", "255.255.255.255"],
            "0.0.0.1-255.255.255.254",
        ),
        (
            ("10.0.0.0/24", "", ""),
            &["10.0.0.0/25", "10.0.0.128/25"],
            "exclude leaves no address of 10.0.0.1-10.0.0.254",
        ),
        (
            ("::/0", "", ""),
            &["::/0"],
            "exclude leaves no address of ::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        ),
        (("10.0.0.0/24", "", ""), &["10.0.1.0/28"], "exclude: 10.0.1.0/28 is not in network 10.0.0.0/24"),
        (("10.0.0.0/24", "", ""), &["fd00::1"], "exclude: fd00::1/128 is not in network 10.0.0.0/24"),
    ] {
        assert_eq!(rest(subnet, start, end, excluded), expected, "{subnet} without {excluded:?}");
    }
}

#[test]
fn a_range_has_as_many_addresses_as_it_gives() {
    for (subnet, start, end, size) in [
        ("10.0.0.0/24", "", "", 254),
        ("10.0.0.0/24", "10.0.0.9", "10.0.0.9", 1),
        ("10.0.0.0/31", "", "", 2),
        ("fd00::/112", "fd00::10", "fd00::1f", 16),
    ] {
        let range = build(subnet, start, end, "").unwrap();
        assert_eq!(range.size(), size, "{range}");
    }
}

#[test]
fn the_largest_ranges_end_without_overflow() {
    let all = set(&[("::/0", "", "")]);
    assert_eq!(
        addresses(&all, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe")[..3],
        ["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1", "::2"]
    );
    assert_eq!(addresses(&all, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")[0], "::1");
    let all = set(&[("0.0.0.0/0", "0.0.0.0", "255.255.255.255")]);
    assert_eq!(addresses(&all, "255.255.255.255")[..2], ["0.0.0.0", "0.0.0.1"]);
}
