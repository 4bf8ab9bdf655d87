//! Tests `cnimble run` on a shared node. Other pods are of `cnimble pod`, of another cache, or just being added by
//! another runtime.

use std::fs;

use serde_json::{Value, json};

use cnimble_tests::{PATIENCE, command, need, wait_until};

use super::{Cluster, Run, bridge};

/// The other pods on the node: namespace name and address.
struct Others(Vec<(String, String)>);

impl Cluster {
    /// Runs `cnimble ARGS…` on the node.
    fn cnimble(&self, args: &str) -> String {
        let dir = self.node.dir().display();
        self.node.sh(&format!("CNI_PATH=/opt/cni/bin {} --conf-dir {dir}/net.d {args}", command().display()))
    }

    /// Creates a pod of each kind, and an entry without a namespace in the cache of `cnimble run`.
    fn others(&self) -> Others {
        let manifest = self.path("other.json");
        fs::write(&manifest, super::manifest("other").to_string()).unwrap();
        let up = self.cnimble(&format!("pod up --json {}", manifest.display()));
        for name in ["cached", "beside", "midway", "orphan"] {
            self.node.sh(&format!("ip netns add {name}"));
        }
        self.cnimble("add pods cached --container-id cached --cache-dir /var/lib/elsewhere");
        self.cnimble("add pods beside --container-id beside --cache-dir /var/lib/cni");
        self.cnimble("add pods orphan --container-id orphan --cache-dir /var/lib/cni");
        // The state of a libcni ADD between the bridge and the next plugin.
        let list: Value =
            serde_json::from_slice(&fs::read(self.path("net.d/10-pods.conflist")).unwrap()).unwrap();
        let mut config = list["plugins"][0].clone();
        config["name"] = json!("pods");
        config["cniVersion"] = json!("1.1.0");
        self.place("midway.json", &config.to_string());
        self.node.sh(&format!(
            "CNI_COMMAND=ADD CNI_CONTAINERID=midway CNI_NETNS=/run/netns/midway CNI_IFNAME=eth0 \
             CNI_PATH=/opt/cni/bin /opt/cni/bin/bridge <{}",
            self.path("midway.json").display()
        ));
        self.node.sh("ip netns del orphan");
        assert!(wait_until(PATIENCE, || self.ports() == 4), "the orphan's link");
        let pinned = self.files("/run/cnimble/netns");
        assert_eq!(pinned.len(), 1, "{up}");
        let paths = ["cached", "beside", "midway"].map(|name| format!("/run/netns/{name}"));
        let paths = paths.into_iter().chain([format!("/run/cnimble/netns/{}", pinned[0])]);
        let with_address = |path: String| {
            let address = self.address(&path);
            assert!(address.starts_with("10."), "{path}: {address}");
            (path, address)
        };
        Others(paths.map(with_address).collect())
    }

    fn address(&self, netns: &str) -> String {
        let text = self.node.run(&format!("nsenter --net={netns} ip -o -4 addr show dev eth0")).text();
        let mut words = text.split_whitespace().skip_while(|word| *word != "inet");
        words.nth(1).and_then(|word| word.split('/').next()).unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn assert_untouched(&self, others: &Others) {
        let rules = self.node.sh("nft list table inet cnimble");
        let leases = self.leases();
        for (path, address) in &others.0 {
            assert_eq!(self.address(path), *address, "{path}\n{}", self.log());
            assert!(leases.contains(address), "{path}: {address} in {leases:?}");
            assert!(rules.contains(&format!("{address} comment")), "{path} isn't masqueraded: {rules}");
        }
    }
}

impl Run<'_> {
    /// Triggers clean-ups until `is_gone` holds. A lease stays while any namespace of this machine has its address or
    /// is unreadable, such as one of another test.
    #[track_caller]
    fn clean_until(&self, is_gone: impl Fn() -> bool) {
        let again = || {
            let gone = wait_until(3.0, &is_gone);
            if !gone {
                self.signal("HUP");
            }
            gone
        };
        assert!(wait_until(PATIENCE, again), "{}", self.cluster.log());
    }
}

#[test]
fn pods_of_others_live_beside_it() {
    need!("ip", "nft", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let others = cluster.others();
    cluster.put_all(["web".to_owned()].into_iter());
    let run = cluster.start("");
    run.wait_for(1);
    // The clean-up is complete when the entry without a namespace is removed.
    run.clean_until(|| !cluster.files("/var/lib/cni/results").iter().any(|name| name.contains("orphan")));
    let (_, metrics) = run.page("/metrics").unwrap();
    assert!(!metrics.contains("verb=\"GC\""), "{metrics}");
    cluster.assert_untouched(&others);
    run.stop();
    cluster.assert_untouched(&others);
}

/// In its own network it calls the plugins' GC. Their list has all pods that live or may live.
#[test]
fn in_a_network_of_its_own_only_what_is_dead_is_cleaned_up() {
    need!("ip", "nft", "nsenter");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let others = cluster.others();
    // A lease without a record and a cache entry, older than the duration of an ADD.
    cluster.node.sh("printf 'dead\\r\\neth0' >/var/lib/cni/networks/pods/10.7.0.99 && \
         touch -d '1 hour ago' /var/lib/cni/networks/pods/10.7.0.99");
    cluster.put_all(["web".to_owned()].into_iter());
    let run = cluster.start("--own-network pods");
    run.wait_for(1);
    run.clean_until(|| !cluster.leases().contains(&"10.7.0.99".to_owned()));
    cluster.assert_untouched(&others);
    run.stop();
}

#[test]
fn other_users_cannot_lock_what_it_locks() {
    need!("ip", "nft", "setpriv", "flock");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all(["web".to_owned()].into_iter());
    // The usual directories are open to other users. An earlier release created them readable for all.
    cluster.node.sh("mkdir -p /run/cnimble/locks && touch /run/cnimble/locks/everything");
    let line = format!(
        "CNI_PATH=/opt/cni/bin CNIMBLE_LOCK_DIR= {} run --conf-dir {1}/net.d --manifests {1}/manifests --once",
        command().display(),
        cluster.node.dir().display()
    );
    cluster.node.sh(&line);
    let files = cluster.node.sh("find /run/cnimble/locks /var/lib/cnimble/run.lock -type f");
    for file in ["everything", "net-pods", "run.lock"] {
        assert!(files.contains(file), "{files}");
    }
    for file in files.lines() {
        let others = "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs";
        let tried = cluster.node.run(&format!("{others} flock --nonblock {file} true"));
        assert_ne!(tried.status, 0, "{file} can be locked by any user");
        // The test is sound: root can lock the file.
        cluster.node.sh(&format!("flock --nonblock {file} true"));
    }
}
