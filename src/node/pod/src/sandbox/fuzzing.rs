use super::{Sandbox, checkpoint, dns, process};
use crate::network::Dns;

pub(crate) fn checkpoint(bytes: &[u8]) {
    let _ = process::started(bytes);
    let Ok(sandbox) = checkpoint::decode(bytes) else { return };
    let text = serde_json::to_vec_pretty(&sandbox).map_err(|err| err.to_string());
    let again = text.and_then(|text| checkpoint::decode(&text));
    // Numbers in a configuration may lose their last digit.
    let rest = |sandbox: Sandbox| Sandbox { network: None, ..sandbox };
    assert_eq!(again.clone().map(rest), Ok(rest(sandbox.clone())));
    assert_eq!(again.as_ref().ok().and_then(Sandbox::network_name), sandbox.network_name());
    let network = sandbox.network();
    assert!(network.network.is_none_or(|list| cnimble_cni::names::is_identifier(&list.name)));
}

/// The pod's file holds servers, searches and options only, and reads back the same.
pub(crate) fn resolv(text: &str) {
    let dns = dns::parse(text);
    assert_eq!(dns::parse(&dns::resolv_conf(&dns)), dns);
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
