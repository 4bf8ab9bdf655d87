//! `logFile` and `logLevel`: a file or the journal, for runtimes that drop a plugin's stderr.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Pod, configs, need};

/// The lines, each a JSON object.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}")))
        .collect()
}

#[test]
fn the_outcome_of_each_call_is_in_the_file_with_its_fields() {
    need!("ip", "nft");
    let (host, pod) = (Host::new(), Pod::new());
    let file = host.dir().join("cni.log");
    let net = Network::new(&host, configs::dual(&host))
        .with("/logFile", json!(file))
        .with("/logLevel", json!("debug"));
    let att = Attachment::new("one", &pod);
    let added = net.add(&att).success();
    let of =
        |line: &Value| ["plugin", "verb", "network", "containerID", "ifname"].map(|key| line[key].clone());
    let expected = |verb: &str| {
        let network = net.config["name"].clone();
        [json!("bridge"), json!(verb), network, json!("one"), json!(att.ifname)]
    };
    let found = lines(&file);
    let last = found.last().unwrap();
    assert_eq!(of(last), expected("ADD"));
    assert_eq!((&last["level"], &last["message"]), (&json!("info"), &json!("done")));
    assert!(last["seconds"].as_f64().unwrap() > 0.0);
    let time = last["time"].as_str().unwrap();
    assert!(
        time.starts_with("20") && time.ends_with('Z') && time.len() == "2026-11-24T22:40:01.250000Z".len(),
        "{time}"
    );

    // The interface is there already: a failure with its code.
    let err = net.add(&att).error();
    let last = lines(&file).pop().unwrap();
    assert_eq!((of(&last), &last["level"]), (expected("ADD"), &json!("error")));
    assert_eq!(last["code"], json!(err.code));
    net.deleted(&att, Some(&added.result()));
    let last = lines(&file).pop().unwrap();
    assert_eq!((of(&last), &last["message"]), (expected("DEL"), &json!("done")));
}

/// Returns the fields of an entry in the journal's native protocol.
fn fields(mut entry: &[u8]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut found = Vec::new();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (text(&entry[..end]), &entry[end + 1..]);
        if let Some((name, value)) = line.split_once('=') {
            found.push((name.to_owned(), value.to_owned()));
            entry = rest;
        } else {
            let (length, rest) = rest.split_first_chunk::<8>().unwrap();
            let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
            found.push((line, text(value)));
            entry = rest.strip_prefix(b"\n").unwrap();
        }
    }
    found
}

#[test]
fn the_outcome_of_each_call_is_in_the_journal_with_its_fields() {
    need!("ip", "nft");
    let (host, pod) = (Host::new(), Pod::new());
    let net = Network::new(&host, configs::dual(&host)).with("/logFile", json!("journal"));
    let att = Attachment::new("one", &pod);
    let added = net.add(&att).success();
    assert!(added.stderr.contains("can't open the log file journal"), "{}", added.describe());
    // /run is the test's own.
    fs::create_dir_all("/run/systemd/journal").unwrap();
    let journal = UnixDatagram::bind("/run/systemd/journal/socket").unwrap();
    net.deleted(&att, Some(&added.result()));
    let mut buffer = [0; 4096];
    let length = journal.recv(&mut buffer).unwrap();
    let found = fields(&buffer[..length]);
    let network = net.config["name"].as_str().unwrap();
    for (name, value) in [
        ("PRIORITY", "6"),
        ("SYSLOG_IDENTIFIER", "cnimble"),
        ("MESSAGE", "done"),
        ("CNI_PLUGIN", "bridge"),
        ("CNI_VERB", "DEL"),
        ("CNI_NETWORK", network),
        ("CNI_CONTAINERID", "one"),
        ("CNI_IFNAME", &att.ifname),
    ] {
        assert!(found.contains(&(name.to_owned(), value.to_owned())), "{name}={value}: {found:?}");
    }
}

#[test]
fn a_file_that_cant_be_opened_keeps_no_pod_from_its_network_and_a_bad_level_no_del() {
    need!("ip", "nft");
    let (host, pod) = (Host::new(), Pod::new());
    let missing = host.dir().join("missing/cni.log");
    let net = Network::new(&host, configs::dual(&host)).with("/logFile", json!(missing));
    let att = Attachment::new("one", &pod);
    let added = net.add(&att).success();
    assert!(added.stderr.contains("can't open the log file"), "{}", added.describe());

    // Whoever can write to the directory could name another file of root by a link, and the working directory is the
    // runtime's.
    let target = host.dir().join("target");
    std::fs::write(&target, "mine").unwrap();
    let link = host.dir().join("link.log");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    for (path, why) in
        [(link.to_str().unwrap(), "it is a symbolic link"), ("cni-relative.log", "it is no absolute path")]
    {
        let outcome = net.with("/logFile", json!(path)).check(&att, &added.result()).success();
        let told = format!("can't open the log file {path}: {why}");
        assert!(outcome.stderr.contains(&told), "{}", outcome.describe());
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
    assert!(!std::path::Path::new("cni-relative.log").exists());

    let file = host.dir().join("cni.log");
    let loud = Network::new(&host, configs::dual(&host))
        .with("/logFile", json!(file))
        .with("/logLevel", json!("loud"));
    let err = loud.check(&att, &added.result()).error();
    assert!(err.code == 7 && err.msg.contains("unknown logLevel"), "{err:?}");
    loud.deleted(&att, Some(&added.result()));
    assert!(!file.exists());
}
