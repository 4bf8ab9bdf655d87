//! CHECK and STATUS, which change nothing.

use cnimble_cni::Code;

use super::*;

#[test]
fn check_wants_a_lease_for_every_address_of_ours() {
    let mut node = Node::small();
    let text = "host-local: Failed to find address added by container c1";
    let err = node.check("c1").unwrap_err();
    assert_eq!((err.code, err.msg.as_str()), (Code::CHECK_FAILED, text));
    assert!(!node.store().exists());
    node.add("c1").unwrap();
    node.check("c1").unwrap();
    let result = |ips: &[&str]| {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({ "address": ip })).collect();
        json!({ "prevResult": { "cniVersion": "1.0.0", "ips": ips } })
    };
    // An address from another range.
    node.extra = result(&["10.0.0.2/29", "172.16.0.1/16"]);
    node.check("c1").unwrap();
    for other in ["10.0.0.3/29", "10.0.0.5/29"] {
        node.put("10.0.0.3", b"c2\r\neth0");
        node.extra = result(&["10.0.0.2/29", other]);
        let err = node.check("c1").unwrap_err();
        assert_eq!(err.msg, text);
        assert!(err.details.starts_with(other.trim_end_matches("/29")), "{}", err.details);
    }
    assert!(node.check("c3").is_err());
}

#[test]
fn a_full_range_is_a_failure_of_status_only_if_it_is_asked_for() {
    let mut node = Node::small();
    node.status().unwrap();
    assert!(node.snapshot().is_empty());
    for n in 2..=6 {
        node.add(&format!("c{n}")).unwrap();
    }
    let before = node.snapshot();
    node.status().unwrap();
    node.ipam["notReadyWhenFull"] = json!(true);
    let err = node.status().unwrap_err();
    assert_eq!(err.code, Code::NOT_AVAILABLE);
    assert!(err.msg.contains("no IP addresses available in range set: 10.0.0.1-10.0.0.6"), "{}", err.msg);
    assert_eq!(node.snapshot(), before);
    // A broken lease counts as free.
    node.put("10.0.0.4", b"");
    node.status().unwrap();
    node.del("c5");
    node.status().unwrap();
}

#[test]
fn status_and_add_report_a_read_only_store() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for data_dir in [file.path(), Path::new("/proc/1"), Path::new("/sys/kernel/x")] {
        let call =
            |command| call(data_dir, &json!({ "subnet": "10.0.0.0/29" }), &json!({}), command, "c1", "eth0");
        let err = HostLocal.status(&call(Command::Status)).unwrap_err();
        assert_eq!(err.code, Code::NOT_AVAILABLE, "{}", err.msg);
        let err = HostLocal.add(&call(Command::Add)).unwrap_err();
        assert_eq!(err.code, Code::IO, "{}", err.msg);
        assert!(err.msg.contains(data_dir.to_str().unwrap()), "{}", err.msg);
    }
}
