//! Converts CRI's PodSandboxConfig to cnimble's configuration of a sandbox.

use std::sync::Arc;

use tonic::Status;

use crate::wire;
use cnimble_pod::PodId;
use cnimble_pod::network::{Dns, PortMapping, Protocol};
use cnimble_pod::sandbox::SandboxConfig;

/// The longest name in bytes, as in Kubernetes.
const NAME: usize = 253;

/// The longest path in bytes (PATH_MAX).
const PATH: usize = 4096;

/// Returns the wanted sandbox, and the number of the attempt. What cannot be done here, such as sysctls or user
/// namespaces, is refused.
pub(crate) fn wanted(request: wire::RunPodSandboxRequest) -> Result<(SandboxConfig, u32), Status> {
    if !request.runtime_handler.is_empty() {
        let handler = shown(&request.runtime_handler);
        return Err(bad(format!("runtime_handler: there is no \"{handler}\", only the one without a name")));
    }
    let config = request.config.ok_or_else(|| bad("config is missing"))?;
    let metadata = config.metadata.ok_or_else(|| bad("config.metadata is missing"))?;
    let namespace = check_metadata("namespace", metadata.namespace)?;
    let pod = PodId::new(namespace, check_metadata("name", metadata.name)?);
    let linux = config.linux.unwrap_or_default();
    let options = linux.security_context.and_then(|context| context.namespace_options).unwrap_or_default();
    if options.userns_options.is_some_and(|of| of.mode != wire::NODE) {
        return Err(bad("config.linux: user namespaces are not supported"));
    }
    if let Some(name) = linux.sysctls.keys().next() {
        return Err(bad(format!("config.linux.sysctls: {}: sysctls are not supported", shown(name))));
    }
    let mut wanted = SandboxConfig::new(pod, check_metadata("uid", metadata.uid)?);
    wanted.host_network = match options.network {
        wire::POD => false,
        wire::NODE => true,
        other => {
            return Err(bad(format!(
                "config.linux: network namespace mode {other}: only POD (0) and NODE (2) are supported"
            )));
        }
    };
    wanted.hostname = word("config.hostname", config.hostname)?;
    wanted.cgroup = match linux.cgroup_parent {
        path if path.is_empty() => None,
        path if path.len() > PATH || path.contains(char::is_control) => {
            return Err(bad("config.linux.cgroup_parent: it is too long, or has control characters"));
        }
        path => Some(path),
    };
    let ports = config.port_mappings.iter().filter(|port| port.host_port != 0);
    wanted.ports = ports.map(port).collect::<Result<_, _>>()?;
    wanted.dns = config.dns_config.map(dns).transpose()?.unwrap_or_default();
    wanted.labels = config.labels;
    wanted.annotations = Arc::new(config.annotations);
    Ok((wanted, metadata.attempt))
}

/// Checks a key of `config.metadata`, which must not be empty.
fn check_metadata(key: &str, text: String) -> Result<String, Status> {
    if text.is_empty() {
        Err(bad(format!("config.metadata.{key} is missing")))
    } else {
        word(&format!("config.metadata.{key}"), text)
    }
}

/// Returns the error of an invalid request.
fn bad(why: impl Into<String>) -> Status {
    Status::invalid_argument(why)
}

fn shown(text: &str) -> String {
    format!("{:.64}", text.escape_debug().to_string())
}

/// Checks a name. Names are put into CNI_ARGS, where `;` and `=` separate, and into resolv.conf, where white space
/// does.
fn word(what: &str, text: String) -> Result<String, Status> {
    if text.len() <= NAME && text.bytes().all(|byte| byte.is_ascii_graphic() && !b";=/\\\"'".contains(&byte))
    {
        Ok(text)
    } else {
        let shown = shown(&text);
        Err(bad(format!("{what}: \"{shown}\" is too long, or has characters that no name has")))
    }
}

/// Converts a port mapping. A host port of 0 is none, and is left out before.
fn port(port: &wire::PortMapping) -> Result<PortMapping, Status> {
    Ok(PortMapping {
        host_port: port_number("host_port", port.host_port)?,
        container_port: port_number("container_port", port.container_port)?,
        protocol: match port.protocol {
            0 => Protocol::Tcp,
            1 => Protocol::Udp,
            2 => Protocol::Sctp,
            other => {
                return Err(bad(format!(
                    "config.port_mappings: protocol {other} is none of TCP (0), UDP (1), SCTP (2)"
                )));
            }
        },
        host_ip: match port.host_ip.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                bad(format!("config.port_mappings: host_ip \"{}\" is no address", shown(text)))
            })?),
        },
    })
}

fn port_number(what: &str, number: i32) -> Result<u16, Status> {
    let number = u16::try_from(number).ok().filter(|number| *number > 0);
    number.ok_or_else(|| bad(format!("config.port_mappings: {what} is not within 1 to 65535")))
}

fn dns(dns: wire::DnsConfig) -> Result<Dns, Status> {
    Ok(Dns {
        servers: check_texts("servers", dns.servers)?,
        searches: check_texts("searches", dns.searches)?,
        options: check_texts("options", dns.options)?,
    })
}

/// Checks the texts of a key of `config.dns_config`, which become words in resolv.conf.
fn check_texts(key: &str, texts: Vec<String>) -> Result<Vec<String>, Status> {
    for text in &texts {
        if text.is_empty() || text.len() > NAME || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let shown = shown(text);
            let why = format!("config.dns_config.{key}: \"{shown}\" is empty, too long, or has spaces");
            return Err(bad(why));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PodConfig;
    use prost::Message;

    fn config() -> PodConfig {
        PodConfig {
            name: "web".into(),
            namespace: "default".into(),
            uid: "u1".into(),
            ..PodConfig::default()
        }
    }

    /// As the client sends it: over the wire.
    fn sent(config: PodConfig, handler: &str) -> wire::RunPodSandboxRequest {
        let request =
            wire::RunPodSandboxRequest { config: Some(config.into()), runtime_handler: handler.into() };
        wire::RunPodSandboxRequest::decode(request.encode_to_vec().as_slice()).unwrap()
    }

    #[test]
    fn what_the_client_sends_arrives() {
        let port = PortMapping {
            protocol: Protocol::Sctp,
            container_port: 80,
            host_port: 8080,
            host_ip: "2001:db8::1".parse().ok(),
        };
        let unpublished = PortMapping { host_port: 0, ..port.clone() };
        let given = PodConfig {
            attempt: 3,
            hostname: "web-0".into(),
            dns: Dns {
                servers: vec!["192.0.2.1".into()],
                searches: vec!["example.org".into()],
                options: vec!["ndots:5".into()],
            },
            ports: vec![port, unpublished],
            labels: [("app".to_owned(), "web".to_owned())].into(),
            annotations: [("a/b".to_owned(), "c d".to_owned())].into(),
            cgroup_parent: "/kubepods/pod1".into(),
            ..config()
        };
        let (got, attempt) = wanted(sent(given, "")).unwrap();
        assert_eq!((got.pod.to_string().as_str(), &*got.uid, attempt), ("default/web", "u1", 3));
        assert_eq!((&*got.hostname, got.cgroup.as_deref()), ("web-0", Some("/kubepods/pod1")));
        assert_eq!((got.labels["app"].as_str(), got.annotations["a/b"].as_str()), ("web", "c d"));
        assert_eq!(got.dns.searches, ["example.org"]);
        let [port] = got.ports.as_slice() else { panic!("{:?}", got.ports) };
        assert_eq!((port.host_port, port.container_port, port.protocol), (8080, 80, Protocol::Sctp));
        assert!(!got.host_network);
        assert!(wanted(sent(PodConfig { host_network: true, ..config() }, "")).unwrap().0.host_network);
    }

    #[track_caller]
    fn refused(request: wire::RunPodSandboxRequest, why: &str) {
        let status = wanted(request).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().contains(why), "{status:?}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_field() {
        refused(wire::RunPodSandboxRequest::default(), "config is missing");
        refused(sent(config(), "kata"), "runtime_handler: there is no \"kata\"");
        refused(sent(PodConfig { uid: String::new(), ..config() }, ""), "metadata.uid is missing");
        for bad in ["a;K8S_POD_UID=x", "a b", "a\nb", "../x", "ä", &"x".repeat(254)] {
            refused(sent(PodConfig { name: bad.into(), ..config() }, ""), "config.metadata.name: \"");
        }
        let dns = Dns { servers: vec!["192.0.2.1\nnameserver 192.0.2.2".into()], ..Dns::default() };
        refused(sent(PodConfig { dns, ..config() }, ""), "dns_config.servers");
        let mut request = sent(config(), "");
        let linux = request.config.as_mut().unwrap().linux.as_mut().unwrap();
        linux.sysctls.insert("net.ipv4.ip_forward".into(), "1".into());
        refused(request.clone(), "sysctls are not supported");
        let config = request.config.as_mut().unwrap();
        config.port_mappings = vec![wire::PortMapping { host_port: 70_000, ..Default::default() }];
        config.linux = None;
        refused(request, "host_port is not within 1 to 65535");
    }

    #[test]
    fn an_error_of_long_text_with_wide_letters_is_cut_and_does_not_panic() {
        let name = "ä\u{202e}".repeat(200);
        refused(sent(PodConfig { name, ..config() }, ""), "config.metadata.name: \"");
    }
}
