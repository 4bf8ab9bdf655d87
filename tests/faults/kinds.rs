//! The networks that are disturbed, each a list of plugins.

use serde_json::{Value, json};

use cnimble_tests::{Host, Pod, Role, Sample, configs};

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
    /// Returns the network with this name, or the chain of plugins with these names, joined by ` and `.
    pub fn of(name: &str) -> Kind {
        let bridge = Sample::of("bridge");
        let by_a_child = name.strip_suffix(" by a child");
        let chain = match by_a_child.unwrap_or(name) {
            "first bridge" | "edited bridge" => vec![bridge],
            "chain" => {
                let here = Sample::with(Role::Chained).filter(|sample| sample.missing().is_none());
                std::iter::once(bridge).chain(here).collect()
            }
            "many leases" => vec![Sample::of("host-local")],
            plugins => plugins.split(" and ").map(Sample::of).collect(),
        };
        Kind {
            name: name.to_owned(),
            chain: Chain::Samples(chain),
            neighbour: !["first bridge", "edited bridge"].contains(&name),
            leases: if name == "many leases" { 70 } else { 0 },
            wait: by_a_child.map(|_| "0"),
            edited: name == "edited bridge",
        }
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
