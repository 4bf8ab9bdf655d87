//! Tests an agent's pages in each state, and its messages to a service manager.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use cnimble_tests::{Background, LIMIT, PATIENCE, need, wait_until};

use super::members::{Member, Site, object};

impl Member {
    /// Waits until `/healthz` has this status and these words. Without words the page must be `ok` alone.
    fn is(&self, status: u16, words: &str) {
        let now = || self.get("/healthz");
        let fits = |(code, text): (u16, String)| {
            code == status && if words.is_empty() { text == "ok\n" } else { text.contains(words) }
        };
        assert!(wait_until(PATIENCE, || now().is_some_and(fits)), "{words}: {:?}\n{}", now(), self.log());
    }

    fn counts(&self, metrics: &[(&str, u64)]) {
        for (name, count) in metrics {
            assert_eq!(self.metric(name), Some(*count), "{name}: {:?}", self.get("/metrics"));
        }
    }
}

#[test]
fn pages_tell_of_each_state_and_faults_of_other_nodes_are_no_illness() {
    need!("ip", "nft");
    let mut site = Site::new(0);
    site.api.fail(Some(503));
    site.join(1);
    let node = &site.members[0];
    node.is(503, "InternalError");
    node.counts(&[("nodes", 0), ("api_reachable", 0), ("looks_total", 0), ("writes_total", 0)]);
    site.api.fail(None);
    node.is(200, "");
    node.counts(&[("nodes", 1), ("api_reachable", 1), ("routes", 0), ("conditions", 0), ("failures", 0)]);
    assert!(node.metric("looks_total").is_some_and(|looks| looks > 0));
    // The routes stay, so the agent stays healthy and needs no restart.
    site.api.fail(Some(503));
    node.is(200, "nodes are as they were told of last");
    node.counts(&[("nodes", 1), ("api_reachable", 0)]);
    site.api.fail(None);
    node.is(200, "");
    let mut far = object(10);
    far["status"]["addresses"] = json!([{"type": "InternalIP", "address": "198.51.100.1"}]);
    far["spec"]["podCIDRs"] = json!(["10.1.10.0/24"]);
    site.api.put(far);
    node.is(200, "node node10: there is no way to 10.1.10.0/24: 198.51.100.1 is on no link of this host");
    node.counts(&[("nodes", 2), ("conditions", 1), ("failures", 0), ("routes", 0)]);
    site.api.delete("default/node10");
    node.is(200, "");
    node.host.ip("route add 10.1.7.0/24 via 192.0.2.254 proto static");
    site.api.put(object(7));
    node.is(200, "node node7: there is a route to 10.1.7.0/24 already that cnimble has not made");
    node.counts(&[("conditions", 1), ("routes", 1)]);
    let (_, text) = node.get("/nodes").unwrap();
    let page: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(page["podCIDRs"], json!(["10.1.1.0/24", "fd00:1:1::/64"]));
    assert_eq!((&page["routes"], &page["conditions"][0]["node"]), (&json!(1), &json!("node7")), "{text}");
    assert_eq!((&page["failures"], &page["api"]), (&json!([]), &json!(null)), "{text}");
    node.host.ip("route del 10.1.7.0/24");
    node.is(200, "");
    // A fault of this node makes it unhealthy.
    let dir = node.host.dir().join("net.d");
    // The agent may write a draft meanwhile.
    let is_replaced = || std::fs::remove_dir_all(&dir).is_ok() && std::fs::write(&dir, "").is_ok();
    assert!(wait_until(PATIENCE, is_replaced));
    site.api.put(object(8));
    node.is(503, "net.d");
    node.counts(&[("failures", 1), ("routes", 4)]);
    std::fs::remove_file(&dir).unwrap();
    site.api.delete("default/node8");
    node.is(200, "");
    assert!(node.conflist().exists());
}

/// A server whose store was lost lists no node. All pods would lose their routes.
#[test]
fn a_list_without_any_node_changes_nothing() {
    need!("ip", "nft");
    let mut site = Site::new(2);
    site.settled();
    let node = &mut site.members[0];
    let before = node.routes();
    node.agent = None;
    site.api.delete("default/node1");
    site.api.delete("default/node2");
    node.start("");
    node.is(503, "it lists no node");
    assert_eq!(node.routes(), before);
    site.api.put(object(1));
    site.api.put(object(2));
    site.settled();
}

/// Linux' own probes would take eleven minutes, or nearly five with the first one after 30 seconds.
#[test]
fn an_api_server_that_falls_silent_is_noticed() {
    need!("ip", "nft");
    let site = Site::new(1);
    site.settled();
    let node = &site.members[0];
    node.is(200, "");
    site.world.nft("add table ip silent");
    site.world.nft("add chain ip silent input { type filter hook input priority 0; }");
    site.world.nft("add rule ip silent input tcp dport 6443 drop");
    node.is(200, "nodes are as they were told of last");
    site.world.nft("delete table ip silent");
    node.is(200, "");
}

#[test]
fn a_service_manager_is_told_and_sigterm_takes_nothing_away() {
    need!("ip", "nft");
    let mut site = Site::new(2);
    site.settled();
    let node = &mut site.members[0];
    node.agent = None;
    let socket = node.host.dir().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut heard = String::new();
    let mut hear = |words: &str| {
        let told = || {
            let mut buffer = [0; 4096];
            if let Ok(length) = manager.recv(&mut buffer) {
                heard.push_str(&String::from_utf8_lossy(&buffer[..length]));
                heard.push('\n');
            }
            heard.contains(words)
        };
        assert!(wait_until(PATIENCE, told), "{words}: {heard}");
    };
    let mut command = node.node("");
    let mut agent = Background::start(command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "3000000"));
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("STATUS=2 routes, 0 conditions, 0 failures");
    assert!(agent.running());
    kill(Pid::from_raw(agent.pid().try_into().unwrap()), Signal::SIGTERM).unwrap();
    hear("STOPPING=1");
    assert_eq!(agent.finish(LIMIT).status.code(), Some(0));
    assert_eq!(node.routes().len(), 2);
    assert!(node.conflist().exists() && node.host.nft("list tables").contains("cnimble-node"));
}
