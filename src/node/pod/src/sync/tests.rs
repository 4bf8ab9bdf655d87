#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

use super::*;

fn pod(name: &str, uid: &str) -> SandboxConfig {
    SandboxConfig::new(id(name), uid)
}

fn id(name: &str) -> PodId {
    PodId::new("default", name)
}

struct Record {
    log: Mutex<Vec<(Duration, String)>>,
    failures: Mutex<BTreeMap<String, u32>>,
    held: Mutex<BTreeMap<String, Arc<Notify>>>,
    existing: Mutex<Result<Vec<PodId>, String>>,
    lost: Mutex<Vec<(PodId, Cause)>>,
    begun: Instant,
}

struct Recorder(Arc<Record>);

impl Record {
    fn note(&self, what: String) {
        self.log.lock().unwrap().push((self.begun.elapsed(), what));
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().iter().map(|(_, what)| what.clone()).collect()
    }

    fn count(&self, what: &str) -> usize {
        self.log().iter().filter(|line| line.starts_with(what)).count()
    }

    fn hold(&self, name: &str) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        self.held.lock().unwrap().insert(name.to_owned(), Arc::clone(&notify));
        notify
    }

    async fn held(&self, name: &str) {
        let notify = self.held.lock().unwrap().get(name).cloned();
        if let Some(notify) = notify {
            notify.notified().await;
        }
    }

    fn fails(&self, name: &str) -> Result<(), Condition> {
        match self.failures.lock().unwrap().get_mut(name) {
            Some(left) if *left > 0 => {
                *left -= 1;
                Err(Condition { reason: "Bad", message: "it is bad".to_owned() })
            }
            _ => Ok(()),
        }
    }
}

impl Work for Recorder {
    async fn up(&self, pod: &Arc<SandboxConfig>, cause: &Cause) -> Result<Up, Condition> {
        self.0.note(format!("up {} {} {cause:?}", pod.pod.name, pod.uid));
        self.0.held(&pod.pod.name).await;
        self.0.fails(&pod.pod.name)?;
        Ok(Up { sandbox: format!("of-{}", pod.uid), ips: Vec::new() })
    }

    async fn down(&self, pod: &PodId) -> Result<(), Condition> {
        self.0.note(format!("down {}", pod.name));
        self.0.held(&pod.name).await;
        self.0.fails(&pod.name)
    }

    async fn existing(&self) -> Result<Vec<PodId>, String> {
        self.0.existing.lock().unwrap().clone()
    }

    async fn lost(&self) -> Vec<(PodId, Cause)> {
        std::mem::take(&mut self.0.lost.lock().unwrap())
    }

    async fn clean(&self) -> Result<(), String> {
        self.0.note("clean".to_owned());
        Ok(())
    }
}

struct Running {
    record: Arc<Record>,
    inputs: mpsc::Sender<Input>,
    handle: Handle,
    board: Board,
    task: tokio::task::JoinHandle<Ended>,
}

impl Running {
    fn start(options: SyncOptions) -> Self {
        let record = Arc::new(Record {
            log: Mutex::default(),
            failures: Mutex::default(),
            held: Mutex::default(),
            existing: Mutex::new(Ok(Vec::new())),
            lost: Mutex::default(),
            begun: Instant::now(),
        });
        let (looping, handle) = SyncLoop::new(Recorder(Arc::clone(&record)), options);
        let (inputs, received) = mpsc::channel(8);
        let board = looping.board();
        let task = tokio::spawn(looping.run(received));
        Running { record, inputs, handle, board, task }
    }

    async fn send(&self, input: Input) {
        self.inputs.send(input).await.unwrap();
        // Time is paused: all other tasks run first.
        sleep(Duration::from_millis(1)).await;
    }

    fn phase(&self, name: &str) -> Option<Phase> {
        self.board.pods().into_iter().find(|pod| pod.id == id(name)).map(|pod| pod.phase)
    }
}

fn options() -> SyncOptions {
    SyncOptions { check: None, clean: None, ..SyncOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn of_what_comes_in_while_a_worker_is_busy_only_the_latest_counts() {
    let it = Running::start(options());
    let hold = it.record.hold("web");
    it.send(Input::Want(vec![pod("web", "1")])).await;
    for uid in ["2", "3"] {
        it.send(Input::Unwant(vec![(id("web"), (uid.parse::<u32>().unwrap() - 1).to_string())])).await;
        it.send(Input::Want(vec![pod("web", uid)])).await;
    }
    // Old news doesn't take the new pod down.
    it.send(Input::Unwant(vec![(id("web"), "1".to_owned())])).await;
    it.send(Input::Want(vec![pod("db", "9")])).await;
    assert_eq!(it.record.log(), ["up web 1 Config", "up db 9 Config"], "nobody waits for web");
    assert_eq!((it.phase("web"), it.phase("db")), (Some(Phase::Pending), Some(Phase::Ready)));
    hold.notify_one();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(it.record.log()[2..], ["up web 3 Config"]);
    hold.notify_one();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(it.phase("web"), Some(Phase::Ready));
    it.send(Input::Unwant(vec![(id("web"), "3".to_owned())])).await;
    hold.notify_one();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(it.record.log()[3..], ["down web"]);
    assert_eq!(it.phase("web"), None);
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_later_and_later() {
    let it = Running::start(options());
    it.record.failures.lock().unwrap().insert("web".to_owned(), 4);
    it.send(Input::Want(vec![pod("web", "1")])).await;
    assert_eq!(it.phase("web"), Some(Phase::Failed));
    sleep(Duration::from_secs(40)).await;
    assert_eq!(it.phase("web"), Some(Phase::Ready));
    let log = it.record.log.lock().unwrap().clone();
    let times: Vec<u64> = log.iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!(log.len(), 5, "{log:?}");
    assert!(log[1..].iter().all(|(_, what)| what == "up web 1 Retry"), "{log:?}");
    // 1, 2, 4 and 8 s, up to a fifth more, and up to the next tick.
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, least) in gaps.iter().zip([1, 2, 4, 8]) {
        assert!((least..=least + least / 5 + 2).contains(gap), "{gaps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_now_does_not_wait() {
    let it = Running::start(options());
    it.record.failures.lock().unwrap().insert("web".to_owned(), 5);
    it.send(Input::Want(vec![pod("web", "1")])).await;
    sleep(Duration::from_secs(20)).await;
    let before = it.record.count("up web");
    it.handle.retry_now();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(it.record.count("up web"), before + 1);
}

#[tokio::test(start_paused = true)]
async fn orphans_go_when_all_sources_are_ready_and_not_before() {
    let it = Running::start(options());
    *it.record.existing.lock().unwrap() = Ok(vec![id("old"), id("web")]);
    it.send(Input::Want(vec![pod("web", "1")])).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(it.record.count("down"), 0);
    assert!(!it.board.overall().borrow().settled);
    it.send(Input::SourcesReady).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(it.record.log()[1..], ["down old"]);
    assert!(it.board.overall().borrow().settled);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_while_nothing_can_be() {
    let it = Running::start(options());
    *it.record.existing.lock().unwrap() = Err("disk on fire".to_owned());
    sleep(Duration::from_secs(3)).await;
    it.send(Input::Want(vec![pod("web", "1")])).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(it.record.log(), [""; 0]);
    assert_eq!(it.board.overall().borrow().trouble.as_deref(), Some("disk on fire"));
    *it.record.existing.lock().unwrap() = Ok(Vec::new());
    sleep(Duration::from_secs(6)).await;
    assert_eq!(it.record.log(), ["up web 1 Config"]);
    assert_eq!(it.board.overall().borrow().trouble, None);
}

#[tokio::test(start_paused = true)]
async fn pods_are_checked_and_repaired() {
    let it = Running::start(SyncOptions { check: Some(Duration::from_secs(60)), ..options() });
    it.send(Input::Want(vec![pod("web", "1")])).await;
    sleep(Duration::from_secs(74)).await;
    assert_eq!(it.record.log()[1..], ["up web 1 Check(0)"]);
    // A failed check is repeated, with the number of failures.
    it.record.failures.lock().unwrap().insert("web".to_owned(), 2);
    sleep(Duration::from_secs(80)).await;
    assert_eq!(it.record.log()[2..], ["up web 1 Check(0)", "up web 1 Check(1)", "up web 1 Check(2)"]);
    let lost = Cause::Lost { sandbox: "of-1".to_owned(), what: "its process died".to_owned() };
    it.record.lost.lock().unwrap().push((id("web"), lost.clone()));
    it.record.lost.lock().unwrap().push((id("gone"), lost));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(it.record.count("up web 1 Lost"), 1);
    assert_eq!(it.record.count("up gone"), 0);
}

#[tokio::test(start_paused = true)]
async fn cleaning_waits_until_nobody_is_at_work() {
    let it = Running::start(SyncOptions { clean: Some(Duration::from_secs(600)), ..options() });
    let hold = it.record.hold("web");
    it.send(Input::Want(vec![pod("web", "1")])).await;
    it.send(Input::SourcesReady).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(it.record.count("clean"), 0);
    hold.notify_one();
    sleep(Duration::from_secs(100)).await;
    assert_eq!(it.record.count("clean"), 1);
    it.handle.clean_now();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(it.record.count("clean"), 2, "it has been asked for");
}

#[tokio::test(start_paused = true)]
async fn no_more_are_at_work_than_allowed() {
    let it = Running::start(SyncOptions { parallel: 2, ..options() });
    let holds: Vec<_> = ["a", "b", "c"].iter().map(|name| it.record.hold(name)).collect();
    it.send(Input::Want(vec![pod("a", "1"), pod("b", "1"), pod("c", "1")])).await;
    assert_eq!(it.record.count("up"), 2);
    holds.iter().for_each(|hold| hold.notify_one());
    sleep(Duration::from_millis(1)).await;
    assert_eq!(it.record.count("up"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_was_begun_and_leaves_pods_up() {
    let it = Running::start(SyncOptions { parallel: 1, ..options() });
    let hold = it.record.hold("a");
    it.send(Input::Want(vec![pod("a", "1"), pod("b", "1")])).await;
    it.handle.stop(Pods::Leave);
    sleep(Duration::from_secs(5)).await;
    assert!(!it.task.is_finished(), "it waits for a");
    hold.notify_one();
    let ended = timeout(Duration::from_secs(2), it.task).await.unwrap().unwrap();
    assert_eq!(ended, Ended::default());
    assert_eq!(it.record.log(), ["up a 1 Config"], "b was not begun, nothing was taken down");
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_ever() {
    let it = Running::start(options());
    it.record.hold("a");
    it.send(Input::Want(vec![pod("a", "1")])).await;
    it.handle.stop(Pods::Leave);
    let ended = timeout(Duration::from_secs(60), it.task).await.unwrap().unwrap();
    assert_eq!(ended.unfinished, [id("a")]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_may_take_pods_down() {
    let it = Running::start(options());
    it.record.failures.lock().unwrap().insert("bad".to_owned(), 100);
    it.send(Input::Want(vec![pod("a", "1"), pod("bad", "1")])).await;
    it.handle.stop(Pods::TearDown);
    let ended = timeout(Duration::from_secs(60), it.task).await.unwrap().unwrap();
    assert_eq!(ended.unfinished, [id("bad")]);
    assert_eq!(it.record.count("down"), 2);
}
