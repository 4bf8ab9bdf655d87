//! The state of a device before it was moved: one file per attachment, written before the move.
//!
//! The file's name is the attachment's tag ([`Owner::tag`]), so that GC finds those of its network
//! without reading them. The directory doesn't survive a reboot, and neither do namespaces.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use cnimble_cni::{Attachment, Code, Error, Owner};
use cnimble_leases::lock::{Lock, LockError};
use cnimble_netlink::addr::Addr;
use cnimble_netlink::details::Details;
use cnimble_netlink::link::{Link, Mac};
use cnimble_os::files::{self as files, Links, is_absent};

use crate::seen::Seen;
use crate::sysfs;

/// The maximum size of a file, in bytes.
const LIMIT: usize = 1 << 20;

/// Each namespace has its own loopback interface, which can't be moved.
pub(crate) const LOOPBACK: &str = "lo";

/// RT_SCOPE_LINK (rtnetlink(7)).
const SCOPE_LINK: u8 = 253;

/// A device as it was on the host, and its new owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The name of the network.
    pub(crate) network: String,
    /// The value of CNI_CONTAINERID.
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    /// The value of CNI_IFNAME, which is its name in the pod.
    pub(crate) ifname: String,
    /// The value of CNI_NETNS.
    pub(crate) netns: String,
    /// Its name on the host.
    pub(crate) name: String,
    /// Its index on the host. The kernel keeps it if it is free.
    pub(crate) index: u32,
    /// Its kind, for example `veth`. Empty for hardware.
    pub(crate) kind: String,
    pub(crate) alias: String,
    pub(crate) mac: String,
    /// In bytes.
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// The addresses that the kernel doesn't make by itself and that don't expire.
    pub(crate) addresses: Vec<String>,
    /// `None` in a record of an older build, which had no marks.
    pub(crate) marks: Option<Marks>,
    /// `None` in such a record, and for a device that the Go plugin moved. Then nothing is restored.
    pub(crate) settings: Option<Settings>,
}

/// Marks of a device that a pod can't give to another link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Marks {
    /// The inode of its directory in sysfs, or 0 if no sysfs could be mounted.
    pub(crate) inode: u64,
    /// The path of the hardware in sysfs.
    pub(crate) bus: String,
    /// The hardware's permanent address. Empty if the kernel reports none.
    pub(crate) permanent_mac: Vec<u8>,
    /// The index of the other end for a veth, or that of the parent for a macvlan, ipvlan or vlan.
    pub(crate) peer: Option<u32>,
}

/// Attributes that a pod can set, and that a move keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Settings {
    /// The flags IFF_*, without IFF_UP.
    pub(crate) flags: u32,
    /// The values by IFLA_*, as the kernel reports them ([`Details::values`]).
    pub(crate) values: BTreeMap<u16, Vec<u8>>,
    pub(crate) altnames: Vec<String>,
}

impl Record {
    /// Returns the record of a device on the host.
    pub(crate) fn of(owner: &Owner, netns: &str, seen: &Seen, addrs: &[Addr]) -> Self {
        let link = &seen.link;
        let marks = Marks {
            inode: seen.device.as_ref().map_or(0, |device| device.inode),
            bus: seen.device.as_ref().map(|device| device.bus.clone()).unwrap_or_default(),
            permanent_mac: seen.details.as_ref().map(|details| details.permanent.clone()).unwrap_or_default(),
            peer: link.peer,
        };
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
            marks: Some(marks),
            settings: None,
        }
    }

    /// Adds the attributes that a pod may change.
    pub(crate) fn with(self, details: Details) -> Self {
        let Details { flags, values, altnames, .. } = details;
        Record { settings: Some(Settings { flags, values, altnames }), ..self }
    }

    /// Returns the attachment that the device was moved to.
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

    /// Returns true if and only if an alternative name isn't the device's own.
    pub(crate) fn is_foreign(&self, altname: &String) -> bool {
        self.settings.as_ref().is_some_and(|settings| !settings.altnames.contains(altname))
    }

    /// Returns true if and only if the link certainly is the device, because it has the same directory
    /// in sysfs.
    pub(crate) fn is_proven(&self, seen: &Seen) -> bool {
        self.has_inode(seen) == Some(true)
    }

    /// Returns true if and only if a link is the device. A pod can give its name, alias, MAC address and
    /// index to other links. So the inode of the directory in sysfs decides.
    ///
    /// Hardware has a new directory if its driver made the link again. Then the permanent address and
    /// the place on the bus decide. Without proof for or against, two of the four weak marks have to
    /// agree.
    pub(crate) fn is(&self, seen: &Seen) -> bool {
        let link = &seen.link;
        let loopback = seen.details.as_ref().is_some_and(|details| details.loopback);
        if link.kind != self.kind || link.name == LOOPBACK || loopback {
            return false;
        }
        match (self.has_inode(seen), self.has_hardware(seen)) {
            (Some(true), _) => true,
            (_, Some(has)) => has,
            (Some(false), None) => false,
            (None, None) => {
                let same_peer = self.marks.as_ref().is_none_or(|marks| marks.peer == link.peer);
                same_peer && self.is_alike(link)
            }
        }
    }

    /// Whether the inode matches. `None` if either inode is unknown.
    fn has_inode(&self, seen: &Seen) -> Option<bool> {
        let inode = self.marks.as_ref().map(|marks| marks.inode).filter(|inode| *inode != 0)?;
        Some(seen.device.as_ref()?.inode == inode)
    }

    /// Whether it is the same hardware. `None` if that is unknown.
    fn has_hardware(&self, seen: &Seen) -> Option<bool> {
        let marks = self.marks.as_ref().filter(|marks| !marks.permanent_mac.is_empty())?;
        let permanent = seen.details.as_ref().map(|details| &details.permanent)?;
        let bus = seen.device.as_ref().map(|device| &device.bus);
        let same_bus = bus.is_none_or(|bus| marks.bus.is_empty() || *bus == marks.bus);
        (!permanent.is_empty()).then_some(*permanent == marks.permanent_mac && same_bus)
    }

    /// Whether a link has two of the four marks that a pod can forge. Name and index may match by
    /// accident, so they suffice only for hardware, which no pod can make.
    fn is_alike(&self, link: &Link) -> bool {
        let (alias, mac) = (link.alias == self.name, link.mac.is_some() && link.mac == self.mac());
        let marks =
            [link.index == self.index, link.name == self.name || link.name == self.ifname, alias, mac];
        let known = marks.iter().filter(|mark| **mark).count() >= 2;
        known && (alias || mac || link.kind.is_empty())
    }
}

/// The records of a node.
#[derive(Debug, Clone)]
pub(crate) struct Records(pub(crate) PathBuf);

impl Records {
    fn file(&self, owner: &Owner) -> PathBuf {
        self.0.join(format!("{}.json", owner.tag()))
    }

    /// Returns the temporary path of a record. A killed process leaves it.
    fn fresh(&self, owner: &Owner) -> PathBuf {
        self.0.join(format!(".new-{}", owner.tag()))
    }

    /// Reads the record of an attachment. A file that can't be one of ours counts as none.
    ///
    /// # Errors
    /// Fails with code 5 if the file can't be read.
    pub(crate) fn read(&self, owner: &Owner) -> Result<Option<Record>, Error> {
        read(&self.file(owner))
    }

    /// Waits for the lock of a device, named by its name on the host. A verb holds it while it moves or
    /// restores the device. Returns `None` if the directory is missing, because then there are no
    /// records either.
    ///
    /// On a read-only file system ADD moves nothing. There DEL and GC share the directory's lock.
    ///
    /// # Errors
    /// Fails with code 5 if the file can't be locked, and with code 11 after a signal.
    pub(crate) fn hold(&self, device: &str) -> Result<Option<Held>, Error> {
        let own = self.0.join(format!(".lock-{device}"));
        let mut create = OpenOptions::new();
        create.write(true).create(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
        loop {
            let (path, opened) = match create.open(&own) {
                Err(err) if is_read_only(&err) => (&self.0, File::open(&self.0)),
                opened => (&own, opened),
            };
            let failed = |err: &io::Error| Error::io("lock", path, err);
            let file = match opened {
                Err(err) if is_absent(&err) => return Ok(None),
                opened => opened.map_err(|err| failed(&err))?,
            };
            let inode = file.metadata().map_err(|err| failed(&err))?.ino();
            let lock = Lock::wait(file).map_err(|why| match why {
                LockError::Stopped(err) => err,
                LockError::Io(err) => failed(&err),
            })?;
            // The previous holder may have removed the file.
            if fs::symlink_metadata(path).is_ok_and(|named| named.ino() == inode) {
                return Ok(Some(Held { lock, file: (path == &own).then_some(own) }));
            }
        }
    }

    /// Returns the records with a file name that `is_wanted` accepts.
    ///
    /// # Errors
    /// Fails with code 5 if the directory or a file can't be read.
    pub(crate) fn all(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Record>, Error> {
        let mut found = Vec::new();
        for name in sysfs::names(&self.0)? {
            if name.ends_with(".json") && is_wanted(&name) {
                found.extend(read(&self.0.join(&name))?);
            }
        }
        Ok(found)
    }

    /// Writes a record atomically.
    ///
    /// # Errors
    /// Fails with code 5 if the file can't be written.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Error> {
        let owner = record.owner();
        let (fresh, file) = (self.fresh(&owner), self.file(&owner));
        let text =
            serde_json::to_vec_pretty(record).map_err(|err| Error::new(Code::INTERNAL, err.to_string()))?;
        files::replace(&file, &fresh, &text).map_err(|err| Error::io("write", &file, &err))
    }

    /// Makes the directory if it is missing.
    ///
    /// # Errors
    /// Fails with code 5 if the directory can't be made.
    pub(crate) fn make(&self) -> Result<(), Error> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(|err| Error::io("make directory", &self.0, &err))
    }

    /// Removes an attachment's record and the temporary file of a killed ADD.
    ///
    /// # Errors
    /// Fails with code 5 if one of them can't be removed.
    pub(crate) fn remove(&self, owner: &Owner) -> Result<(), Error> {
        remove(&self.fresh(owner)).and(remove(&self.file(owner)))
    }

    /// Removes temporary files of this network with a tag that `is_stale` accepts.
    ///
    /// # Errors
    /// Fails with code 5 if the directory can't be read or a file can't be removed.
    pub(crate) fn tidy(&self, is_stale: impl Fn(&str) -> bool) -> Result<(), Error> {
        for name in sysfs::names(&self.0)? {
            if name.strip_prefix(".new-").is_some_and(&is_stale) {
                remove(&self.0.join(&name))?;
            }
        }
        Ok(())
    }
}

/// The lock of a device. Released on drop.
#[derive(Debug)]
pub(crate) struct Held {
    lock: Lock,
    file: Option<PathBuf>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|_| !self.lock.is_nested()) {
            let _ = fs::remove_file(file);
        }
    }
}

/// Removes a file if it exists. On a read-only file system it stays, because a record of a restored
/// device is harmless.
fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(err) if is_read_only(&err) => {
            if path.exists() {
                log::warn!("{} stays: {err}", path.display());
            }
            Ok(())
        }
        Err(err) if !is_absent(&err) => Err(Error::io("remove", path, &err)),
        _ => Ok(()),
    }
}

fn is_read_only(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::ReadOnlyFilesystem
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
    use cnimble_netlink::sysfs::Device;

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
        assert!(records.hold("eth7").unwrap().is_none(), "no directory, no lock");
        records.make().unwrap();
        records.write(&one).unwrap();
        // A killed process left this temporary file.
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
    fn the_lock_of_a_device_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records(dir.path().to_owned());
        let count = || fs::read_dir(dir.path()).unwrap().count();
        let one = records.hold("eth7").unwrap().unwrap();
        let two = records.hold("eth8").unwrap().unwrap();
        // The undo of an ADD that panics takes the lock a second time and doesn't remove the file.
        drop(records.hold("eth7").unwrap().unwrap());
        assert_eq!(count(), 2);
        drop((one, two));
        assert_eq!(count(), 0);
        // A waiting process locks the next file when the previous holder removes its own.
        std::thread::scope(|scope| {
            let add = |_| scope.spawn(|| (0..200).for_each(|_| drop(records.hold("eth7").unwrap().unwrap())));
            (0..4).map(add).for_each(drop);
        });
        assert_eq!(count(), 0);
    }

    fn link(index: u32, name: &str, alias: &str, mac: u8) -> Link {
        Link {
            index,
            name: name.to_owned(),
            alias: alias.to_owned(),
            mac: Some(Mac([2, 0, 0, 0, 0, mac])),
            ..Link::default()
        }
    }

    fn seen(link: Link) -> Seen {
        Seen { link, ..Seen::default() }
    }

    #[test]
    fn without_proof_a_device_is_known_by_two_of_four_marks() {
        let record = record("one");
        for (index, name, alias, mac) in
            [(7, "eth7", "", 1), (9, "net1", "eth7", 1), (9, "dev9", "eth7", 7), (7, "x", "y", 7)]
        {
            assert!(record.is(&seen(link(index, name, alias, mac))), "{index} {name} {alias} {mac}");
        }
        for (index, name, alias, mac) in
            [(7, "x", "", 1), (9, "eth7", "", 1), (9, "x", "eth7", 1), (9, "x", "", 7)]
        {
            assert!(!record.is(&seen(link(index, name, alias, mac))), "{index} {name} {alias} {mac}");
        }
        let veth = |link| seen(Link { kind: "veth".to_owned(), ..link });
        assert!(!record.is(&veth(link(7, "eth7", "", 7))));
        // The pod has its own interface with this index and this name.
        let mut of_veth = Record { kind: "veth".to_owned(), ..record };
        assert!(!of_veth.is(&veth(link(7, "eth7", "", 1))));
        assert!(of_veth.is(&veth(link(7, "eth7", "", 7))));
        // The link has another peer.
        of_veth.marks = Some(Marks { peer: Some(3), ..Marks::default() });
        assert!(!of_veth.is(&veth(link(7, "eth7", "", 7))));
        assert!(of_veth.is(&veth(Link { peer: Some(3), ..link(7, "eth7", "", 7) })));
    }

    #[test]
    fn the_inode_decides_and_hardware_is_also_known_by_its_own_address() {
        let device = |inode, bus: &str| Some(Device { index: 7, inode, bus: bus.to_owned() });
        let own = |mac: u8| vec![2, 0, 0, 0, 1, mac];
        let of = |inode, bus, permanent| Seen {
            link: link(9, "x", "", 1),
            device: device(inode, bus),
            details: Some(Details { permanent, ..Details::default() }),
        };
        let marks = Marks { inode: 77, bus: "pci/1".to_owned(), permanent_mac: own(1), peer: None };
        let record = Record { marks: Some(marks.clone()), ..record("one") };
        // In the last but one case the driver has made the link again.
        for seen in [of(77, "pci/1", own(1)), of(77, "", vec![]), of(78, "pci/1", own(1))] {
            assert!(record.is(&seen), "{seen:?}");
        }
        for seen in [of(78, "pci/1", own(2)), of(78, "pci/2", own(1)), of(78, "pci/1", vec![])] {
            assert!(!record.is(&seen), "{seen:?}");
        }
        // All weak marks match, but the inode differs.
        let mut forged = of(78, "pci/1", vec![]);
        forged.link = link(7, "eth7", "eth7", 7);
        assert!(!record.is(&forged) && !record.is_proven(&forged));
        // The pod has no sysfs.
        forged.device = None;
        assert!(record.is(&forged));
        forged.details = Some(Details { permanent: own(2), ..Details::default() });
        assert!(!record.is(&forged));
        let mut loopback = of(77, "pci/1", own(1));
        loopback.details = Some(Details { loopback: true, ..Details::default() });
        assert!(!record.is(&loopback));
        // For a virtual device only the inode decides.
        let virtual_one = Record { kind: "veth".to_owned(), marks: Some(marks), ..record };
        let veth = |inode| Seen {
            link: Link { kind: "veth".to_owned(), ..link(7, "eth7", "eth7", 7) },
            device: device(inode, "virtual"),
            details: None,
        };
        assert!(virtual_one.is(&veth(77)) && !virtual_one.is(&veth(78)));
    }

    /// A record of the build 829e098.
    const OLD: &str = r#"{
        "network": "net", "containerID": "one", "ifname": "net1", "netns": "/run/netns/x", "name": "eth7",
        "index": 7, "kind": "", "alias": "", "mac": "02:00:00:00:00:07", "mtu": 1500, "up": true,
        "addresses": ["10.0.0.1/24"]
    }"#;

    #[test]
    fn records_of_the_build_before_are_read_and_their_keys_are_still_written() {
        let old: Record = serde_json::from_str(OLD).unwrap();
        assert_eq!((&old.marks, &old.settings, old.mtu), (&None, &None, 1500));
        assert!(!old.is_foreign(&"enp9s0".to_owned()));
        let details =
            Details { flags: 0x1000, values: BTreeMap::from([(13, vec![1, 2])]), ..Details::default() };
        let new = Record { marks: Some(Marks::default()), ..old }.with(details);
        let text = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), new);
        // That build reads the fields that it knows, with these types, and ignores the rest.
        let (written, known): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&text).unwrap(), serde_json::from_str(OLD).unwrap());
        for (key, value) in known.as_object().unwrap() {
            assert_eq!(written.get(key), Some(value), "{key}");
        }
    }
}
