//! Remembers which addresses a pod had (`keepFor`), in a file beside the leases. It is a hint: an unreadable file
//! counts as empty, and a failed write is only logged. A remembered address is free, because no lease has it, also for
//! the Go plugin.
//!
//! A line has the time of the release in seconds since 1970, `NAMESPACE/NAME/IFNAME` and the addresses. The latest line
//! is the first. The clock is the real time, because a pod's name survives a reboot. A time in the future counts as
//! expired.

use std::io::Read;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use cnimble_leases::KEPT;
use cnimble_leases::files::{self, Entry};
use cnimble_leases::store::{Directory, Store};
use cnimble_plugin::Call;

/// The longest file in bytes, which is about 800 pods.
const LIMIT: usize = 64 << 10;

/// The memory of one interface of a pod. Its addresses count for a time after its DEL (`keepFor`).
pub(crate) struct Memory {
    pod: String,
    seconds: u64,
    now: u64,
}

impl Memory {
    /// Returns the memory of the pod in CNI_ARGS, for `seconds`. `None` for 0 seconds, or if CNI_ARGS names no pod.
    pub(crate) fn from_call(call: &Call, seconds: u64) -> Option<Self> {
        let args = call.args().ok().filter(|_| seconds > 0)?;
        let pod = format!("{}/{}/{}", args.get("K8S_POD_NAMESPACE")?, args.get("K8S_POD_NAME")?, call.ifname);
        let is_pod = pod.split('/').count() == 3
            && pod.split('/').all(|name| !name.is_empty() && !name.contains(char::is_whitespace));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        is_pod.then_some(Memory { pod, seconds, now })
    }

    /// Returns the addresses that the pod had last, or none if they have expired.
    pub(crate) fn recall(&self, dir: &Directory) -> Vec<IpAddr> {
        let text = read(dir);
        let own = text.lines().filter_map(parse).find(|line| line.pod == self.pod);
        own.filter(|line| self.counts(line)).map(|line| line.ips).unwrap_or_default()
    }

    /// Remembers the addresses as the pod's latest ones. Drops expired lines, and the oldest ones if the file would be
    /// too long. Does nothing without an address.
    pub(crate) fn save_addresses(&self, store: &Store, ips: &[IpAddr]) {
        if ips.is_empty() {
            return;
        }
        let mut new = format!("{} {}", self.now, self.pod);
        ips.iter().for_each(|ip| new += &format!(" {ip}"));
        let old = read(store);
        let others =
            old.lines().filter(|line| parse(line).is_some_and(|l| l.pod != self.pod && self.counts(&l)));
        let mut text = String::new();
        for line in std::iter::once(new.as_str()).chain(others) {
            if text.len() + line.len() >= LIMIT {
                break;
            }
            text.push_str(line);
            text.push('\n');
        }
        if let Err(err) = files::replace(store.fd(), KEPT, text.as_bytes(), files::MODE) {
            log::warn!(
                "the next pod of this name may get another address: {}",
                store.failed("writing", KEPT, err)
            );
        }
    }

    /// Returns true if the line has not expired.
    fn counts(&self, line: &MemoryLine<'_>) -> bool {
        self.now.checked_sub(line.released).is_some_and(|age| age < self.seconds)
    }
}

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemoryLine<'a> {
    released: u64,
    pod: &'a str,
    ips: Vec<IpAddr>,
}

/// Parses a line. `None` if it is damaged.
pub(crate) fn parse(line: &str) -> Option<MemoryLine<'_>> {
    let mut words = line.split(' ');
    let (released, pod) = (words.next()?.parse().ok()?, words.next()?);
    let ips = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some(MemoryLine { released, pod, ips })
}

/// Reads the file, or nothing if that fails. Of a file that is too long, only the beginning counts.
fn read(dir: &Directory) -> String {
    let mut bytes = Vec::new();
    if let Ok(Entry::Regular(file)) = files::open_regular(dir.fd(), KEPT) {
        let _ = file.take(LIMIT as u64).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
