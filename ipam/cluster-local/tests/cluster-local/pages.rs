//! More records than one answer of etcd may hold, which is 4 MiB.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use cnimble_tests::{Host, PATIENCE, wait_until};

use super::cluster_of;
use super::etcd::Etcd;
use super::watch::Watch;

/// The number of records. They have 2 kB each.
const RECORDS: u32 = 2500;

/// Writes a record for each number.
fn fill(etcd: &Etcd<'_>, of: impl Fn(u32) -> (String, String)) {
    let numbers: Vec<u32> = (0..RECORDS).collect();
    // A transaction has at most 128 operations.
    for part in numbers.chunks(100) {
        let puts: String =
            part.iter().map(|n| of(*n)).map(|(key, value)| format!("put {key} {}\n", json!(value))).collect();
        let mut txn = etcd.ctl("txn").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        txn.stdin.take().unwrap().write_all(format!("\n{puts}\n\n").as_bytes()).unwrap();
        assert!(txn.wait().unwrap().success());
    }
}

#[test]
fn more_blocks_than_an_answer_may_hold_are_read_in_pages() {
    let host = Host::new();
    let (etcd, nodes) = cluster_of(&host, 1, "10.0.0.0/8", 29);
    nodes[0].added("p1");
    let first = |n: u32| 0x0a80_0000 + n * 8;
    let node = |n: u32| format!("node{n}");
    fill(&etcd, |n| {
        let owner = json!({"node": node(n), "instance": "i".repeat(2000), "offline": 3_600_000});
        (format!("/cnimble/ipam/net/blocks/4-{:08x}", first(n)), owner.to_string())
    });
    let blocks = nodes[1].operate("blocks").unwrap();
    let count = RECORDS as usize + 1;
    assert_eq!(blocks.as_array().unwrap().len(), count);
    // Each record is there once.
    let watch = Watch::start(&host, &nodes[2], 0);
    watch.tells("all nodes", |nodes| nodes.as_object().is_some_and(|nodes| nodes.len() == count));
    let last = std::net::Ipv4Addr::from(first(RECORDS - 1)).to_string();
    assert_eq!(watch.nodes()[node(RECORDS - 1)]["blocks"], json!([last]));
    // Changes after the last page are seen.
    nodes[1].added("p1");
    watch.tells("a change", |nodes| nodes["b"]["blocks"] != Value::Null);
    // A node whose list of addresses is long.
    fill(&etcd, |n| (format!("/cnimble/ipam/net/owned/a/4-{:08x}", first(n)), "i".repeat(2000)));
    nodes[0].operate("confirm").unwrap();
    assert!(wait_until(PATIENCE, || nodes[0].operate("tend").is_ok()));
}
