//! The cache's files, to and from libcni.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::{Attach, Cache, Entry, Key, Lookup};

/// The exact bytes that libcni 1.1 writes for this attachment.
const LIBCNI: &str = concat!(
    r#"{"kind":"cniCacheV1","containerId":"c0ffee","config":"#,
    r#""eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoibmV0IiwicGx1Z2lucyI6W3sidHlwZSI6ImJyaWRnZSJ9XX0=","#,
    r#""ifName":"eth0","networkName":"net","netns":"/run/netns/x","#,
    r#""cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME","p"]],"#,
    r#""capabilityArgs":{"portMappings":[{"containerPort":80,"hostPort":8080}]},"#,
    r#""result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/x"}],"#,
    r#""ips":[{"address":"10.0.0.2/24","interface":0}]}}"#,
);

fn entry() -> Entry {
    let attach = Attach::new("c0ffee", "/run/netns/x", "eth0")
        .arg("IgnoreUnknown", "1")
        .arg("K8S_POD_NAME", "p")
        .capability("portMappings", json!([{"hostPort": 8080, "containerPort": 80}]));
    Entry {
        network: "net".to_owned(),
        container_id: attach.container_id,
        ifname: attach.ifname,
        netns: attach.netns,
        config: br#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#.to_vec(),
        args: attach.args,
        capability_args: attach.capability_args,
        result: Some(json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.0.0.2/24", "interface": 0}],
        })),
    }
}

const KEY: Key<'static> = Key { network: "net", container_id: "c0ffee", ifname: "eth0" };

#[test]
fn the_file_is_libcnis_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path().join("cni"));
    cache.put(&entry()).unwrap();
    let path = dir.path().join("cni/results/net-c0ffee-eth0");
    assert_eq!(cache.path(KEY), path);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), LIBCNI);
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    // Nothing else in either directory: libcni reads every file in the inner one.
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    assert_eq!(std::fs::read_dir(dir.path().join("cni")).unwrap().count(), 1);
}

#[test]
fn libcnis_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path());
    assert_eq!(cache.get(KEY).unwrap(), Lookup::Nothing);
    assert_eq!(cache.list().unwrap(), []);
    std::fs::create_dir(dir.path().join("results")).unwrap();
    std::fs::write(cache.path(KEY), LIBCNI).unwrap();
    let read = cache.get(KEY).unwrap().entry().unwrap();
    assert_eq!(read, entry());
    assert_eq!(read.network_list().unwrap().plugins[0].plugin_type, "bridge");
    assert_eq!(cache.list().unwrap(), [entry()]);
    // The least that libcni writes: no arguments, no namespace.
    let least = r#"{"kind":"cniCacheV1","containerId":"c","config":null,"ifName":"i","networkName":"n"}"#;
    let key = Key { network: "n", container_id: "c", ifname: "i" };
    std::fs::write(cache.path(key), least).unwrap();
    let read = cache.get(key).unwrap().entry().unwrap();
    assert_eq!((read.args.len(), read.result), (0, None));
}

#[test]
fn the_namespace_is_in_the_result_if_nowhere_else() {
    assert_eq!(entry().namespace(), Some("/run/netns/x"));
    let old = Entry { netns: String::new(), ..entry() };
    assert_eq!(old.namespace(), Some("/run/netns/x"));
    let host = json!({"interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": ""}]});
    assert_eq!(Entry { result: Some(host), ..old.clone() }.namespace(), None);
    assert_eq!(Entry { result: None, ..old }.namespace(), None);
}

#[test]
fn a_result_from_before_there_was_a_kind_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path());
    std::fs::create_dir(dir.path().join("results")).unwrap();
    let result = json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.2/24"}]});
    std::fs::write(cache.path(KEY), result.to_string()).unwrap();
    let read = cache.get(KEY).unwrap().entry().unwrap();
    assert_eq!(read.result, Some(result));
    assert!(read.network_list().is_err());
    // GC can't tell whose it is, as in libcni.
    assert_eq!(cache.list().unwrap(), []);
}

#[test]
fn an_entry_is_replaced_or_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path());
    cache.put(&entry()).unwrap();
    let newer = Entry { netns: "/run/netns/y".to_owned(), ..entry() };
    cache.put(&newer).unwrap();
    assert_eq!(cache.get(KEY).unwrap().entry().unwrap().netns, "/run/netns/y");
    cache.remove(KEY).unwrap();
    cache.remove(KEY).unwrap();
    assert_eq!(cache.get(KEY).unwrap(), Lookup::Nothing);
}

#[test]
fn what_is_no_file_is_neither_waited_for_nor_followed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path());
    cache.put(&entry()).unwrap();
    let path = cache.path(KEY);
    let secret = dir.path().join("secret");
    std::fs::rename(&path, &secret).unwrap();
    type Plant<'a> = &'a dyn Fn();
    let plants: [Plant<'_>; 4] = [
        &|| nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        &|| std::os::unix::fs::symlink(&secret, &path).unwrap(),
        &|| std::fs::create_dir(&path).unwrap(),
        &|| std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap(),
    ];
    for plant in plants {
        plant();
        assert!(matches!(cache.get(KEY).unwrap(), Lookup::Corrupt(_)));
        assert_eq!(cache.list().unwrap(), []);
        let aside = cache.rename_corrupt(KEY).unwrap();
        assert_eq!(cache.get(KEY).unwrap(), Lookup::Nothing);
        cache.put(&entry()).unwrap();
        cache.remove(KEY).unwrap();
        assert!(std::fs::remove_file(&aside).or_else(|_| std::fs::remove_dir(&aside)).is_ok());
    }
    assert!(secret.exists());
    // A name that is too long for a file has none.
    let long = "x".repeat(300);
    let key = Key { container_id: &long, ..KEY };
    assert_eq!(cache.get(key).unwrap(), Lookup::Nothing);
    cache.remove(key).unwrap();
}

#[test]
fn two_attachments_with_one_file_name_keep_their_hands_off_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path());
    let (network, container_id, ifname) = ("a".to_owned(), "b-c".to_owned(), "eth0".to_owned());
    let mine = Entry { network, container_id, ifname, ..entry() };
    cache.put(&mine).unwrap();
    let other = Entry { network: "a-b".to_owned(), container_id: "c".to_owned(), ..mine.clone() };
    assert_eq!(cache.path(mine.key()), cache.path(other.key()));
    assert_eq!(cache.get(other.key()).unwrap(), Lookup::Nothing);
    cache.remove(other.key()).unwrap();
    assert!(cache.put(&other).is_err());
    assert_eq!(cache.get(mine.key()).unwrap().entry(), Some(mine.clone()));
    cache.remove(mine.key()).unwrap();
    assert_eq!(cache.get(mine.key()).unwrap(), Lookup::Nothing);
}
