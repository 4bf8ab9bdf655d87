//! Readers for fuzzers; those of leases are in their crate.

use cnimble_leases::config::Config;

pub(crate) fn config(config: &Config) {
    for set in &config.sets {
        assert!(set.cycle(None).take(20).all(|(ip, range)| range.contains(ip) && range.subnet.contains(ip)));
    }
}

/// Takes any bytes for the addresses that pods had.
pub fn kept(bytes: &[u8]) {
    String::from_utf8_lossy(bytes).lines().filter_map(crate::memory::parse).for_each(drop);
}

pub fn resolv(bytes: &[u8]) {
    let dns = crate::resolv::parse(&String::from_utf8_lossy(bytes));
    let words = dns.nameservers.iter().chain(&dns.search).chain(&dns.options).chain([&dns.domain]);
    assert!(words.into_iter().all(|word| !word.contains(char::is_whitespace)));
}
