use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::capability::PortMapping;
use cnimble_cni::{CniResult, Error, PluginConfig};
use cnimble_rules::portmap::{Backend, Forward, Mapping};

/// The bit of the packet mark that asks for masquerading. Kubernetes uses 14 and 15, Calico 20 to 31.
const DEFAULT_MARK_BIT: u8 = 13;
/// The longest name of an iptables chain, in bytes.
const MAX_CHAIN_NAME: usize = 28;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: String,
    snat: Option<bool>,
    conditions_v4: Vec<String>,
    conditions_v6: Vec<String>,
    masq_all: bool,
    accept_published: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    runtime_config: Ports,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ports {
    port_mappings: Vec<PortMapping>,
}

#[derive(Debug)]
pub(crate) struct Config {
    /// `Auto` if neither the key nor the language of other keys decides.
    pub(crate) backend: Backend,
    /// Whether rules of iptables let published ports pass where `FORWARD` has rules of others (`acceptPublished`).
    pub(crate) accept_published: bool,
    /// The port mappings, still without the pod's addresses, which [`Config::forward`] takes from prevResult.
    forward: Forward,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the path of an invalid key, or the keys that contradict each
    /// other.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let external = keys.external_set_mark_chain.clone().filter(|chain| !chain.is_empty());
        if keys.mark_masq_bit.is_some() && external.is_some() {
            return Err(Error::config("Cannot specify externalSetMarkChain and markMasqBit"));
        }
        if let Some(chain) = &external {
            check_chain(chain)?;
        }
        let mark_bit = match keys.mark_masq_bit {
            None => DEFAULT_MARK_BIT,
            Some(bit) => u8::try_from(bit)
                .ok()
                .filter(|bit| *bit < 32)
                .ok_or_else(|| Error::config(format!("markMasqBit: {bit} is outside 0 to 31")))?,
        };
        let backend = backend(&keys, external.as_ref())?;
        Ok(Config {
            backend,
            accept_published: keys.accept_published,
            forward: Forward {
                mappings: mappings(&keys.runtime_config.port_mappings)?,
                addrs: Vec::new(),
                snat: keys.snat.unwrap_or(true),
                masq_all: keys.masq_all,
                mark_bit,
                external_mark_chain: external,
                conditions_v4: keys.conditions_v4,
                conditions_v6: keys.conditions_v6,
            },
        })
    }

    /// Returns true if conditions in nft's language are configured. The nft command has to parse them.
    pub(crate) fn has_nft_conditions(&self) -> bool {
        let Forward { conditions_v4, conditions_v6, .. } = &self.forward;
        let words = [conditions_v4, conditions_v6].into_iter().flatten();
        self.backend == Backend::Nftables && words.into_iter().any(|word| !word.is_empty())
    }

    /// Returns the port mappings for the addresses of the interface `ifname` in `prev`. The addresses may be empty.
    pub(crate) fn forward(&self, prev: &CniResult, ifname: &str) -> Forward {
        Forward { addrs: addresses(prev, ifname), ..self.forward.clone() }
    }
}

/// Fails with code 7 if `externalSetMarkChain` cannot be the name of an iptables chain.
fn check_chain(chain: &str) -> Result<(), Error> {
    let is_odd = chain.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"');
    if chain.len() <= MAX_CHAIN_NAME && !chain.starts_with(['-', '!']) && !is_odd {
        return Ok(());
    }
    Err(Error::config(format!(
        "externalSetMarkChain: \"{}\" is not the name of an iptables chain",
        chain.escape_default()
    )))
}

/// Returns the backend. `externalSetMarkChain` needs iptables, and conditions need the command in whose language they
/// are. Their first word tells the language: iptables' begin with `-` or `!`.
///
/// Fails with code 7 if the keys need different backends, or another one than the key `backend`.
fn backend(keys: &Keys, external: Option<&String>) -> Result<Backend, Error> {
    let (mut iptables_only, mut nft_only) = (Vec::new(), Vec::new());
    for (key, words) in [("conditionsV4", &keys.conditions_v4), ("conditionsV6", &keys.conditions_v6)] {
        match words.first().map(String::as_str) {
            None | Some("") => {}
            Some(first) if first.starts_with(['-', '!']) => iptables_only.push(key),
            Some(_) => nft_only.push(key),
        }
        let ends: &[char] = if nft_only.contains(&key) { &[';', '#', '\\'] } else { &[] };
        check_words(key, words, ends)?;
    }
    if external.is_some() {
        iptables_only.push("externalSetMarkChain");
    }
    match (keys.backend.as_str(), iptables_only.as_slice(), nft_only.as_slice()) {
        ("" | "iptables" | "nftables", [_, ..], [_, ..]) => Err(Error::config(format!(
            "{}, {}: the first is in iptables' language, the second in nft's",
            iptables_only.join(", "),
            nft_only.join(", ")
        ))),
        ("", [_, ..], []) | ("iptables", _, []) => Ok(Backend::Iptables),
        ("", [], [_, ..]) | ("nftables", [], _) => Ok(Backend::Nftables),
        ("", [], []) => Ok(Backend::Auto),
        ("nftables", keys, _) => Err(wrong_backend("nftables", keys, "iptables")),
        ("iptables", _, keys) => Err(wrong_backend("iptables", keys, "nft")),
        (other, ..) => Err(Error::config(format!("backend: unknown backend \"{}\"", other.escape_default()))
            .details("allowed are \"nftables\" and \"iptables\"")),
    }
}

/// Returns the error for a `backend` that does not know the language of the `keys`, with code 7.
fn wrong_backend(backend: &str, keys: &[&str], language: &str) -> Error {
    let keys = keys.join(", ");
    Error::config(format!(
        "backend, {keys}: the {backend} backend can't do what is said in {language}'s language"
    ))
    .details("hint: leave backend out; the conditions choose it")
}

/// Fails with code 7 for words with control characters or with one of `ends`, which could end the command or begin
/// another one.
fn check_words(key: &str, words: &[String], ends: &[char]) -> Result<(), Error> {
    if words.iter().any(|word| word.contains(char::is_control)) {
        return Err(Error::config(format!("{key}: a word has a control character in it")));
    }
    if let Some(odd) = words.iter().find(|word| word.contains(ends)) {
        return Err(Error::config(format!("{key}: \"{}\" is more than a condition", odd.escape_default()))
            .details("';', '#' and '\\' have no place in conditions in nft's language"));
    }
    Ok(())
}

/// Returns the mappings in their order, with duplicates. Fails with code 7 for an unknown protocol or the port 0. Warns
/// of a host port that leads to two ports of the pod, where the first counts. Leaves out ::1 with a warning, because
/// packets from there never leave the host.
fn mappings(entries: &[PortMapping]) -> Result<Vec<Mapping>, Error> {
    let mut mappings: Vec<Mapping> = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let Some(mapping) = Mapping::from_entry(entry) else {
            let why = format!(".protocol: unknown protocol \"{}\"", entry.protocol.escape_default());
            return Err(invalid_mapping(index, &why).details("allowed are tcp, udp and sctp"));
        };
        for (key, port) in [("hostPort", entry.host_port), ("containerPort", entry.container_port)] {
            if port == 0 {
                return Err(invalid_mapping(index, &format!(".{key}: 0 is not a port (1 to 65535)")));
            }
        }
        // A duplicate is no error: runtimes pass a port twice, or with the host addresses "" and 0.0.0.0.
        let twice = mappings.iter().find(|other| other.collides_with(&mapping));
        if let Some(other) = twice.filter(|other| other.container_port != mapping.container_port) {
            let (ours, theirs) = (mapping.container_port, other.container_port);
            log::warn!(
                "{mapping} is mapped to the pod's port {theirs} already, and not to {ours}: the first counts"
            );
        }
        mappings.push(mapping);
    }
    mappings.retain(|mapping| {
        let possible = !mapping.host_ip.is_some_and(|ip| ip.is_ipv6() && ip.is_loopback());
        if !possible {
            log::warn!("{mapping} can't be mapped: packets from ::1 never leave the host");
        }
        possible
    });
    Ok(mappings)
}

/// Returns the error for the mapping `index`, with code 7. `why` follows the mapping in the text.
fn invalid_mapping(index: usize, why: &str) -> Error {
    Error::config(format!("runtimeConfig.portMappings[{index}]{why}"))
}

/// Returns the first address of each family of the pod's interface. An address without a listed interface belongs to
/// the pod.
fn addresses(prev: &CniResult, ifname: &str) -> Vec<IpNetwork> {
    let mut found: Vec<IpNetwork> = Vec::new();
    for ip in &prev.ips {
        let other = ip
            .interface
            .and_then(|index| prev.interfaces.get(usize::try_from(index).ok()?))
            .is_some_and(|interface| interface.name != ifname || interface.sandbox.is_empty());
        if !other && !found.iter().any(|seen| seen.is_ipv4() == ip.address.is_ipv4()) {
            found.push(ip.address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &str) -> Result<Config, Error> {
        let json = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"portmap"{more}}}"#);
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    fn ports(list: &str) -> Result<Config, Error> {
        read(&format!(r#","runtimeConfig":{{"portMappings":{list}}}"#))
    }

    #[test]
    fn what_runtimes_send() {
        for nothing in ["", r#","runtimeConfig":null"#, r#","runtimeConfig":{"portMappings":[]}"#] {
            assert!(read(nothing).unwrap().forward.mappings.is_empty(), "{nothing}");
        }
        let config = ports(
            r#"[{"HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":""},
                {"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"192.0.2.1"},
                {"hostPort":53,"containerPort":53}]"#,
        )
        .unwrap();
        let shown: Vec<String> = config.forward.mappings.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["8080/tcp", "192.0.2.1:53/udp", "53/tcp"]);
        assert!(config.forward.snat && !config.forward.masq_all);
        assert_eq!((config.backend, config.forward.mark_bit), (Backend::Auto, 13));
    }

    #[test]
    fn bad_ports_are_refused() {
        for (list, part) in [
            (r#"[{"hostPort":0,"containerPort":80}]"#, "portMappings[0].hostPort: 0 is not a port"),
            (r#"[{"hostPort":80}]"#, "portMappings[0].containerPort: 0 is not a port"),
            (r#"[{"hostPort":70000,"containerPort":80}]"#, "portMappings[0].hostPort: "),
            (r#"[{"hostPort":-1,"containerPort":80}]"#, "portMappings[0].hostPort: "),
            (
                r#"[{"hostPort":1,"containerPort":1,"protocol":"icmp"}]"#,
                "[0].protocol: unknown protocol \"icmp\"",
            ),
            (r#"[{"hostPort":1,"containerPort":1,"hostIP":"1.2.3"}]"#, "portMappings[0].hostIP: invalid IP"),
            (r#"{}"#, "portMappings: invalid type"),
        ] {
            let err = ports(list).unwrap_err();
            assert_eq!(err.code.0, 7, "{err}");
            assert!(err.msg.contains(part), "{list}: {err}");
        }
        // The first of a repeated port counts.
        ports(r#"[{"hostPort":1,"containerPort":1},{"hostPort":1,"containerPort":2,"protocol":"TCP"}]"#)
            .unwrap();
        ports(
            r#"[{"hostPort":1,"containerPort":1,"hostIP":"0.0.0.0"},{"hostPort":1,"containerPort":1,"hostIP":"::"},
                {"hostPort":1,"containerPort":2,"hostIP":"192.0.2.1"},{"hostPort":1,"containerPort":1,"protocol":"udp"}]"#,
        )
        .unwrap();
    }

    #[test]
    fn backends_follow_from_the_keys_that_need_them() {
        for (more, backend) in [
            (r#","backend":"nftables""#, Backend::Nftables),
            (r#","backend":"iptables""#, Backend::Iptables),
            (r#","conditionsV4":["!","-d","192.0.2.0/24"]"#, Backend::Iptables),
            (r#","conditionsV4":["ip","daddr","!=","{ 127.0.0.0/8, 192.0.2.7 }"]"#, Backend::Nftables),
            (r#","backend":"nftables","conditionsV6":["ip6 daddr 2001:db8::1"]"#, Backend::Nftables),
            (r#","conditionsV4":[""],"conditionsV6":["-d","::1"]"#, Backend::Iptables),
            (r#","externalSetMarkChain":"KUBE-MARK-MASQ""#, Backend::Iptables),
            (r#","conditionsV4":[],"conditionsV6":null,"externalSetMarkChain":"""#, Backend::Auto),
        ] {
            assert_eq!(read(more).unwrap().backend, backend, "{more}");
        }
        for (more, part) in [
            (r#","backend":"pf""#, "unknown backend \"pf\""),
            (r#","backend":"nftables","conditionsV6":["-d","::1"]"#, "backend, conditionsV6:"),
            (r#","backend":"nftables","externalSetMarkChain":"X""#, "backend, externalSetMarkChain:"),
            (r#","backend":"iptables","conditionsV4":["ip","daddr","192.0.2.1"]"#, "backend, conditionsV4:"),
            (
                r#","conditionsV4":["ip","daddr","192.0.2.1"],"conditionsV6":["-d","::1"]"#,
                "conditionsV6, conditionsV4:",
            ),
            (
                r#","conditionsV4":["ip saddr 192.0.2.1"],"externalSetMarkChain":"X""#,
                "externalSetMarkChain, conditionsV4:",
            ),
            (r#","conditionsV4":["ip","saddr","192.0.2.1;","flush","ruleset"]"#, "is more than a condition"),
            (
                r#","conditionsV6":["meta","mark","1\nflush ruleset"]"#,
                "conditionsV6: a word has a control character",
            ),
            (r#","conditionsV4":["-d","1\nCOMMIT"]"#, "conditionsV4: a word has a control character"),
            (r#","markMasqBit":32"#, "markMasqBit: 32 is outside 0 to 31"),
            (r#","markMasqBit":-1"#, "markMasqBit: -1 is outside 0 to 31"),
            (r#","markMasqBit":1,"externalSetMarkChain":"X""#, "externalSetMarkChain and markMasqBit"),
            (r#","externalSetMarkChain":"a b""#, "is not the name of an iptables chain"),
        ] {
            let err = read(more).unwrap_err();
            assert_eq!(err.code.0, 7, "{err}");
            assert!(err.msg.contains(part), "{more}: {err}");
        }
    }

    #[test]
    fn the_pods_address_is_found() {
        let prev = |json: &str| {
            CniResult::from_value(&serde_json::from_str(json).unwrap(), cnimble_cni::Version::V1_0_0, "")
                .unwrap()
        };
        let found = addresses(
            &prev(
                r#"{"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/ns"}],
                    "ips":[{"address":"10.0.0.1/24","interface":0},{"address":"10.0.0.2/24","interface":1},
                           {"address":"10.0.0.3/24","interface":1},{"address":"fd00::2/64"}]}"#,
            ),
            "eth0",
        );
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.2/24", "fd00::2/64"]);
    }
}
