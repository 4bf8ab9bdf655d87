//! The keys of a bandwidth configuration, checked.
//!
//! Limits stand at the top level, for all pods of the network, or in `runtimeConfig.bandwidth`
//! for one pod (annotations in Kubernetes). If any stands at the top level, those of the
//! runtime don't count, not even to fill in the other direction.

use serde::Deserialize;

use cnimble::net::qdisc::Tbf;
use cnimble::spec::capability::Bandwidth;
use cnimble::spec::{Code, Error, PluginConfig};

/// How long a packet may wait for tokens, in milliseconds.
const LATENCY: u32 = 25;

/// As it stands in the JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    shaped_subnets: Vec<String>,
    unshaped_subnets: Vec<String>,
    runtime_config: RuntimeKeys,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeKeys {
    bandwidth: Bandwidth,
}

/// A checked configuration, as the pod sees it. `None` is no limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// What it receives.
    pub(crate) ingress: Option<Tbf>,
    /// What it sends.
    pub(crate) egress: Option<Tbf>,
}

impl Config {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Code 7 with the key; 2 for a list of subnets.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        for (key, subnets) in
            [("shapedSubnets", &keys.shaped_subnets), ("unshapedSubnets", &keys.unshaped_subnets)]
        {
            if !subnets.is_empty() {
                let msg = format!("{key}: [{}] is not supported", subnets.join(" "));
                return Err(
                    Error::new(Code::UNSUPPORTED_FIELD, msg).details("limits hold for all traffic of a pod")
                );
            }
        }
        let own = [keys.ingress_rate, keys.ingress_burst, keys.egress_rate, keys.egress_burst];
        let (place, limits) = if own.iter().any(Option::is_some) {
            let limits = Bandwidth {
                ingress_rate: keys.ingress_rate.unwrap_or(0),
                ingress_burst: keys.ingress_burst.unwrap_or(0),
                egress_rate: keys.egress_rate.unwrap_or(0),
                egress_burst: keys.egress_burst.unwrap_or(0),
            };
            ("", limits)
        } else {
            ("runtimeConfig.bandwidth.", keys.runtime_config.bandwidth)
        };
        Ok(Config {
            ingress: bucket(&format!("{place}ingress"), limits.ingress_rate, limits.ingress_burst)?,
            egress: bucket(&format!("{place}egress"), limits.egress_rate, limits.egress_burst)?,
        })
    }

    /// Whether nothing is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

/// A limit of `rate` bits per second with bursts of `burst` bits. The kernel counts in bytes.
fn bucket(way: &str, rate: u64, burst: u64) -> Result<Option<Tbf>, Error> {
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

    use super::*;

    fn read(mut keys: Value) -> Result<Config, Error> {
        keys["cniVersion"] = json!("1.1.0");
        Config::read(&PluginConfig::parse(keys.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn the_top_level_wins_as_a_whole() {
        let runtime = json!({ "bandwidth": { "EgressRate": 8_000_000, "egressburst": 800_000 } });
        let limit = Some(Tbf::new(1_000_000, 100_000, 25));
        let of = |ingress, egress| Config { ingress, egress };
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
            (json!({ "shapedSubnets": ["10.0.0.0/8"] }), 2, "shapedSubnets: [10.0.0.0/8]"),
        ] {
            let err = read(keys.clone()).unwrap_err();
            assert!(err.code == Code(code) && err.msg.contains(word), "{keys}: {err}");
        }
    }
}
