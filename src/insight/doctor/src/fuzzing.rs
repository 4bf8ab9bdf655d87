//! Fuzz targets for the doctor's parsers. Each takes any bytes.

use std::path::Path;

use cnimble_cni::Owner;
use cnimble_liveness::{Verdict, cache_entries};
use cnimble_netlink::netns;
use cnimble_rules::survey;

use super::stale_rules;

/// Parses the input as a mount table, as comments and aliases, and as an entry of the result cache.
pub fn doctor(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let below = Path::new("/proc/1/root");
    for (id, path) in netns::mounts(&text, below) {
        assert!(id.to_string_lossy().starts_with("net:[") && path.starts_with(below), "{}", path.display());
    }
    if let Some(tag) = survey::tag(&text) {
        assert!(tag.len() == 33 && text.starts_with(tag), "{text}");
    }
    let _ = (survey::container(&text), Owner::named(&text), stale_rules::names(&text));
    if let Some(entry) = cnimble_runtime::fuzzing::entry(bytes) {
        let known = cache_entries::JudgedEntry {
            entry,
            verdict: Verdict::Lives,
            own: true,
            cache: Default::default(),
        };
        assert!(known.result().is_some() || known.addrs().is_empty());
        assert!(known.data_dirs().iter().all(|dir| !dir.as_os_str().is_empty()));
        let _ = known.owner().tag();
    }
}
