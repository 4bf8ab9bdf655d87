//! The limits. They are at the top level, for all pods of the network, or in `runtimeConfig.bandwidth`, for one pod
//! (annotations in Kubernetes).
//!
//! One limit at the top level disables all of the runtime, even for the other direction. The lists `shapedSubnets` and
//! `unshapedSubnets` are read in both places. Those of the runtime replace those of the top level if its limits count.

use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::{Error, PluginConfig, fields};
use cnimble_netlink::tc::tbf::Tbf;

/// The longest time that a packet waits for tokens, in milliseconds.
const LATENCY: u32 = 25;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    #[serde(deserialize_with = "fields::cidrs")]
    shaped_subnets: Vec<IpNetwork>,
    #[serde(deserialize_with = "fields::cidrs")]
    unshaped_subnets: Vec<IpNetwork>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Runtime {
    runtime_config: RuntimeKeys,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeKeys {
    bandwidth: Keys,
}

/// The packets that are limited, by the address of the *other* end: the source of what the pod receives, the
/// destination of what it sends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Subnets {
    /// All packets are limited.
    #[default]
    All,
    /// Only packets of these networks are limited (`shapedSubnets`).
    Only(Vec<IpNetwork>),
    /// All packets but those of these networks are limited (`unshapedSubnets`).
    Except(Vec<IpNetwork>),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The limit of what the pod receives.
    pub(crate) ingress: Option<Tbf>,
    /// The limit of what the pod sends.
    pub(crate) egress: Option<Tbf>,
    pub(crate) subnets: Subnets,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the key if a value is invalid.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let own: Keys = config.decode()?;
        let runtime = config.decode::<Runtime>()?.runtime_config.bandwidth;
        let numbers = [own.ingress_rate, own.ingress_burst, own.egress_rate, own.egress_burst];
        let here = own.subnets("")?;
        let of_runtime = runtime.subnets("runtimeConfig.bandwidth.")?;
        let (place, keys, subnets) = if numbers.iter().any(Option::is_some) {
            ("", own, here)
        } else {
            ("runtimeConfig.bandwidth.", runtime, if of_runtime == Subnets::All { here } else { of_runtime })
        };
        Ok(Config {
            ingress: bucket(&format!("{place}ingress"), keys.ingress_rate, keys.ingress_burst)?,
            egress: bucket(&format!("{place}egress"), keys.egress_rate, keys.egress_burst)?,
            subnets,
        })
    }

    /// Returns true if no direction is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

impl Keys {
    /// Reads the lists of subnets. Fails with code 7 if both have entries. `place` precedes the keys in the error.
    fn subnets(&self, place: &str) -> Result<Subnets, Error> {
        match (self.shaped_subnets.as_slice(), self.unshaped_subnets.as_slice()) {
            ([], []) => Ok(Subnets::All),
            (shaped, []) => Ok(Subnets::Only(shaped.to_vec())),
            ([], unshaped) => Ok(Subnets::Except(unshaped.to_vec())),
            _ => Err(Error::config(format!("{place}shapedSubnets and unshapedSubnets exclude each other"))
                .details(
                    "what is in neither list is limited with unshapedSubnets, and free with shapedSubnets",
                )),
        }
    }
}

/// Returns the token bucket for a `rate` in bits per second and a `burst` in bits. The kernel counts in bytes. `None`
/// if both are 0 or missing. Fails with code 7 if only one is set, or if the kernel cannot represent them.
fn bucket(way: &str, rate: Option<u64>, burst: Option<u64>) -> Result<Option<Tbf>, Error> {
    let (rate, burst) = (rate.unwrap_or(0), burst.unwrap_or(0));
    match (rate, burst) {
        (0, 0) => return Ok(None),
        (_, 0) => {
            return Err(Error::config(format!(
                "{way}Burst is missing: if rate is set, burst must also be set"
            )));
        }
        (0, _) => {
            return Err(Error::config(format!(
                "{way}Rate is missing: if burst is set, rate must also be set"
            )));
        }
        (..8, _) => {
            return Err(Error::config(format!("{way}Rate: {rate} bits per second are less than a byte")));
        }
        (_, ..8) => return Err(Error::config(format!("{way}Burst: {burst} bits are less than a byte"))),
        _ if burst / 8 >= u64::from(u32::MAX) => {
            return Err(Error::config(format!("{way}Burst: {burst} bits: burst cannot be more than 4GB")));
        }
        _ => {}
    }
    let tbf = Tbf::new(rate / 8, burst / 8, LATENCY);
    if tbf.buffer == 0 {
        return Err(Error::config(format!("{way}Burst: {burst} bits are too few for {way}Rate {rate}"))
            .details("the kernel needs a burst of at least a microsecond"));
    }
    Ok(Some(tbf))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use cnimble_cni::Code;

    use super::*;

    fn read(mut keys: Value) -> Result<Config, Error> {
        keys["cniVersion"] = json!("1.1.0");
        Config::read(&PluginConfig::parse(keys.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn the_top_level_wins_as_a_whole() {
        let runtime = json!({ "bandwidth": { "EgressRate": 8_000_000, "egressburst": 800_000 } });
        let limit = Some(Tbf::new(1_000_000, 100_000, 25));
        let of = |ingress, egress| Config { ingress, egress, subnets: Subnets::All };
        assert_eq!(read(json!({ "runtimeConfig": runtime })).unwrap(), of(None, limit));
        let both = json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000, "runtimeConfig": runtime });
        assert_eq!(read(both).unwrap(), of(limit, None));
        assert!(read(json!({ "ingressRate": 0, "runtimeConfig": runtime })).unwrap().is_empty());
        assert!(
            read(json!({ "ingressRate": null, "runtimeConfig": { "bandwidth": null } })).unwrap().is_empty()
        );
        assert!(read(json!({ "shapedSubnets": [], "unshapedSubnets": null })).unwrap().is_empty());
    }

    #[test]
    fn lists_of_subnets() {
        let of = |keys: Value| read(keys).unwrap().subnets;
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNetwork>>();
        let limit = json!({ "egressRate": 8000, "egressBurst": 8000 });
        let with = |key: &str| {
            let mut limit = limit.clone();
            limit[key] = json!(["10.0.0.0/8", "fd00::/8"]);
            limit
        };
        let both = nets(&["10.0.0.0/8", "fd00::/8"]);
        assert_eq!(of(with("shapedSubnets")), Subnets::Only(both.clone()));
        assert_eq!(of(with("UnshapedSubnets")), Subnets::Except(both.clone()));
        let runtime = json!({ "runtimeConfig": { "bandwidth": with("unshapedSubnets") } });
        assert_eq!(of(runtime), Subnets::Except(both));
        // The limits are the runtime's, the list is the network's.
        let mixed = json!({ "shapedSubnets": ["10.1.0.0/16"], "runtimeConfig": { "bandwidth": limit } });
        let mixed = read(mixed).unwrap();
        assert!(mixed.egress.is_some() && mixed.subnets == Subnets::Only(nets(&["10.1.0.0/16"])));
        // Limits of the top level ignore the lists of the runtime.
        let mut own = limit.clone();
        own["runtimeConfig"] = json!({ "bandwidth": with("shapedSubnets") });
        assert_eq!(of(own), Subnets::All);
    }

    #[test]
    fn bursts_that_runtimes_send() {
        for burst in [u64::from(u32::MAX), i32::MAX as u64, 34_359_738_359] {
            let config = read(json!({ "ingressRate": 1_000_000_000, "ingressBurst": burst })).unwrap();
            assert!(config.ingress.is_some(), "{burst}");
        }
    }

    #[test]
    fn what_makes_no_sense() {
        for (keys, code, word) in [
            (json!({ "ingressRate": 8 }), 7, "ingressBurst is missing"),
            (json!({ "egressBurst": 8 }), 7, "egressRate is missing"),
            (
                json!({ "runtimeConfig": { "bandwidth": { "ingressRate": 9 } } }),
                7,
                "runtimeConfig.bandwidth.ingressBurst",
            ),
            (json!({ "ingressRate": 8, "ingressBurst": 34_359_738_360_u64 }), 7, "more than 4GB"),
            (json!({ "ingressRate": 7, "ingressBurst": 8000 }), 7, "less than a byte"),
            (json!({ "egressRate": 8000, "egressBurst": 7 }), 7, "less than a byte"),
            (json!({ "egressRate": 80_000_000_000_u64, "egressBurst": 8 }), 7, "too few"),
            (json!({ "egressRate": -1 }), 7, "egressRate"),
            (json!({ "egressRate": 1.5 }), 7, "egressRate"),
            (json!({ "egressRate": "1M" }), 7, "egressRate"),
            (json!({ "shapedSubnets": ["10.0.0.0/33"] }), 7, "shapedSubnets[0]: invalid CIDR"),
            (json!({ "unshapedSubnets": ["10.0.0.0"] }), 7, "unshapedSubnets[0]: invalid CIDR"),
            (json!({ "unshapedSubnets": "10.0.0.0/8" }), 7, "unshapedSubnets: "),
            (
                json!({ "shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["fd00::/8"] }),
                7,
                "exclude each other",
            ),
        ] {
            let err = read(keys.clone()).unwrap_err();
            assert!(err.code == Code(code) && err.msg.contains(word), "{keys}: {err}");
        }
    }
}
