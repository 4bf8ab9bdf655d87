//! Tests an API server with thousands of pods, and terminated pods.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use cnimble_pod::source::Op;
use cnimble_tests::http::ApiServer;

use super::api::api;
use super::{Listener, pod, run};

/// Returns a pod of realistic size. The network needs little of it.
fn large(number: usize) -> Value {
    let mut pod = pod(&format!("pod-{number}"));
    pod["metadata"]["annotations"] = json!({"example.com/notes": "n".repeat(3000)});
    pod["spec"]["hostNetwork"] = json!(true);
    pod["status"] = json!({"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]});
    pod
}

impl Listener {
    /// Takes updates until `op` was reported for `count` pods.
    async fn hear(&mut self, op: Op, count: usize) {
        let mut names = BTreeSet::new();
        while names.len() < count {
            let update = tokio::time::timeout(super::LONG, self.updates.recv()).await;
            let update = update.unwrap_or_else(|_| panic!("{} of {count}", names.len())).unwrap();
            assert_eq!(update.op, op);
            names.extend(update.pods.iter().map(|pod| pod.id.name.clone()));
        }
    }
}

/// This tests the time. A cost that grows with the number of pods would exceed the limit many times.
#[test]
fn thousands_of_pods_come_change_and_go_one_by_one() {
    const COUNT: usize = 5000;
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        server.page(500);
        let mut listener = Listener::start(api(&server, dir.path(), None));
        assert_eq!(listener.next().await, "Add api ");
        server.put_all((0..COUNT).map(large));
        listener.hear(Op::Add, COUNT).await;
        assert_eq!(listener.config.pods().len(), COUNT);
        // A changed status causes no update. A changed hostname does.
        let statuses = (0..COUNT).map(|number| {
            let mut pod = large(number);
            pod["status"]["phase"] = json!("Running");
            pod
        });
        server.put_all(statuses);
        server.put_all((0..COUNT).map(|number| {
            let mut pod = large(number);
            pod["spec"]["hostname"] = json!("h");
            pod
        }));
        listener.hear(Op::Update, COUNT).await;
        // Another list causes no update.
        server.compact();
        server.put(large(COUNT));
        listener.hear(Op::Add, 1).await;
        for number in 0..=COUNT {
            server.delete(&format!("default/pod-{number}"));
        }
        listener.hear(Op::Remove, COUNT + 1).await;
        listener.wrong(&[]).await;
    });
}

#[test]
fn a_pod_that_has_ended_is_not_wanted_and_does_not_come_back() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        let with = |name: &str, phase: &str| {
            let mut pod = pod(name);
            pod["status"] = json!({"phase": phase});
            pod
        };
        server.put(with("ended", "Failed"));
        server.put(with("job", "Running"));
        let mut listener = Listener::start(api(&server, dir.path(), None));
        assert_eq!(listener.next().await, "Add api job");
        server.put(with("job", "Succeeded"));
        assert_eq!(listener.next().await, "Remove api job");
        server.put(with("ended", "Failed"));
        server.put(with("next", "Pending"));
        assert_eq!(listener.next().await, "Add api next");
        drop(listener);
        let mut again = Listener::start(api(&server, dir.path(), None));
        assert_eq!(again.next().await, "Add api next");
    });
}
