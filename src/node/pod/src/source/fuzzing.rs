use std::sync::Arc;

use super::SourceError;
use super::listed::{Event, MIRROR, ServerPods};
use super::merge::PodChange;
use super::url::follow;

/// Takes any bytes for a page of a list, the lines of a watch, and a redirection.
pub(crate) fn server(bytes: &[u8]) {
    listed(bytes);
    redirection(&String::from_utf8_lossy(bytes));
}

fn listed(bytes: &[u8]) {
    let mut listed = ServerPods::new("https://k".to_owned(), "n".to_owned(), Arc::default(), Arc::default());
    cnimble_api::fuzzing::page(bytes, |item| drop(listed.item(item)));
    let mut version = Some("1".to_owned());
    for line in bytes.split(|byte| *byte == b'\n') {
        let event = listed.event(line, &mut version);
        if matches!(event, Err(SourceError::Api(cnimble_api::Error::Watch { .. }))) {
            assert_eq!(version, None);
        }
        if let Ok(Event::Pod(PodChange::Put(pod))) = event {
            assert!(!pod.facts.ended && !pod.facts.annotations.contains_key(MIRROR));
        }
        for complaint in listed.complaints() {
            let text = complaint.error.to_string();
            assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
        }
    }
}

fn redirection(place: &str) {
    for from in ["https://a.example:8443/x?y", "http://a.example/"] {
        let Some(next) = from.parse().ok().and_then(|from| follow(&from, place)) else { continue };
        assert!(from.starts_with("http:") || next.scheme_str() == Some("https"), "{place}");
        assert!(next.host().is_some_and(|host| !host.is_empty()), "{place}");
        let stays = place.starts_with('/');
        assert!(!stays || next.host() == Some("a.example"), "{place}");
    }
}
