//! Tests kills of the server at random moments.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use cnimble_cri::Client;
use cnimble_tests::{PATIENCE, need, wait_until};

use super::many::stress;
use super::{Shop, bridge, pod};

/// The knowledge of the clients when the server is killed.
#[derive(Default)]
struct Known {
    /// The sandbox IDs that were answered and not stopped since, by pod.
    up: Mutex<BTreeMap<String, String>>,
}

/// Runs pods, and stops and removes every second one, until the server is dead.
async fn customer(client: Client, known: &Known, name: String) {
    for attempt in 0.. {
        let config = cnimble_cri::PodConfig { attempt, ..pod(&name) };
        let Ok(id) = client.run(config, "").await else { return };
        if attempt % 2 == 0 {
            known.up.lock().unwrap().insert(format!("{name}-{attempt}"), id);
            continue;
        }
        if client.stop(&id).await.is_err() || client.remove(&id).await.is_err() {
            return;
        }
    }
}

/// Runs six clients and kills the server after a while. Then nothing may be lost or duplicated.
fn round(shop: &Shop, number: u64) {
    let serve = shop.start();
    let known = Known::default();
    std::thread::scope(|scope| {
        for customer_number in 0..6 {
            let known = &known;
            let name = format!("r{number}-c{customer_number}");
            scope.spawn(move || {
                shop.ask(|client| async move {
                    customer(client, known, name).await;
                    Ok(())
                })
            });
        }
        // A random moment. No result depends on it.
        std::thread::sleep(Duration::from_millis(20 + number * 37 % 400));
        serve.signal("KILL");
    });
    serve.wait_until_gone();
    let serve = shop.start();
    // All sandboxes are Ready, stopped or removed.
    shop.is_whole();
    let ready: Vec<String> = shop.list().into_iter().filter(|of| of.ready).map(|of| of.id).collect();
    for (pod, id) in known.up.lock().unwrap().iter() {
        assert!(ready.contains(id), "{pod} was answered, and its sandbox {id} is lost\n{}", shop.log());
    }
    shop.clear();
    serve.signal("KILL");
    serve.wait_until_gone();
}

#[test]
fn killed_at_any_moment_nothing_is_lost_or_doubled() {
    need!("ip", "nft");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    for number in 0..if stress() { 200 } else { 6 } {
        round(&shop, number);
    }
}

/// The server takes no plugin of the undo for one that a crash has left.
#[test]
fn a_call_whose_caller_gives_up_is_undone_by_the_invoker_alone() {
    need!("ip", "python3");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[serde_json::json!({"type": "slow"})]));
    let begun = shop.path("begun");
    shop.plugin(
        "slow",
        &format!(
            "[ \"$CNI_COMMAND\" != ADD ] || {{ trap 'sleep 1; exit 1' TERM; touch {}; while :; do sleep 0.05; done; }}",
            begun.display()
        ),
    );
    let serve = shop.start();
    let gives_up = async || {
        while !begun.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let answer = shop.ok(|client| async move {
        tokio::select! {
            answer = client.run(pod("web"), "") => Ok(Some(answer)),
            () = gives_up() => Ok(None),
        }
    });
    assert!(answer.is_none(), "{answer:?}");
    assert!(wait_until(PATIENCE, || shop.list().is_empty()), "{}", shop.log());
    shop.is_whole();
    assert!(shop.leases().is_empty() && !shop.log().contains("left by a crash"), "{}", shop.log());
    serve.stop();
}

/// The record shows the progress of the stop, so the next server completes it.
#[test]
fn a_stop_that_was_interrupted_is_finished_by_the_next_server() {
    need!("ip", "python3");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[serde_json::json!({"type": "slow"})]));
    let (begun, go) = (shop.path("begun"), shop.path("go"));
    shop.plugin(
        "slow",
        &format!(
            "[ \"$CNI_COMMAND\" != DEL ] || {{ touch {}; until [ -e {} ]; do sleep 0.05; done; }}",
            begun.display(),
            go.display()
        ),
    );
    let serve = shop.start();
    let web = shop.run(pod("web"));
    let id = web.sandbox.id.clone();
    std::thread::scope(|scope| {
        let id = id.clone();
        scope.spawn(|| shop.ask(|client| async move { client.stop(&id).await }));
        assert!(wait_until(PATIENCE, || begun.exists()), "{}", shop.log());
        // A sandbox isn't Ready while it is being stopped.
        assert!(!shop.list()[0].ready);
        serve.signal("KILL");
    });
    serve.wait_until_gone();
    std::fs::write(&go, "").unwrap();
    let serve = shop.start();
    shop.is_whole();
    let [left] = &shop.list()[..] else { panic!("{:?}", shop.list()) };
    assert!(left.id == id && !left.ready, "{left:?}");
    assert!(shop.leases().is_empty());
    shop.clear();
    serve.stop();
}
