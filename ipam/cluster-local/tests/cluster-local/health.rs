//! What the agent's pages and doctor say when an ADD that needs the store would fail.

use cnimble_tests::{PATIENCE, need, wait_until};

use super::site::{Member, Site};

const SMALL: &str = r#""blockSize": 28, "subnet": "10.1.0.0/28""#;

impl Member {
    /// Waits until the metric has this value.
    fn counts(&self, name: &str, count: u64) {
        let fits = || self.metric(name) == Some(count);
        assert!(wait_until(PATIENCE, fits), "{name}: {:?}\n{}", self.metric(name), self.log());
    }
}

#[test]
fn an_emptied_store_is_told() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::new(&world, r#""blockSize": 28, "subnet": "10.1.0.0/16""#);
    site.join(1);
    site.members[0].unready("run `cnimble ipam init --new`");
    site.init();
    let first = &mut site.members[0];
    first.add_pod();
    first.healthy("ok");
    first.counts("store_faults", 0);
    assert!(!first.command("doctor").text().contains("network cnimble: "));
    site.etcd.empty();
    first.unready("etcd has lost network cnimble: run `cnimble ipam init --recover`");
    first.counts("store_faults", 1);
    let found = first.command("doctor");
    assert!(found.status != 0 && found.text().contains("etcd has lost network cnimble"), "{}", found.text());
    // The node still gives addresses of its block.
    first.add_pod();
    first.command("ipam init cnimble --recover").success();
    first.unready("`cnimble ipam init --recover` has set the network up again");
}

#[test]
fn a_lost_share_is_told() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::new(&world, r#""blockSize": 28, "subnet": "10.1.0.0/16""#);
    site.join(1);
    site.init();
    let first = &mut site.members[0];
    first.add_pod();
    first.healthy("ok");
    std::fs::remove_file(first.host.data_dir().join("cnimble/.cnimble-share")).unwrap();
    first.unready("this one has lost its share");
    first.counts("store_faults", 1);
}

/// An agent that isn't ready would stop the roll-out of a later one, which could not empty the pool either.
#[test]
fn a_full_pool_is_told_and_no_illness() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::new(&world, SMALL);
    site.join(1);
    site.init();
    let first = &mut site.members[0];
    while first.pods.len() < 8 {
        first.add_pod();
    }
    first.healthy("the cluster has no free block of addresses for network cnimble");
    first.counts("networks_short", 1);
    first.counts("store_faults", 0);
}
