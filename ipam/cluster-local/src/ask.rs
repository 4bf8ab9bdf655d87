//! Asks the store of the cluster, etcd or the API server, by a separate program. Its clients are almost as large as all
//! plugins together.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use cnimble_cni::{Code, Error};
use cnimble_leases::cluster::{self, PROGRAM, config::Cluster, share::LOCK};
use cnimble_os::child::{Failure, Limits, Output, run};
use cnimble_plugin::Call;

/// The longest output of the program that is read, in bytes. It has only an error as JSON.
const LIMIT: usize = 1 << 20;
/// The time after a request in which requests that can wait are not sent.
const PAUSE: Duration = Duration::from_secs(30);

/// A request to the program that asks the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Has the store confirm the share of the node, which would expire otherwise.
    Confirm,
    /// Claims blocks until the range set with the first number has at least the second number of free addresses.
    More(usize, usize),
    /// Claims a single address for the node.
    Address(IpAddr),
    /// Gives unused blocks and addresses back to the cluster.
    Tidy,
}

impl Request {
    /// Returns the arguments of the program.
    fn words(self) -> Vec<String> {
        match self {
            Request::Confirm => vec!["confirm".to_owned()],
            Request::More(set, count) => vec!["more".to_owned(), set.to_string(), count.to_string()],
            Request::Address(ip) => vec!["address".to_owned(), ip.to_string()],
            Request::Tidy => vec!["tidy".to_owned()],
        }
    }
}

/// Runs the program with the plugin's configuration and waits for it. The outcome is in the share, which the program
/// writes. Fails with the program's error, or with code 104 if it cannot be run.
pub(crate) fn store(call: &Call, request: &Request) -> Result<(), Error> {
    let path = find(call)?;
    let mut process = Command::new(&path);
    process.args(request.words()).env("CNI_ARGS", &call.raw_args);
    let limits = Limits { stdout: LIMIT, stderr: None };
    let Output { status, stdout, .. } =
        run(&mut process, &call.stdin, limits).map_err(|failure| match failure {
            Failure::Stopped(err) => err.context("asking for addresses"),
            other => asking_failed(&path, &other),
        })?;
    if status.success() {
        return Ok(());
    }
    let err = Error::from_json(&stdout).ok_or_else(|| asking_failed(&path, &status))?;
    Err(err.context("cluster-local"))
}

/// Returns the error for a program that cannot be asked, with code 104.
fn asking_failed(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::new(Code::DELEGATE, format!("asking for addresses by {}: {why}", path.display()))
}

/// Finds the program in CNI_PATH, or else beside this plugin. Fails with code 104.
fn find(call: &Call) -> Result<PathBuf, Error> {
    let own = call.program.parent().filter(|dir| dir.is_absolute());
    let dirs: Vec<_> = call.path.iter().map(PathBuf::as_path).chain(own).collect();
    cluster::program(&dirs).ok_or_else(|| {
        Error::new(Code::DELEGATE, format!("no program \"{PROGRAM}\" in CNI_PATH"))
            .details("cluster-local needs it to claim addresses; it is installed beside the plugins")
    })
}

/// Returns true if the store was asked a moment ago, with or without success. The program sets the time of the lock
/// file when it takes the lock. The moment is [`PAUSE`], or an eighth of the time that a share is valid offline if that
/// is shorter.
pub(crate) fn was_tried(cluster: &Cluster) -> bool {
    let time = std::fs::metadata(cluster.base.store.join(LOCK)).and_then(|meta| meta.modified());
    let pause = PAUSE.min(cluster.offline / 8);
    time.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|since| since < pause))
}
