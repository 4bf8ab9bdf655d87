//! The configuration directory.

use cnimble_cni::Version;

use super::Bench;
use crate::{ConfDir, ConfError, load_file};

fn list(name: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"inline"}}]}}"#)
}

#[test]
fn lists_come_first_then_single_plugins_each_sorted() {
    let bench = Bench::new(&[]);
    bench.write("20-b.conflist", &list("b"));
    bench.write("10-c.conf", r#"{"cniVersion":"0.3.1","name":"c","type":"bridge"}"#);
    bench.write("30-a.conflist", &list("a"));
    bench.write("05-d.json", r#"{"name":"d","type":"ptp"}"#);
    bench.write("40-e.txt", &list("e"));
    bench.write("50-a.conflist", &list("a"));
    std::fs::create_dir(bench.path().join("60-f.conflist")).unwrap();
    let conf = ConfDir::new(bench.path());
    let listing = conf.list().unwrap();
    let names: Vec<&str> = listing.networks.iter().map(|network| network.list.name.as_str()).collect();
    assert_eq!(names, ["b", "a", "a", "d", "c"]);
    assert!(listing.problems.is_empty());
    let single = conf.load("c").unwrap();
    assert_eq!((single.plugins[0].plugin_type.as_str(), single.version), ("bridge", Version::V0_3_1));
    assert_eq!(conf.load("d").unwrap().version, Version::V0_1_0);
    assert!(ConfDir::new("/nonexistent").list().unwrap().networks.is_empty());
}

#[test]
fn a_bad_file_is_reported_with_its_position_and_hides_nothing() {
    let bench = Bench::new(&[]);
    bench.write("10-bad.conflist", "{\"cniVersion\": \"1.0.0\",\n \"name\" \"x\"}");
    bench.write("20-good.conflist", &list("good"));
    bench.write("30-type.conflist", r#"{"name":"n","plugins":[{"type":"a"},{"type":7}]}"#);
    bench.write("40-empty.conflist", "");
    bench.write("50-none.conflist", r#"{"name":"none"}"#);
    std::fs::write(bench.path().join("60-utf8.conf"), b"\xff\xfe").unwrap();
    std::os::unix::fs::symlink("nowhere", bench.path().join("70-link.conf")).unwrap();
    let conf = ConfDir::new(bench.path());
    let listing = conf.list().unwrap();
    assert_eq!(listing.networks.len(), 1);
    let dir = format!("{}/", bench.path().display());
    let problems: Vec<String> =
        listing.problems.iter().map(|problem| problem.to_string().replace(&dir, "")).collect();
    assert_eq!(problems[0], "10-bad.conflist:2:9: expected `:`");
    assert!(problems[1].starts_with("30-type.conflist: plugins[1].type: "), "{}", problems[1]);
    assert!(problems[2].starts_with("40-empty.conflist:1:0: EOF"), "{}", problems[2]);
    assert_eq!(problems[3], "50-none.conflist: network \"none\" has no plugins");
    assert!(problems[4].starts_with("60-utf8.conf:1:1: "), "{}", problems[4]);
    assert!(problems[5].starts_with("70-link.conf: can't be read: "), "{}", problems[5]);
    assert_eq!(conf.load("good").unwrap().name, "good");
    let err = conf.load("x").unwrap_err();
    assert!(matches!(&err, ConfError::NoNetwork { known, bad, .. } if known == &["good"] && bad.len() == 6));
    assert!(err.to_string().contains("there is good; skipped "), "{err}");
}

#[test]
fn plugins_come_from_the_networks_folder_too() {
    let bench = Bench::new(&[]);
    std::fs::create_dir(bench.path().join("net")).unwrap();
    bench.write("net/20-two.conf", r#"{"type":"two"}"#);
    bench.write("net/10-one.conf", r#"{"type":"one"}"#);
    bench.write("net/30-no.conflist", "no plugin");
    bench.write("net.conflist", &list("net"));
    let types = || -> Vec<String> {
        let network = load_file(&bench.path().join("net.conflist")).unwrap();
        network.plugins.into_iter().map(|plugin| plugin.plugin_type).collect()
    };
    assert_eq!(types(), ["inline", "one", "two"]);
    bench.write("net.conflist", r#"{"name":"net"}"#);
    assert_eq!(types(), ["one", "two"]);
    bench.write("net.conflist", r#"{"name":"net","loadOnlyInlinedPlugins":"true","plugins":[{"type":"x"}]}"#);
    assert_eq!(types(), ["x"]);
    bench.write("net.conflist", &list("net"));
    bench.write("net/40-bad.conf", "{}");
    let err = load_file(&bench.path().join("net.conflist")).unwrap_err().to_string();
    assert!(err.contains("net/40-bad.conf: missing plugin type"), "{err}");
}
