use super::{checkpoint, dns, process};
use crate::network::Dns;

pub(crate) fn checkpoint(bytes: &[u8]) {
    checkpoint::fuzz(bytes);
    let _ = process::started(bytes);
}

pub(crate) fn resolv(text: &str) {
    dns::fuzz(text);
}

/// The file has lines of three sorts only.
pub(crate) fn resolv_conf(dns: &Dns) {
    let text = dns::resolv_conf(dns);
    for line in text.lines() {
        let first = line.split(' ').next();
        assert!(matches!(first, Some("search" | "nameserver" | "options")), "{text}");
    }
    assert!(text.lines().count() <= dns.servers.len() + 2, "{text}");
}
