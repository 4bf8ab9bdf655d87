//! Leases as files, for the next lease daemon: one for each interface and family, written atomically, in a directory
//! next to the socket. A reboot voids leases, because their namespaces are gone.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use cnimble_leases::boot;
use cnimble_os::files::Links;

use crate::held::AnyLease;
use crate::ipc::{Family, LeaseRequest};

/// The file that is locked while the lease daemon runs.
const LOCK: &str = "lock";
/// The beginning of the name of a file until it is complete.
const TEMPORARY: &str = ".new-";
/// The largest file that is read, in bytes. Usual ones have some hundred, and perhaps a long search list.
const LONGEST: usize = 1 << 20;

/// All that a new lease daemon needs to resume a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LeaseRecord {
    /// The boot in which the lease was written.
    boot: String,
    pub(crate) wanted: LeaseRequest,
    /// The hardware address of the interface.
    pub(crate) mac: [u8; 6],
    /// The lease. `None` if it was lost and the daemon looks for another.
    pub(crate) lease: Option<AnyLease>,
}

/// Returns the directory of the leases of the daemon at this socket.
pub(crate) fn directory(socket: &Path) -> PathBuf {
    socket.with_extension("leases")
}

/// Returns the path of the lease with this key.
pub(crate) fn file(socket: &Path, key: &str) -> PathBuf {
    directory(socket).join(key)
}

/// Returns true if there is the file of any lease. False if the directory is missing.
pub(crate) fn has_any(socket: &Path) -> io::Result<bool> {
    match fs::read_dir(directory(socket)) {
        Ok(mut entries) => Ok(entries.any(|entry| entry.is_ok_and(|entry| is_key(&entry.path())))),
        Err(err) if cnimble_os::files::is_absent(&err) => Ok(false),
        Err(err) => Err(err),
    }
}

/// Creates the directory if it is missing, and opens the file of its lock without locking it.
pub(crate) fn prepare(socket: &Path) -> io::Result<File> {
    let directory = directory(socket);
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(directory.join(LOCK))
}

/// Returns the lease daemon that holds the lock, from `/proc/locks` (proc(5)). `None` if there is none, or if the
/// process does not look like a daemon, or is not visible here.
pub(crate) fn holder(socket: &Path) -> io::Result<Option<Pid>> {
    let lock = match fs::symlink_metadata(directory(socket).join(LOCK)) {
        Err(err) if cnimble_os::files::is_absent(&err) => return Ok(None),
        lock => lock?,
    };
    let file = format!("{:02x}:{:02x}:{}", major(lock.dev()), minor(lock.dev()), lock.ino());
    let locks = fs::read_to_string("/proc/locks")?;
    for line in locks.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, held, ..] = words[..] else { continue };
        let Some(pid) = pid.parse().ok().filter(|_| held == file) else { continue };
        if is_daemon(pid) {
            return Ok(Some(Pid::from_raw(pid)));
        }
    }
    Ok(None)
}

/// Returns true if the process was started with the argument `daemon`. False if it is not visible here.
fn is_daemon(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"daemon")
}

/// Returns true if the name of the file is the key of a lease.
fn is_key(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut tags = Family::ALL.into_iter().filter_map(|family| name.strip_suffix(family.suffix()));
    tags.any(|tag| cnimble_cni::owner::tag(tag) == Some(tag))
}

/// The directory of the leases, locked until the value is dropped.
#[derive(Debug)]
pub(crate) struct LeaseDirectory {
    directory: PathBuf,
    boot: String,
    _lock: Flock<File>,
}

impl LeaseDirectory {
    /// Creates a missing directory and locks it. `None` if another daemon holds the lock. Does not wait.
    pub(crate) fn open(socket: &Path) -> io::Result<Option<LeaseDirectory>> {
        match Flock::lock(prepare(socket)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                Ok(Some(LeaseDirectory { directory: directory(socket), boot: boot::boot_id()?, _lock: lock }))
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Reads the leases of this boot. Removes leases of earlier boots, invalid files and the remains of an interrupted
    /// write. Files with other names are left alone.
    pub(crate) fn load(&self) -> io::Result<Vec<LeaseRecord>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let ours = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if ours == LOCK {
                continue;
            }
            match self.read(&path)? {
                Some(record) if record.wanted.key() == ours => records.push(record),
                _ if ours.starts_with(TEMPORARY) || is_key(&path) => fs::remove_file(&path)?,
                // The daemon has not written this file.
                _ => {}
            }
        }
        Ok(records)
    }

    /// Reads a file. `None` if it is no lease of this boot. Fails if it cannot be read, for example for a lack of
    /// descriptors: that does not prove that the lease is invalid.
    fn read(&self, path: &Path) -> io::Result<Option<LeaseRecord>> {
        let bytes = match cnimble_os::files::read(path, LONGEST, Links::Refuse) {
            Err(err) if cnimble_os::files::is_absent(&err) || cnimble_os::files::is_foreign(&err) => {
                return Ok(None);
            }
            bytes => bytes?,
        };
        let record = serde_json::from_slice::<LeaseRecord>(&bytes).ok();
        Ok(record.filter(|record| record.boot == self.boot))
    }

    /// Writes the file of a lease atomically. Without a lease, notes that the daemon looks for another.
    pub(crate) fn write(
        &self,
        wanted: &LeaseRequest,
        mac: [u8; 6],
        lease: Option<&AnyLease>,
    ) -> io::Result<()> {
        let key = wanted.key();
        let record =
            LeaseRecord { boot: self.boot.clone(), wanted: wanted.clone(), mac, lease: lease.cloned() };
        let bytes = serde_json::to_vec(&record)?;
        let temporary = self.directory.join(format!("{TEMPORARY}{key}"));
        cnimble_os::files::replace(&self.directory.join(&key), &temporary, &bytes)
    }

    /// Removes the file of a lease. A missing one is no error.
    pub(crate) fn remove(&self, key: &str) -> io::Result<()> {
        match fs::remove_file(self.directory.join(key)) {
            Err(err) if !cnimble_os::files::is_absent(&err) => Err(err),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::LeaseOwner;
    use crate::v6;

    fn owner() -> LeaseOwner {
        LeaseOwner { network: "lan".into(), container: "c1".into(), ifname: "eth0".into() }
    }

    #[test]
    fn a_file_of_a_daemon_without_ipv6_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        let store = LeaseDirectory::open(&socket).unwrap().unwrap();
        let text = r#"{"boot":"BOOT","wanted":{"whose":{"network":"lan","container":"c1","ifname":"eth0"},
            "netns":"/run/netns/x","provide":[],"request":[1,3],"priority":null},"mac":[2,0,0,0,0,9],
            "lease":{"address":"10.8.0.50","prefix":24,"server":"10.8.0.1","server_mac":[2,0,0,0,0,1],
            "gateway":"10.8.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.8.0.1"}],"dns":{},
            "renew":1,"rebind":2,"expires":3}}"#;
        let path = file(&socket, &owner().key(Family::Ipv4));
        fs::write(&path, text.replace("BOOT", &store.boot)).unwrap();
        let records = store.load().unwrap();
        let [LeaseRecord { wanted, lease: Some(AnyLease::Four(lease)), .. }] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!((wanted.family, lease.net().to_string()), (Family::Ipv4, "10.8.0.50/24".to_owned()));
        // DHCPv4 has the same form as before DHCPv6.
        store.write(wanted, [2, 0, 0, 0, 0, 9], Some(&AnyLease::Four(lease.clone()))).unwrap();
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let written = value(&fs::read_to_string(&path).unwrap());
        assert_eq!(written["wanted"], value(text)["wanted"]);
    }

    #[test]
    fn each_family_has_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        let store = LeaseDirectory::open(&socket).unwrap().unwrap();
        assert!(!has_any(&socket).unwrap());
        let lease = AnyLease::Six(v6::lease::Lease {
            address: "fd00::50".parse().unwrap(),
            server_id: vec![0, 3, 1],
            dns: cnimble_cni::Dns::default(),
            renew: 1,
            rebind: 2,
            preferred: 3,
            expires: u64::MAX,
        });
        let wanted = LeaseRequest {
            owner: owner(),
            family: Family::Ipv6,
            netns: "/run/netns/x".into(),
            sent: None,
            provide: vec![],
            request: vec![],
            priority: None,
            timeout: None,
        };
        store.write(&wanted, [2; 6], Some(&lease)).unwrap();
        assert!(has_any(&socket).unwrap());
        let four = LeaseRequest { family: Family::Ipv4, ..wanted.clone() };
        store.write(&four, [2; 6], None).unwrap();
        let mut records = store.load().unwrap();
        records.sort_by_key(|record| record.wanted.key());
        let families: Vec<Family> = records.iter().map(|record| record.wanted.family).collect();
        assert_eq!(families, Family::ALL);
        assert_eq!((&records[0].lease, records[1].lease.as_ref()), (&None, Some(&lease)));
        // Not under the other family's name.
        fs::rename(file(&socket, &wanted.key()), file(&socket, &four.key())).unwrap();
        assert!(store.load().unwrap().is_empty() && !has_any(&socket).unwrap());
    }
}
