//! A node's share of a cluster's addresses: a small, synced file in the network's directory, beside the leases.
//!
//! The file never claims more than the store grants: it is written after a claim, and before a return.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnetwork::IpNetwork;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use cnimble_cni::{Code, Error};
use cnimble_os::files::{self as files, Links};

use super::config::Cluster;
use crate::boot;
use crate::range::{Range, RangeSet};
use crate::store::Directory;

/// The name of the share's file beside the leases. It is no address, so nobody takes it for a lease.
pub const SHARE: &str = ".cnimble-share";
/// A process locks this file before it changes the share. Its modification time is that of the last try.
pub const LOCK: &str = ".cnimble-share-lock";
/// The name of the file until it is complete. An ADD removes the unfinished leases of killed ADDs, and this is none of
/// them.
const FRESH: &str = ".cnimble-share-new";
/// The warning about [`Share::namesakes`].
pub const NAMESAKE: &str = "another machine runs with this node's name, such as a copy of its disk; each gives addresses \
                            of its own, but other nodes have routes to one of them only";
/// The maximum size of the file, in bytes. A share of 10,000 single addresses has less.
const LIMIT: usize = 4 << 20;

/// The identity of the node. The store has the same record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The content of `/etc/machine-id`.
    pub machine: String,
    /// The name of the node.
    pub name: String,
    /// A random text, which was made with the file.
    pub instance: String,
    /// The ID of the boot to which the share belongs.
    pub boot: String,
    /// The time for which addresses are given after a confirmation, in milliseconds. It may fall, but never rise.
    pub offline: u64,
    /// The number of confirmations. A slow member of etcd may still hold a transaction of an earlier one. That
    /// transaction finds another number, and does nothing.
    pub turn: u64,
    /// Whether the API server has listed a node of this name. If it no longer does, the node has left the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listed: bool,
}

/// A block or a single address that the node owns, both ends included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    pub first: IpAddr,
    pub last: IpAddr,
    /// The time since which it was seen without leases, by [`now`]. `None` if it had some at the last look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<u64>,
}

impl Owned {
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.first.is_ipv4() == ip.is_ipv4() && self.first <= ip && ip <= self.last
    }

    /// Returns whether it is a single address and no block.
    pub fn is_single(&self) -> bool {
        self.first == self.last
    }
}

/// What this boot has seen of another one with the node's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// The instance of its share.
    pub instance: String,
    /// The latest turn of the other boot that this boot has seen.
    pub turn: u64,
    /// The time of this boot's last look, by [`now`].
    pub since: u64,
    /// How long the other boot is known to have had this turn at the last look, in milliseconds. Only the time between
    /// two looks of this boot counts.
    pub before: u64,
    /// Whether it has taken a turn between two looks of this boot, so that it is running.
    pub active: bool,
}

impl Other {
    /// Returns the state after a look at time `at`, which found `turn`. `known` are the states after the former look.
    pub fn seen(known: &[Other], instance: &str, turn: u64, at: u64) -> Self {
        let known = known.iter().find(|known| known.instance == instance);
        let still = known.filter(|known| known.turn == turn);
        Other {
            instance: instance.to_owned(),
            turn,
            since: at,
            before: still.map_or(0, |known| known.before + at.saturating_sub(known.since)),
            active: known.is_some_and(|known| known.active || known.turn != turn),
        }
    }
}

/// What the node has published about its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The number of addresses in use.
    pub count: usize,
    /// The number of blocks.
    #[serde(default)]
    pub blocks: usize,
    /// The time at which it was written, by [`now`].
    pub at: u64,
}

/// The process that asks the store to confirm the share. The agent asks earlier than a plugin, so that plugins need
/// not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Agent,
    Plugin,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub identity: Identity,
    /// Whether the store has had the node's record.
    pub registered: bool,
    /// The epoch in the store's fence. After a backup was restored, the store gets another one.
    #[serde(default)]
    pub epoch: u64,
    /// The latest revision that the store has answered with.
    pub revision: i64,
    /// The time of that answer by the wall clock, in milliseconds since 1970.
    #[serde(default)]
    pub answered: u64,
    /// The longest time `offline` of any node, in milliseconds.
    #[serde(default)]
    pub longest: u64,
    /// The time at which the last question was sent that the store answered by confirming the share, by [`now`] in the
    /// identity's boot.
    pub confirmed: u64,
    /// What the node owns, in the order of the claims.
    pub owned: Vec<Owned>,
    /// The node's own addresses that the store has. Empty without an agent.
    #[serde(default, rename = "told", skip_serializing_if = "Vec::is_empty")]
    pub announced: Vec<IpAddr>,
    /// Other boots with the node's name: earlier ones, and those of copies of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Other>,
    /// The boots of nodes that have left the cluster, as this boot has seen them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vanished: Vec<Other>,
    /// What was published last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
    /// The state of a restored store, until the node may claim from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Other>,
    /// The epoch and the revision that were seen before the restore. They stay if another backup is restored meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<(u64, i64)>,
}

/// Returns the time since this boot in milliseconds, including sleep.
pub fn now() -> Result<u64, Error> {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_err(|err| Error::new(Code::IO, format!("reading the time since boot: {err}")))?;
    let milliseconds = Duration::from(time).as_millis();
    Ok(u64::try_from(milliseconds).unwrap_or(u64::MAX))
}

/// Returns the addresses that have a lease file on this node. Without the directory there are none.
pub fn leases(cluster: &Cluster) -> Result<BTreeSet<IpAddr>, Error> {
    let leases = Directory::open(&cluster.base.store)?.map(|dir| dir.addresses()).transpose()?;
    Ok(leases.unwrap_or_default().into_iter().collect())
}

/// Returns the ID of this boot.
///
/// # Errors
/// Fails with code 5 if it can't be read. Then a share can't be told from that of an earlier boot.
pub fn this_boot() -> Result<String, Error> {
    boot::boot_id().map_err(|err| Error::new(Code::IO, format!("reading the boot's ID: {err}")))
}

impl Share {
    /// Reads the file. Returns `None` if there is none. Fails with code 5 if it can't be read, or is damaged.
    pub fn read(dir: &Path) -> Result<Option<Self>, Error> {
        let path = dir.join(SHARE);
        let bytes = match files::read(&path, LIMIT, Links::Refuse) {
            Ok(bytes) => bytes,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(Error::io("reading", &path, &err)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|err| {
            Error::new(Code::IO, format!("reading {}: {err}", path.display())).details(
                "the node's share of addresses is damaged: remove the file; then boot the machine, or run \
                 `cnimble ipam release` if none of its pods runs",
            )
        })
    }

    /// Writes the file and syncs it to disk. Fails with code 5. If it fails before the rename, the old content stays.
    pub fn write(&self, dir: &Path) -> Result<(), Error> {
        let (path, fresh): (PathBuf, PathBuf) = (dir.join(SHARE), dir.join(FRESH));
        let bytes = serde_json::to_vec(self)
            .map_err(|err| Error::new(Code::INTERNAL, format!("{}: {err}", path.display())))?;
        files::draft(&fresh, &bytes, 0o600, true)
            .and_then(|()| std::fs::rename(&fresh, &path))
            .and_then(|()| File::open(dir)?.sync_all())
            .map_err(|err| Error::io("writing", &path, &err))
    }

    /// Returns the time since the last confirmation in milliseconds. `None` if there was none in this boot.
    pub fn age(&self) -> Result<Option<u64>, Error> {
        let of_today = self.registered && self.identity.boot == this_boot()?;
        let now = now()?;
        Ok((of_today && self.confirmed <= now).then(|| now - self.confirmed))
    }

    /// Returns whether the store should confirm the share again. It asks more often while this boot waits for others,
    /// because only the time between its looks counts. False if there was no confirmation in this boot.
    pub fn is_due(&self, cluster: &Cluster, asker: Asker) -> Result<bool, Error> {
        let waits = !self.others.is_empty() || self.restored.is_some();
        let part = match asker {
            _ if waits => 60,
            Asker::Plugin => 2,
            Asker::Agent => 3,
        };
        let limit = self.identity.offline.min(cluster.offline_ms()) / part;
        Ok(self.age()?.is_some_and(|age| age >= limit))
    }

    /// Returns whether addresses may be given from the share now.
    pub fn is_valid(&self) -> Result<bool, Error> {
        Ok(self.age()?.is_some_and(|age| age < self.identity.offline))
    }

    /// Returns the epoch and the revision that were seen last.
    pub fn seen(&self) -> (u64, i64) {
        (self.epoch, self.revision)
    }

    /// Begins another epoch, and forgets what the store had in the former one: its revision, the other boots, the nodes
    /// that vanished, and what was announced. Owned addresses stay. Does nothing in the same epoch, and writes no file.
    pub fn enter(&mut self, epoch: u64) {
        if self.epoch != epoch {
            (self.epoch, self.revision) = (epoch, 0);
            (self.others, self.vanished, self.announced) = Default::default();
            self.restored = None;
        }
    }

    /// Returns the number of other boots that use the node's name at the same time.
    pub fn namesakes(&self) -> usize {
        self.others.iter().filter(|other| other.active).count()
    }

    /// Returns the number of addresses of the range set `n` that the node could give to pods. Leases, gateways and
    /// addresses that are given on request only don't count.
    pub fn free(&self, cluster: &Cluster, n: usize) -> Result<usize, Error> {
        let Some(Some(part)) = self.parts(cluster).into_iter().nth(n) else { return Ok(0) };
        let leases = leases(cluster)?;
        let gateways: BTreeSet<IpAddr> = RangeSet::gateways(&cluster.base.sets).collect();
        let usable = part.cycle(None).filter(|(ip, range)| !gateways.contains(ip) && !range.leaves_out(*ip));
        Ok(usable.filter(|(ip, _)| !leases.contains(ip)).count())
    }

    /// Returns the parts of the cluster's range sets that the node owns, one for each set. Addresses of other pods'
    /// names are left out. `None` stands for a set of which it owns nothing.
    pub fn parts(&self, cluster: &Cluster) -> Vec<Option<RangeSet>> {
        self.sets(&cluster.base.sets, &cluster.pools.reserved)
    }

    /// Returns the parts of `sets` that the node owns without `reserved`, one for each set. `None` stands for a set of
    /// which it owns nothing.
    pub(super) fn sets(&self, sets: &[RangeSet], reserved: &BTreeSet<IpAddr>) -> Vec<Option<RangeSet>> {
        let gateways: Vec<IpAddr> = RangeSet::gateways(sets).collect();
        let owned_sets = sets.iter().map(|set| {
            let parts = self.owned.iter().flat_map(|owned| {
                set.ranges().iter().filter_map(|range| clip(range, owned.first, owned.last))
            });
            // A range leaves out its own gateway. Those of other ranges are cut out here.
            let parts = parts.flat_map(|part| {
                let gateways = gateways.iter().filter(|ip| **ip != part.gateway && part.contains(**ip));
                let others = gateways.chain(reserved.range(part.start..=part.end));
                let others: Vec<_> = others.map(|ip| IpNetwork::from(*ip)).collect();
                part.without(&others).unwrap_or_default()
            });
            RangeSet::new(parts.collect()).ok()
        });
        owned_sets.collect()
    }
}

/// Returns the part of a range between two addresses, or `None` if it has none there.
fn clip(range: &Range, first: IpAddr, last: IpAddr) -> Option<Range> {
    if range.start.is_ipv4() != first.is_ipv4() {
        return None;
    }
    let (start, end) = (range.start.max(first), range.end.min(last));
    (start <= end).then(|| Range { start, end, ..range.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    fn owned(first: &str, last: &str) -> Owned {
        Owned { first: first.parse().unwrap(), last: last.parse().unwrap(), idle: None }
    }

    fn share(parts: Vec<Owned>) -> Share {
        let text = |text: &str| text.to_owned();
        let identity = Identity {
            machine: text("m"),
            name: text("n"),
            instance: text("i"),
            boot: this_boot().unwrap(),
            offline: 1000,
            turn: 1,
            listed: false,
        };
        Share {
            identity,
            registered: true,
            epoch: 0,
            revision: 1,
            answered: 0,
            longest: 1000,
            confirmed: now().unwrap(),
            owned: parts,
            announced: Vec::new(),
            others: Vec::new(),
            vanished: Vec::new(),
            used: None,
            restored: None,
            before: None,
        }
    }

    #[test]
    fn sets_have_what_the_node_owns_but_no_gateway_of_another_range_and_nothing_reserved() {
        let range = |subnet: &str, gateway: Option<&str>| {
            Range::new(subnet.parse().unwrap(), None, None, gateway.map(|ip| ip.parse().unwrap())).unwrap()
        };
        let sets = [
            RangeSet::new(vec![range("10.0.0.0/24", None), range("10.0.1.0/24", Some("10.0.0.70"))]).unwrap(),
            RangeSet::new(vec![range("fd00::/64", None)]).unwrap(),
        ];
        let share = share(vec![owned("10.0.0.64", "10.0.0.119"), owned("10.0.1.0", "10.0.1.0")]);
        let reserved = BTreeSet::from(["10.0.0.72".parse().unwrap(), "10.0.3.1".parse().unwrap()]);
        let parts = share.sets(&sets, &reserved);
        assert_eq!(
            parts[0].as_ref().unwrap().to_string(),
            "10.0.0.64-10.0.0.69,10.0.0.71-10.0.0.71,10.0.0.73-10.0.0.119"
        );
        assert!(parts[1].is_none());
    }

    #[test]
    fn the_time_of_one_turn_adds_up_over_looks_and_no_longer() {
        let look = |known: &[Other], turn, at| Other::seen(known, "i", turn, at);
        let first = look(&[], 1, 50);
        assert_eq!((first.before, first.active), (0, false));
        let second = look(&[first], 1, 80);
        assert_eq!((second.since, second.before, second.active), (80, 30, false));
        // Another boot's clock begins anew.
        let booted = Other { since: 5, ..second };
        let third = look(std::slice::from_ref(&booted), 1, 25);
        assert_eq!((third.before, third.active), (50, false));
        assert_eq!(look(&[booted], 1, 4).before, 30);
        let moved = look(&[third], 2, 90);
        assert_eq!((moved.before, moved.active), (0, true));
        assert!(look(&[moved], 2, 95).active);
    }

    #[test]
    fn both_ends_are_owned() {
        let ip = |text: &str| text.parse().unwrap();
        let block = owned("10.0.0.64", "10.0.0.119");
        for inside in ["10.0.0.64", "10.0.0.90", "10.0.0.119"] {
            assert!(block.contains(ip(inside)), "{inside}");
        }
        for outside in ["10.0.0.63", "10.0.0.120", "::ffff:10.0.0.90", "fd00::1"] {
            assert!(!block.contains(ip(outside)), "{outside}");
        }
        assert!(!block.is_single() && owned("10.0.0.1", "10.0.0.1").is_single());
    }

    #[test]
    fn a_share_is_valid_in_its_boot_and_its_time_only() {
        let mut share = share(Vec::new());
        assert!(share.is_valid().unwrap());
        share.identity.offline = 0;
        assert!(!share.is_valid().unwrap());
        share.identity.offline = 1_000_000;
        share.identity.boot = "another".to_owned();
        assert!(!share.is_valid().unwrap());
    }

    #[test]
    fn an_add_meanwhile_leaves_a_share_that_is_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::lock(dir.path()).unwrap().unwrap();
        for name in [FRESH, ".cnimble-new-1-0"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        store.sweep(&store.leases_of("pod", &[]).unwrap());
        assert!(!dir.path().join(".cnimble-new-1-0").exists());
        assert!(dir.path().join(FRESH).exists());
    }

    #[test]
    fn a_damaged_file_is_an_error_and_a_missing_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Share::read(dir.path()).unwrap(), None);
        let share = share(vec![owned("10.0.0.64", "10.0.0.119")]);
        share.write(dir.path()).unwrap();
        assert_eq!(Share::read(dir.path()).unwrap(), Some(share));
        std::fs::write(dir.path().join(SHARE), "{").unwrap();
        let err = Share::read(dir.path()).unwrap_err();
        assert_eq!(err.code, Code::IO);
        assert!(err.details.contains("remove the file"), "{}", err.details);
    }
}
