//! A node with the leases of a scene, and the verbs on it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Call, Host, Network};

/// A verb in a scene.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Add(&'static str),
    /// An ADD that fails while it holds the lock, and undoes its work.
    Fails(&'static str),
    /// An ADD that may find no free address.
    AddIfRoom(&'static str),
    Del(&'static str),
    /// A GC for which all pods of the scene but this one are valid.
    GcBut(&'static str),
}

impl Act {
    pub fn id(self) -> &'static str {
        match self {
            Act::Add(id) | Act::Fails(id) | Act::AddIfRoom(id) | Act::Del(id) | Act::GcBut(id) => id,
        }
    }
}

/// The leases that exist before, and the two concurrent verbs.
pub struct Scene {
    pub name: &'static str,
    pub ranges: Value,
    /// The number of additional leases.
    pub many: usize,
    pub before: &'static [&'static str],
    /// The pods in `before` with a lease from an earlier boot.
    pub void: &'static [&'static str],
    pub acts: [Act; 2],
}

/// A node with the leases of a scene.
pub struct Site<'s> {
    pub scene: &'s Scene,
    pub host: Host,
}

impl<'s> Site<'s> {
    pub fn new(scene: &'s Scene) -> Self {
        let site = Site { scene, host: Host::hasty() };
        for n in 0..scene.many {
            site.call("ADD", &format!("many{n}"), None).run().success();
        }
        site
    }

    pub fn network(&self) -> Network<'_> {
        let dir = self.host.data_dir();
        let config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "host-local",
            "ipam": { "type": "host-local", "dataDir": dir, "ranges": self.scene.ranges } });
        Network::new(&self.host, config)
    }

    pub fn attachment(id: &str) -> Attachment {
        Attachment { id: id.into(), netns: "/nowhere".into(), ifname: "eth0".into(), args: String::new() }
    }

    pub fn call(&self, verb: &str, id: &str, prev: Option<&Value>) -> Call<'_> {
        self.network().call(verb, &Self::attachment(id), prev)
    }

    pub fn act(&self, act: Act) -> Call<'_> {
        match act {
            Act::Add(id) | Act::AddIfRoom(id) => self.call("ADD", id, None),
            Act::Fails(id) => {
                let asks = Attachment { args: "IP=192.0.2.1".into(), ..Self::attachment(id) };
                self.network().call("ADD", &asks, None)
            }
            Act::Del(id) => self.call("DEL", id, None),
            Act::GcBut(id) => {
                let many: Vec<String> = (0..self.scene.many).map(|n| format!("many{n}")).collect();
                let all = self.scene.names().into_iter().chain(many.iter().map(String::as_str));
                let valid: Vec<Value> =
                    all.filter(|name| *name != id).map(|name| Self::attachment(name).listed()).collect();
                self.network().gc_call(Some(json!(valid)))
            }
        }
    }

    pub fn dir(&self) -> PathBuf {
        self.host.data_dir().join("net")
    }

    /// Creates the initial state of the scene.
    pub fn set(&self) -> Result<(), String> {
        if self.scene.many == 0 {
            let _ = std::fs::remove_dir_all(self.host.data_dir());
        }
        for id in self.scene.before {
            self.call("ADD", id, None).try_run()?.try_result()?;
        }
        for (ip, id) in self.leases()? {
            if self.scene.void.contains(&id.as_str()) {
                mark_as_earlier(&self.dir().join(ip));
            }
        }
        Ok(())
    }

    /// Returns the owner of each address. Fails on any other file that looks like a lease.
    pub fn leases(&self) -> Result<BTreeMap<String, String>, String> {
        let Ok(entries) = std::fs::read_dir(self.dir()) else { return Ok(BTreeMap::new()) };
        let mut leases = BTreeMap::new();
        for entry in entries {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.parse::<std::net::IpAddr>().is_err() {
                continue;
            }
            let content = std::fs::read_to_string(self.dir().join(&name)).map_err(|err| err.to_string())?;
            let owner = content.strip_suffix("\r\neth0").ok_or_else(|| format!("{name} has {content:?}"))?;
            leases.insert(name, owner.to_owned());
        }
        Ok(leases)
    }

    pub fn held_by(&self, id: &str) -> Result<BTreeSet<String>, String> {
        Ok(self.leases()?.into_iter().filter(|(_, owner)| owner == id).map(|(ip, _)| ip).collect())
    }
}

impl Scene {
    /// Returns all pods of the scene.
    pub fn names(&self) -> BTreeSet<&'static str> {
        self.before.iter().copied().chain(self.acts.iter().map(|act| act.id())).collect()
    }
}

/// Marks a lease as one of an earlier boot, in the extended attribute that holds the boot ID.
fn mark_as_earlier(lease: &Path) {
    let path = CString::new(lease.as_os_str().as_bytes()).unwrap();
    let (name, value) = (c"user.cnimble.boot", b"1d7fe3a3-0000-4000-8000-000000000000");
    // SAFETY: each pointer is to what its length, or the zero byte at its end, says.
    let marked = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), libc::XATTR_REPLACE)
    };
    assert_eq!(marked, 0, "{}: {}", lease.display(), std::io::Error::last_os_error());
}
