//! ADDs whose future is dropped, at each step of a chain.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::exec::{exists, until};
use super::{Bench, attach, network};
use crate::locks::Locks;
use crate::{Deadline, Invoker, Observer};

const CHAIN: [&str; 3] = ["one", "two", "three"];

/// Hangs in ADD until SIGTERM.
const HANGS: &str = r#"#!/bin/sh
name=${0##*/}; dir=${0%/*}/..
cat >/dev/null
echo "$CNI_COMMAND $name" >>"$dir/calls"
[ "$CNI_COMMAND" = ADD ] || exit 0
trap 'echo "TERM $name" >>"$dir/calls"; exit 1' TERM
echo $$ >"$dir/pid"
sleep 1000 & wait
"#;

fn hangs(bench: &Bench) -> impl Fn() -> bool {
    let pid = bench.path().join("pid");
    move || std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'))
}

fn locked(bench: &Bench) -> Invoker {
    bench.invoker().with_locks(Locks::new(bench.path().join("locks")))
}

/// Drops `work` as soon as `now` says so.
async fn drop_when<T: std::fmt::Debug>(work: impl Future<Output = T>, now: impl FnMut() -> bool) {
    tokio::select! {
        outcome = work => panic!("{outcome:?}"),
        now = until(now) => assert!(now),
    }
}

/// Waits for the end of the undo, which holds the network's lock.
async fn undone(invoker: &Invoker) {
    drop(invoker.alone(Some("net")).await.unwrap());
}

/// The calls of an ADD that is dropped in plugin `step` and undone.
fn add_and_undo(step: usize) -> Vec<String> {
    let adds = CHAIN[..=step].iter().map(|name| format!("ADD {name}"));
    let dels = CHAIN[..=step].iter().rev().map(|name| format!("DEL {name}"));
    adds.chain([format!("TERM {}", CHAIN[step])]).chain(dels).collect()
}

#[tokio::test]
async fn a_dropped_add_is_undone_at_each_step() {
    for (step, name) in CHAIN.into_iter().enumerate() {
        let bench = Bench::new(&CHAIN);
        bench.plugin(name, HANGS);
        let (invoker, net) = (locked(&bench), network("1.0.0", &CHAIN));
        drop_when(invoker.add(&net, &attach("c1")), hangs(&bench)).await;
        undone(&invoker).await;
        assert_eq!(bench.calls(), add_and_undo(step));
        assert_eq!(invoker.cache().list().unwrap(), []);
    }
}

#[tokio::test]
async fn a_plugin_that_ignores_sigterm_does_not_stop_the_undo() {
    let bench = Bench::new(&CHAIN);
    let deaf = HANGS.replace("trap '", "trap '' TERM; : '").replace("1000 & wait", "1000");
    bench.plugin("two", &deaf);
    let (invoker, net) = (locked(&bench), network("1.0.0", &CHAIN));
    drop_when(invoker.add(&net, &attach("c1")), hangs(&bench)).await;
    undone(&invoker).await;
    assert_eq!(bench.calls(), ["ADD one", "ADD two", "DEL two", "DEL one"]);
}

/// The thread that writes the entry is busy, so that the ADD is dropped before the entry is written.
#[test]
fn an_add_that_is_dropped_while_its_result_is_recorded_is_undone() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let bench = Bench::new(&CHAIN);
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        let observer = Observer::new(move |_| _ = count.fetch_add(1, Ordering::SeqCst));
        let (invoker, net) = (locked(&bench).with_observer(observer), network("1.0.0", &CHAIN));
        let (busy, wait) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || wait.recv());
        drop_when(invoker.add(&net, &attach("c1")), || ended.load(Ordering::SeqCst) == 3).await;
        drop(busy);
        undone(&invoker).await;
        assert_eq!(bench.calls(), ["ADD one", "ADD two", "ADD three", "DEL three", "DEL two", "DEL one"]);
        assert_eq!(invoker.cache().list().unwrap(), []);
        assert_eq!(bench.stdin(3)["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    });
}

#[tokio::test]
async fn the_next_operation_on_the_attachment_waits_for_the_undo() {
    let bench = Bench::new(&CHAIN);
    bench.plugin("two", HANGS);
    let (invoker, net) = (bench.invoker(), network("1.0.0", &CHAIN));
    drop_when(invoker.add(&net, &attach("c1")), hangs(&bench)).await;
    invoker.clone().del(&net, &attach("c1")).await.unwrap();
    let mut calls = add_and_undo(1);
    calls.extend(["DEL three", "DEL two", "DEL one"].map(str::to_owned));
    assert_eq!(bench.calls(), calls);
}

#[tokio::test]
async fn an_attachment_that_exists_survives_a_dropped_add() {
    let bench = Bench::new(&CHAIN);
    let (invoker, net) = (locked(&bench), network("1.0.0", &CHAIN));
    invoker.add(&net, &attach("c1")).await.unwrap();
    bench.calls();
    bench.plugin("two", HANGS);
    drop_when(invoker.add(&net, &attach("c1")), hangs(&bench)).await;
    undone(&invoker).await;
    assert_eq!(bench.calls(), ["ADD one", "ADD two", "TERM two"]);
    assert_eq!(invoker.cache().list().unwrap().len(), 1);
}

#[tokio::test]
async fn the_undo_of_a_failed_add_goes_on_without_its_caller() {
    let bench = Bench::new(&CHAIN);
    bench.fail("two", "ADD", 42);
    let (entered, go) = (bench.path().join("entered"), bench.path().join("go"));
    let script = r#"#!/bin/sh
cat >/dev/null
echo '{"cniVersion":"1.0.0"}'
[ $CNI_COMMAND = DEL ] || exit 0
: >DIR/entered
until [ -e DIR/go ]; do sleep 0.01; done
echo gone >>DIR/calls
"#;
    bench.plugin("one", &script.replace("DIR", bench.path().to_str().unwrap()));
    let (invoker, net) = (locked(&bench), network("1.0.0", &CHAIN));
    drop_when(invoker.add(&net, &attach("c1")), || entered.exists()).await;
    std::fs::write(go, "").unwrap();
    undone(&invoker).await;
    assert_eq!(bench.calls(), ["ADD two", "DEL two", "gone"]);
}

#[tokio::test]
async fn an_operation_waits_for_the_undo_until_its_deadline() {
    let bench = Bench::new(&CHAIN);
    bench.plugin("two", &HANGS.replace("= ADD ] || exit 0", "= ADD ] || exec sleep 1000"));
    let (invoker, net) = (bench.invoker(), network("1.0.0", &CHAIN));
    drop_when(invoker.add(&net, &attach("c1")), hangs(&bench)).await;
    let hurried = invoker.clone().with_deadline(Deadline::after(Duration::from_millis(50)));
    let outcome = tokio::time::timeout(Duration::from_secs(60), hurried.del(&net, &attach("c1"))).await;
    let err = outcome.unwrap().unwrap_err().to_string();
    assert!(err.contains("no answer within 50ms"), "{err}");
    assert!(!bench.calls().contains(&"DEL one".to_owned()));
}

#[test]
fn the_end_of_the_tokio_runtime_kills_the_plugin() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The ADD is dropped before that end, or by it.
    for before in [true, false] {
        let bench = Bench::new(&CHAIN);
        bench.plugin("two", HANGS);
        let (ending, invoker, started) = (runtime(), bench.invoker(), hangs(&bench));
        let add = async move { invoker.add(&network("1.0.0", &CHAIN), &attach("c1")).await };
        if before {
            ending.block_on(drop_when(add, started));
        } else {
            ending.spawn(add);
            assert!(ending.block_on(until(started)));
        }
        drop(ending);
        let pid = std::fs::read_to_string(bench.path().join("pid")).unwrap();
        let stat = Path::new("/proc").join(pid.trim()).join("stat");
        // Without tokio nothing reaps it.
        let dead = || !exists(&pid) || std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") Z"));
        assert!(runtime().block_on(until(dead)));
        assert_eq!(bench.calls(), ["ADD one", "ADD two"]);
    }
}
