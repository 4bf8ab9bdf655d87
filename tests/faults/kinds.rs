//! The networks that are disturbed, each a list of plugins.

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Pod, Role, Sample, configs};

/// A network, as a list of plugins.
#[derive(Debug)]
pub struct Kind {
    pub name: String,
    pub chain: Chain,
    /// Whether there is another pod, which must not notice anything.
    pub neighbour: bool,
    /// The number of additional leases.
    pub leases: u32,
    /// The CNIMBLE_DEL_WAIT of the disturbed verb. With `0` a child waits for the kernel.
    pub wait: Option<&'static str>,
    /// Whether the host's end has an older address, from before the configuration was edited.
    pub edited: bool,
    key: Option<&'static Key>,
}

/// A key that the samples lack, and what it needs.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    /// The position of the plugin in the chain.
    at: usize,
    /// JSON pointers, and values in JSON. `null` removes a key.
    values: &'static [(&'static str, &'static str)],
    /// Commands for the host.
    host: &'static [&'static str],
}

const KEYS: &[Key] = &[
    // A veth's line would look like a pod's.
    Key {
        name: "uplink",
        at: 0,
        values: &[("/uplink", r#""up0""#)],
        host: &["ip tuntap add dev up0 mode tap"],
    },
    Key { name: "removeUnusedBridge", at: 0, values: &[("/removeUnusedBridge", "true")], host: &[] },
    Key {
        name: "mtuAuto",
        at: 0,
        values: &[("/mtu", "null"), ("/mtuAuto", "true")],
        host: &[
            "ip link add out0 mtu 1400 type veth peer name out1",
            "ip address add 192.0.2.1/24 dev out0",
            "ip link set out1 up",
            "ip link set out0 up",
            "ip route add default via 192.0.2.254",
        ],
    },
    Key { name: "keepFor", at: 0, values: &[("/ipam/keepFor", "3600")], host: &[] },
    Key {
        name: "ipMasqExclude",
        at: 0,
        values: &[("/ipMasqExclude", r#"["10.0.0.0/8", "fd00::/8"]"#)],
        host: &[],
    },
    Key {
        name: "acceptPublished",
        at: 1,
        values: &[("/acceptPublished", "true")],
        host: &["iptables -A FORWARD -j DROP", "ip6tables -A FORWARD -j DROP"],
    },
    // A bridge stands in for the dummy link of kube-proxy in IPVS mode.
    Key {
        name: "services",
        at: 1,
        values: &[],
        host: &[
            "ip link add kube-ipvs0 type bridge",
            "ip address add 10.96.0.1/32 dev kube-ipvs0",
            "ip address add fd00:96::1/128 dev kube-ipvs0 nodad",
        ],
    },
    // The machine whose bridges filter vlans has no family inet of nf_tables, so no masquerading.
    Key {
        name: "vlan",
        at: 0,
        values: &[("/vlan", "100"), ("/ipMasq", "null"), ("/ipMasqBackend", "null")],
        host: &[],
    },
    Key {
        name: "vlan and removeUnusedBridge",
        at: 0,
        values: &[
            ("/vlan", "100"),
            ("/removeUnusedBridge", "true"),
            ("/ipMasq", "null"),
            ("/ipMasqBackend", "null"),
        ],
        host: &[],
    },
];

impl Key {
    fn change(&self, configs: &mut [Value]) {
        for (pointer, value) in self.values {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let parent = configs[self.at].pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match serde_json::from_str(value).unwrap() {
                Value::Null => drop(parent.remove(name)),
                value => drop(parent.insert(name.to_owned(), value)),
            }
        }
    }

    fn prepare(&self, host: &Host) {
        let done = host.dir().join("prepared-for-a-key");
        if std::fs::exists(&done).unwrap() {
            return;
        }
        for command in self.host {
            let mut words = command.split(' ');
            let status = host.command(words.next().unwrap()).args(words).status().unwrap();
            assert!(status.success(), "{command}");
        }
        std::fs::write(done, "").unwrap();
    }
}

/// The configurations of a chain.
#[derive(Debug)]
pub enum Chain {
    Samples(Vec<&'static Sample>),
    /// A network that the Go plugins support, too.
    Common,
}

impl Chain {
    /// Returns the configurations for the pod with this number.
    pub fn configs(&self, host: &Host, number: u64) -> Vec<Value> {
        let Chain::Samples(samples) = self else { return vec![common(host)] };
        let mut configs: Vec<Value> = samples.iter().map(|sample| sample.numbered(host, number)).collect();
        let name = configs[0]["name"].clone();
        for config in &mut configs {
            config["name"] = name.clone();
        }
        configs
    }

    pub fn is_picky(&self) -> bool {
        matches!(self, Chain::Samples(samples) if samples.iter().any(|sample| sample.is_picky()))
    }

    pub fn lends(&self) -> bool {
        matches!(self, Chain::Samples(samples) if samples.iter().any(|sample| sample.lends))
    }

    pub fn pod(&self) -> Pod {
        match self {
            Chain::Samples(samples) => samples[0].pod(),
            Chain::Common => Pod::new(),
        }
    }

    pub fn ifname(&self) -> &'static str {
        match self {
            Chain::Samples(samples) => &samples[0].ifname,
            Chain::Common => "eth0",
        }
    }
}

fn common(host: &Host) -> Value {
    let mut config = configs::dual(host);
    config["cniVersion"] = json!("1.0.0");
    config["ipMasq"] = json!(true);
    config
}

impl Kind {
    /// Returns the network with this name, or the chain of plugins with these names, joined by ` and `. A key follows
    /// ` with `. `first ` in front says that there is no other pod.
    pub fn of(name: &str) -> Kind {
        let bridge = Sample::of("bridge");
        let (plain, key) = match name.split_once(" with ") {
            Some((plain, key)) => (plain, Some(KEYS.iter().find(|known| known.name == key).unwrap())),
            None => (name, None),
        };
        let by_a_child = plain.strip_suffix(" by a child");
        let chain = match by_a_child.unwrap_or(plain) {
            "edited bridge" => vec![bridge],
            "chain" => {
                let here = Sample::with(Role::Chained).filter(|sample| sample.missing().is_none());
                std::iter::once(bridge).chain(here).collect()
            }
            "many leases" => vec![Sample::of("host-local")],
            plugins => {
                plugins.strip_prefix("first ").unwrap_or(plugins).split(" and ").map(Sample::of).collect()
            }
        };
        Kind {
            name: name.to_owned(),
            chain: Chain::Samples(chain),
            neighbour: !plain.starts_with("first ") && plain != "edited bridge",
            leases: if name == "many leases" { 70 } else { 0 },
            wait: by_a_child.map(|_| "0"),
            edited: name == "edited bridge",
            key,
        }
    }

    /// Returns the configurations of the chain for the pod with this number, on a host that has what they need.
    pub fn configs(&self, host: &Host, number: u64) -> Vec<Value> {
        let mut configs = self.chain.configs(host, number);
        if let Some(key) = self.key {
            key.prepare(host);
            key.change(&mut configs);
        }
        configs
    }

    /// Returns true if the last pod leaves nothing on the host.
    pub fn leaves_nothing(&self) -> bool {
        !self.neighbour && self.name.ends_with("removeUnusedBridge")
    }

    pub fn has_uplink(&self) -> bool {
        self.name.ends_with(" with uplink")
    }

    /// Returns an attachment of a pod that a runtime knows by a name.
    pub fn named(att: Attachment) -> Attachment {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={}", att.id);
        att.args(&args)
    }

    /// Returns the network on which both sets of plugins are tested.
    pub fn common() -> Kind {
        Kind {
            name: "common".to_owned(),
            chain: Chain::Common,
            neighbour: true,
            leases: 0,
            wait: None,
            edited: false,
            key: None,
        }
    }
}

/// Returns the plugins that create networks and have no test of their own.
pub fn others() -> impl Iterator<Item = &'static Sample> {
    let alone = Sample::all().iter().filter(|sample| sample.role != Role::Chained && !sample.is_apart());
    alone.filter(|sample| !["bridge", "ptp", "host-local"].contains(&sample.plugin.as_str()))
}

/// Returns the networks of plugins that only the virtual machine's kernel supports. Chained plugins follow dummy.
pub fn picky() -> impl Iterator<Item = String> {
    let picky = Sample::all().iter().filter(|sample| sample.is_for_the_machine());
    picky.map(|sample| match sample.role {
        Role::Chained => format!("dummy and {}", sample.plugin),
        _ => sample.plugin.clone(),
    })
}
