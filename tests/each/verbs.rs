//! Each verb of each plugin succeeds with the plugin's sample.

use std::path::Path;
use std::time::{Duration, SystemTime};

use cnimble_tests::{Attachment, Host, Network, Pod, Sample, configs, need, plugin_dir};

/// Calls every verb of these plugins.
fn every_verb_of(samples: &[&Sample]) {
    need!("ip", "nft", "dnsmasq");
    for sample in samples {
        let host = Host::new();
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

/// Returns the number of programs that ADD of bridge starts in a directory with these copies, including itself.
fn programs_started(host: &Host, dir: &Path) -> usize {
    let pod = Pod::new();
    let net = Network::by(dir, host, configs::v4(host));
    let attachment = Attachment::new("c1", &pod);
    let trace = host.dir().join("trace");
    let file = trace.to_str().unwrap();
    let strace = ["strace", "-f", "-qq", "-e", "trace=execve", "-e", "status=successful", "-o", file];
    net.call("ADD", &attachment, None).under(&strace).run().success();
    net.deleted(&attachment, None);
    let text = std::fs::read_to_string(&trace).unwrap();
    text.lines().filter(|line| line.contains("execve(\"")).count()
}

#[test]
fn copies_of_an_installer_call_each_other_in_one_process() {
    need!("ip", "strace");
    let host = Host::new();
    let dir = host.dir().join("copies");
    std::fs::create_dir(&dir).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
    let copy = |name: &str, time| {
        cnimble_tests::copy(&plugin_dir().join(name), &dir.join(name));
        std::fs::File::open(dir.join(name)).unwrap().set_modified(time).unwrap();
    };
    copy("bridge", time);
    copy("host-local", time);
    assert_eq!(programs_started(&host, &dir), 1);
    // Another program of the same size.
    copy("host-local", time + Duration::from_nanos(1));
    assert_eq!(programs_started(&host, &dir), 2);
}
