//! Each verb of each plugin succeeds with the plugin's sample.

use cnimble_tests::{Sample, need};

/// VERSION, STATUS, ADD, CHECK, DEL and GC of these plugins.
fn every_verb_of(samples: &[&Sample]) {
    need!("ip", "nft", "dnsmasq");
    for sample in samples {
        let host = cnimble_tests::Host::new();
        let _server = sample.serve(&host);
        let place = sample.place(&host, "pod", 0);
        host.call(&sample.plugin).command("VERSION").stdin(r#"{"cniVersion":"1.0.0"}"#).run().success();
        place.net.status().success();
        let result = place.added();
        place.net.check(&place.att, &result).success();
        place.net.deleted(&place.att, Some(&result));
        place.clear();
        place.net.gc(Some(serde_json::json!([]))).success();
    }
}

#[test]
fn every_verb_of_every_plugin_succeeds() {
    let served = |sample: &&Sample| sample.missing().is_none() || sample.is_served();
    every_verb_of(&Sample::all().iter().filter(served).collect::<Vec<_>>());
}

/// The same for plugins that need kinds of interfaces which this kernel may lack.
pub(crate) fn every_verb_in_the_machine() {
    every_verb_of(&Sample::all().iter().filter(|sample| sample.is_for_the_machine()).collect::<Vec<_>>());
}
