//! Foreign entries in a store.

use std::os::unix::fs::symlink;

use cnimble_cni::Code;

use super::*;

#[test]
fn broken_leases_are_healed() {
    let node = Node::small();
    node.put("10.0.0.2", b"");
    node.put("10.0.0.3", b"\0\0\0\0\0\0\0\0");
    node.put(".cnimble-new-1-0", b"c1\r\neth0");
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.2"]);
    assert_eq!(node.add("c2").unwrap(), ["10.0.0.3"]);
    assert_eq!(fs::read(node.store().join("10.0.0.3")).unwrap(), b"c2\r\neth0");
    assert_eq!(node.names(), ["10.0.0.2", "10.0.0.3", "last_reserved_ip.0", "lock"]);
}

#[test]
fn other_files_stay_and_their_addresses_are_not_given() {
    let node = Node::small();
    let at = |name: &str| node.store().join(name);
    node.put("outside", b"c1\r\neth0");
    symlink(at("outside"), at("10.0.0.2")).unwrap();
    fs::create_dir(at("10.0.0.3")).unwrap();
    nix::unistd::mkfifo(&at("10.0.0.4"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    node.put("10.0.0.5", &vec![b'x'; 100_000]);
    let before = node.snapshot();
    node.del("c1");
    assert_eq!(node.add("c1").unwrap(), ["10.0.0.6"]);
    assert!(node.add("c2").unwrap_err().msg.contains("no IP addresses available"));
    node.del("c1");
    fs::remove_file(at("last_reserved_ip.0")).unwrap();
    fs::remove_file(at("lock")).unwrap();
    assert_eq!(node.snapshot(), before);
    // A planted lock isn't followed.
    symlink("/etc/passwd", at("lock")).unwrap();
    assert_eq!(node.add("c1").unwrap_err().code, Code::IO);
}
