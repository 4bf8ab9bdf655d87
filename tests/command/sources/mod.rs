//! Tests the sources of pods. Files appear, change and become invalid. A URL is polled. An API server drops versions,
//! refuses requests and closes connections. All are on loopback and in the tests' own directories.

mod api;
mod directory;
mod hostile;
mod many;
mod rotate;
mod together;
mod url;

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use cnimble_pod::source::{Condition, Directory, PodConfig, PodUpdate, SourceKind, Sources, UrlSource};
use cnimble_tests::LIMIT;
use cnimble_tests::http::TextServer;

/// A time limit that is sufficient on a busy machine.
const LONG: Duration = LIMIT;

struct Listener {
    config: PodConfig,
    updates: Receiver<PodUpdate>,
    seen: BTreeSet<SourceKind>,
}

impl Listener {
    fn start(sources: Sources) -> Self {
        let (config, updates) = PodConfig::start(sources).unwrap();
        Listener { config, updates, seen: BTreeSet::new() }
    }

    /// Returns the next update, as `Add api default/a,default/b`.
    async fn next(&mut self) -> String {
        let update = tokio::time::timeout(LONG, self.updates.recv()).await.expect("no update").unwrap();
        self.seen.insert(update.source);
        let pods: Vec<String> = update.pods.iter().map(|pod| pod.id.name.clone()).collect();
        format!("{:?} {} {}", update.op, update.source, pods.join(","))
    }

    /// Waits until each condition contains one of these texts, in order.
    async fn wrong(&self, texts: &[&str]) -> Vec<Condition> {
        let mut conditions = self.config.conditions();
        let fit = |all: &Vec<Condition>| {
            all.len() == texts.len()
                && all.iter().zip(texts).all(|(one, text)| one.error.to_string().contains(text))
        };
        match tokio::time::timeout(LONG, conditions.wait_for(fit)).await {
            Ok(all) => all.unwrap().clone(),
            Err(_) => panic!("expected {texts:?}, there are {:#?}", *self.config.conditions().borrow()),
        }
    }

    fn ready(&self) -> bool {
        self.config.seen_all_sources(&self.seen)
    }

    fn pods(&self) -> Vec<String> {
        self.config.pods().iter().map(|pod| pod.id.name.clone()).collect()
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}})
}

fn write(dir: &Path, name: &str, text: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), text).unwrap();
}

fn directory(dir: &Path) -> Sources {
    Sources { directory: Some(Directory::new(dir)), ..Sources::default() }
}

/// Returns a loopback port without a listener. No process can listen on it while the socket exists.
fn taken_port() -> (OwnedFd, u16) {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let port = getsockname::<SockaddrIn>(socket.as_raw_fd()).unwrap().port();
    (socket, port)
}

fn url(server: &TextServer) -> Sources {
    let source = UrlSource { period: Duration::from_millis(20), ..UrlSource::new(server.url()) };
    Sources { url: Some(source), ..Sources::default() }
}
