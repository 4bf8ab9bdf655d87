//! Asks etcd or the API server by a separate program, because its clients are almost as large as all plugins together.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use cnimble_cni::{Code, Error};
use cnimble_leases::cluster::{config::Cluster, number};
use cnimble_leases::range::RangeSet;
use cnimble_leases::store::Directory;
use cnimble_os::child::{Failure, Limits, Output, run};
use cnimble_plugin::Call;

/// The program is beside the plugins.
const PROGRAM: &str = "cluster-local-etcd";
/// The file that the program locks. Its modification time is that of the last try.
const LOCK: &str = ".cnimble-share-lock";
/// An error as JSON is shorter.
const LIMIT: usize = 1 << 20;
/// The time after a try in which requests that can wait aren't sent.
const PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Confirm,
    /// Until the range set with this index has this number of free addresses.
    More(usize, usize),
    Address(IpAddr),
    Tidy,
}

impl Request {
    fn words(self) -> Vec<String> {
        match self {
            Request::Confirm => vec!["confirm".to_owned()],
            Request::More(set, count) => vec!["more".to_owned(), set.to_string(), count.to_string()],
            Request::Address(ip) => vec!["address".to_owned(), ip.to_string()],
            Request::Tidy => vec!["tidy".to_owned()],
        }
    }
}

/// Fails with the program's error, or with code 104 if it can't be run.
pub(crate) fn store(call: &Call, request: &Request) -> Result<(), Error> {
    let path = find(call)?;
    let failed = |why: &dyn std::fmt::Display| {
        Error::new(Code::DELEGATE, format!("asking for addresses by {}: {why}", path.display()))
    };
    let mut process = Command::new(&path);
    process.args(request.words()).env("CNI_ARGS", &call.raw_args);
    let limits = Limits { stdout: LIMIT, stderr: None };
    let Output { status, stdout, .. } =
        run(&mut process, &call.stdin, limits).map_err(|failure| match failure {
            Failure::Stopped(err) => err.context("asking for addresses"),
            other => failed(&other),
        })?;
    if status.success() {
        return Ok(());
    }
    let err = Error::from_json(&stdout).ok_or_else(|| failed(&status))?;
    Err(err.context("cluster-local"))
}

fn find(call: &Call) -> Result<PathBuf, Error> {
    let own = call.program.parent().filter(|dir| dir.is_absolute()).map(Path::to_owned);
    let dirs = call.path.iter().cloned().chain(own);
    let mut paths = dirs.map(|dir| dir.join(PROGRAM));
    paths.find(|path| path.is_file()).ok_or_else(|| {
        Error::new(Code::DELEGATE, format!("no program \"{PROGRAM}\" in CNI_PATH"))
            .details("cluster-local needs it to claim addresses; it is installed beside the plugins")
    })
}

pub(crate) fn offset(cluster: &Cluster, ip: IpAddr) -> u128 {
    number(ip) - number(cluster.block_of(ip))
}

pub(crate) fn was_tried(cluster: &Cluster) -> bool {
    let time = std::fs::metadata(cluster.base.store.join(LOCK)).and_then(|meta| meta.modified());
    let pause = PAUSE.min(cluster.offline / 8);
    time.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|since| since < pause))
}

/// Whether an address of `part` has no lease, or the leases can't be read.
pub(crate) fn has_room(cluster: &Cluster, part: &RangeSet) -> bool {
    let leases = match Directory::open(&cluster.base.store) {
        Ok(Some(dir)) => dir.addresses().unwrap_or_default(),
        _ => Vec::new(),
    };
    let leases: std::collections::HashSet<IpAddr> = leases.into_iter().collect();
    let mut usable = part.cycle(None).filter(|(ip, range)| *ip != range.gateway && !range.leaves_out(*ip));
    usable.any(|(ip, _)| !leases.contains(&ip))
}
