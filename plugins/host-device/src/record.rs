//! The state of a device before it was moved: a file for each attachment, written before the move.
//!
//! The name is the attachment's tag ([`Owner::tag`]), so that GC finds those of its network without
//! reading any. The directory goes with a reboot, as namespaces do.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use cnimble_cni::{Attachment, Code, Error, Owner};
use cnimble_files::{self as files, Links, is_absent};
use cnimble_leases::lock::{Lock, LockError};
use cnimble_netlink::addr::Addr;
use cnimble_netlink::link::{Link, Mac};

use crate::sysfs;

/// Far more than there can be in a file.
const LIMIT: usize = 1 << 20;

/// Each namespace has one, which stays there.
pub(crate) const LOOPBACK: &str = "lo";

/// RT_SCOPE_LINK (rtnetlink(7)).
const SCOPE_LINK: u8 = 253;

/// A device as it was on the host, and where it went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The network's name.
    pub(crate) network: String,
    /// CNI_CONTAINERID.
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    /// CNI_IFNAME: its name in the pod.
    pub(crate) ifname: String,
    /// CNI_NETNS.
    pub(crate) netns: String,
    /// Its name on the host.
    pub(crate) name: String,
    /// Its index on the host; the kernel keeps it where it is free.
    pub(crate) index: u32,
    /// `veth`, for example; empty for hardware.
    pub(crate) kind: String,
    pub(crate) alias: String,
    pub(crate) mac: String,
    /// Bytes.
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// Those that the kernel doesn't make by itself, and that don't expire.
    pub(crate) addresses: Vec<String>,
}

impl Record {
    /// Of a device of the host.
    pub(crate) fn of(owner: &Owner, netns: &str, link: &Link, addrs: &[Addr]) -> Self {
        let own = |addr: &&Addr| addr.permanent && (addr.net.is_ipv4() || addr.scope != SCOPE_LINK);
        Record {
            network: owner.network.clone(),
            container_id: owner.attachment.container_id.clone(),
            ifname: owner.attachment.ifname.clone(),
            netns: netns.to_owned(),
            name: link.name.clone(),
            index: link.index,
            kind: link.kind.clone(),
            alias: link.alias.clone(),
            mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: link.mtu,
            up: link.up,
            addresses: addrs.iter().filter(own).map(|addr| addr.net.to_string()).collect(),
        }
    }

    /// The attachment that it went to.
    pub(crate) fn owner(&self) -> Owner {
        let attachment = Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() };
        Owner { network: self.network.clone(), attachment }
    }

    pub(crate) fn mac(&self) -> Option<Mac> {
        Mac::parse(&self.mac)
    }

    pub(crate) fn addresses(&self) -> Vec<IpNetwork> {
        self.addresses.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Returns true if and only if `link` is the device: of the same kind, and with two of its four
    /// marks. One alone may be another's: a pod can give its interfaces names, aliases and hardware
    /// addresses, and numbers are given again. Name and number come together by accident, but among
    /// hardware, which no pod can make.
    pub(crate) fn is(&self, link: &Link) -> bool {
        let (alias, mac) = (link.alias == self.name, link.mac.is_some() && link.mac == self.mac());
        let marks =
            [link.index == self.index, link.name == self.name || link.name == self.ifname, alias, mac];
        let known = marks.iter().filter(|mark| **mark).count() >= 2;
        let is_sure = alias || mac || link.kind.is_empty();
        link.kind == self.kind && link.name != LOOPBACK && known && is_sure
    }
}

/// The records of a node.
#[derive(Debug, Clone)]
pub(crate) struct Records(pub(crate) PathBuf);

impl Records {
    fn file(&self, owner: &Owner) -> PathBuf {
        self.0.join(format!("{}.json", owner.tag()))
    }

    /// Where a record is written before it gets its name; what is killed in between leaves it.
    fn fresh(&self, owner: &Owner) -> PathBuf {
        self.0.join(format!(".new-{}", owner.tag()))
    }

    /// The record of an attachment. A file that can't be one of ours says nothing.
    ///
    /// # Errors
    /// Code 5.
    pub(crate) fn read(&self, owner: &Owner) -> Result<Option<Record>, Error> {
        read(&self.file(owner))
    }

    /// Waits until nobody else brings this device home. Whoever did has removed the record by then.
    ///
    /// # Errors
    /// Code 5; code 100, if SIGTERM comes.
    pub(crate) fn hold(&self, owner: &Owner) -> Result<Option<Lock>, Error> {
        let path = self.file(owner);
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        // What can't be opened, nobody goes by; reading it says why.
        let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else { return Ok(None) };
        Lock::wait(file).map(Some).map_err(|why| match why {
            LockError::Stopped(err) => err,
            LockError::Io(err) => Error::io("lock", &path, &err),
        })
    }

    /// The records with a file name that `is_wanted` takes.
    ///
    /// # Errors
    /// Code 5.
    pub(crate) fn all(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Record>, Error> {
        let mut found = Vec::new();
        for name in sysfs::names(&self.0)? {
            if name.ends_with(".json") && is_wanted(&name) {
                found.extend(read(&self.0.join(&name))?);
            }
        }
        Ok(found)
    }

    /// Writes a record, all of it or nothing.
    ///
    /// # Errors
    /// Code 5.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Error> {
        let (owner, dir) = (record.owner(), &self.0);
        let (fresh, file) = (self.fresh(&owner), self.file(&owner));
        let text =
            serde_json::to_vec_pretty(record).map_err(|err| Error::new(Code::INTERNAL, err.to_string()))?;
        let written = match files::replace(&file, &fresh, &text) {
            // The first one ever.
            Err(err) if is_absent(&err) => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
                made.map_err(|err| Error::io("make directory", dir, &err))?;
                files::replace(&file, &fresh, &text)
            }
            written => written,
        };
        written.map_err(|err| Error::io("write", &file, &err))
    }

    /// Removes an attachment's record, and what a killed ADD left half-written of it.
    ///
    /// # Errors
    /// Code 5.
    pub(crate) fn remove(&self, owner: &Owner) -> Result<(), Error> {
        let one = |path: PathBuf| match fs::remove_file(&path) {
            Err(err) if !is_absent(&err) => Err(Error::io("remove", &path, &err)),
            _ => Ok(()),
        };
        one(self.fresh(owner)).and(one(self.file(owner)))
    }

    /// Removes half-written records of this network with a tag that `is_stale` takes.
    ///
    /// # Errors
    /// Code 5.
    pub(crate) fn tidy(&self, is_stale: impl Fn(&str) -> bool) -> Result<(), Error> {
        for name in sysfs::names(&self.0)? {
            if name.strip_prefix(".new-").is_some_and(&is_stale) {
                let path = self.0.join(&name);
                match fs::remove_file(&path) {
                    Err(err) if !is_absent(&err) => return Err(Error::io("remove", &path, &err)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn read(file: &Path) -> Result<Option<Record>, Error> {
    match files::read(file, LIMIT, Links::Refuse) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(err) if is_absent(&err) || files::is_foreign(&err) => Ok(None),
        Err(err) => Err(Error::io("read", file, &err)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        Record {
            network: "net".to_owned(),
            container_id: id.to_owned(),
            ifname: "net1".to_owned(),
            name: "eth7".to_owned(),
            index: 7,
            mac: "02:00:00:00:00:07".to_owned(),
            addresses: vec!["10.0.0.1/24".to_owned()],
            ..Record::default()
        }
    }

    #[test]
    fn a_record_is_written_read_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records(dir.path().join("a/b"));
        let one = record("one");
        assert_eq!(records.read(&one.owner()).unwrap(), None);
        records.write(&one).unwrap();
        // Half-written by a process that was killed.
        fs::write(records.fresh(&one.owner()), "{").unwrap();
        let again = Record { mtu: 9000, ..one.clone() };
        records.write(&again).unwrap();
        assert_eq!(records.read(&one.owner()).unwrap(), Some(again.clone()));
        records.write(&record("two")).unwrap();
        let of_one = |name: &str| name.starts_with(&one.owner().tag());
        assert_eq!(records.all(of_one).unwrap(), [again]);
        fs::write(records.fresh(&one.owner()), "{").unwrap();
        records.tidy(|tag| tag != one.owner().tag()).unwrap();
        assert!(records.fresh(&one.owner()).exists());
        records.tidy(|_| true).unwrap();
        assert!(!records.fresh(&one.owner()).exists());
        fs::write(records.file(&one.owner()), "text").unwrap();
        assert_eq!(records.read(&one.owner()).unwrap(), None);
        records.remove(&one.owner()).unwrap();
        assert_eq!(records.all(|_| true).unwrap(), [record("two")]);
    }

    #[test]
    fn a_device_is_known_by_two_of_four_marks() {
        let record = record("one");
        let link = |index: u32, name: &str, alias: &str, mac: u8| Link {
            index,
            name: name.to_owned(),
            alias: alias.to_owned(),
            mac: Some(Mac([2, 0, 0, 0, 0, mac])),
            ..Link::default()
        };
        for (index, name, alias, mac) in
            [(7, "eth7", "", 1), (9, "net1", "eth7", 1), (9, "dev9", "eth7", 7), (7, "x", "y", 7)]
        {
            assert!(record.is(&link(index, name, alias, mac)), "{index} {name} {alias} {mac}");
        }
        for (index, name, alias, mac) in
            [(7, "x", "", 1), (9, "eth7", "", 1), (9, "x", "eth7", 1), (9, "x", "", 7)]
        {
            assert!(!record.is(&link(index, name, alias, mac)), "{index} {name} {alias} {mac}");
        }
        assert!(!record.is(&Link { kind: "veth".to_owned(), ..link(7, "eth7", "", 7) }));
        // The pod's own interface of that number and that name.
        let of_veth = Record { kind: "veth".to_owned(), ..record };
        assert!(!of_veth.is(&Link { kind: "veth".to_owned(), ..link(7, "eth7", "", 1) }));
        assert!(of_veth.is(&Link { kind: "veth".to_owned(), ..link(7, "eth7", "", 7) }));
    }
}
