//! Kubernetes' validation rules for names and the network. Images, volumes and probes are not validated, because no
//! container runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodDNSConfig, PodSpec};

use cnimble_api::yaml::Step;
use cnimble_cni::names::subdomain_problem;

use super::access::{address, containers_with_ports, protocol};
use super::error::short;
use super::limits::MAX_FAULTS;
use super::names;
use crate::network::Bandwidth;

/// The limits of Linux' resolver that Kubernetes enforces.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// The limit of all annotations of an object together, in bytes.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// A fault with its path in the pod.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) way: Vec<Step>,
    pub(super) text: String,
}

macro_rules! way {
    ($($step:expr),*) => { vec![$(Step::from($step)),*] };
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, way: Vec<Step>, text: impl Into<String>) {
        if self.0.len() < MAX_FAULTS {
            self.0.push(Finding { way, text: short(text.into()) });
        }
    }

    /// Adds a fault of `value` if something is `wrong`.
    fn judge(&mut self, way: Vec<Step>, value: &str, wrong: Option<&'static str>) {
        if let Some(wrong) = wrong {
            self.add(way, format!("\"{}\" {wrong}", value.escape_debug()));
        }
    }

    fn judge_address(&mut self, way: Vec<Step>, value: &str) {
        self.judge(way, value, value.parse::<IpAddr>().is_err().then_some("is no IP address"));
    }
}

/// Returns the faults of a pod. A valid one has none.
pub(super) fn validate(pod: &Pod) -> Vec<Finding> {
    let mut findings = Findings::default();
    metadata(pod, &mut findings);
    match &pod.spec {
        None => findings.add(way!["spec"], "is missing"),
        Some(spec) => {
            names_in_spec(spec, &mut findings);
            ports(spec, &mut findings);
            name_resolution(spec, &mut findings);
        }
    }
    findings.0
}

fn metadata(pod: &Pod, findings: &mut Findings) {
    let meta = &pod.metadata;
    match meta.name.as_deref().unwrap_or_default() {
        "" => findings.add(way!["metadata", "name"], "is missing"),
        name => findings.judge(way!["metadata", "name"], name, subdomain_problem(name)),
    }
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    findings.judge(way!["metadata", "namespace"], namespace, names::label(namespace));
    let uid = meta.uid.as_deref().unwrap_or_default();
    findings.judge(way!["metadata", "uid"], uid, names::uid(uid));
    for (key, value) in meta.labels.iter().flatten() {
        findings.judge(way!["metadata", "labels", key.as_str()], key, names::qualified(key));
        findings.judge(way!["metadata", "labels", key.as_str()], value, names::label_value(value));
    }
    let Some(annotations) = &meta.annotations else { return };
    for key in annotations.keys() {
        // Kubernetes allows capital letters before the slash only in keys of annotations.
        let lower = key.to_ascii_lowercase();
        findings.judge(way!["metadata", "annotations", key.as_str()], key, names::qualified(&lower));
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        let text = format!("have {size} bytes, {MAX_ANNOTATIONS} are allowed");
        findings.add(way!["metadata", "annotations"], text);
    }
    if let Err(err) = Bandwidth::from_annotations(annotations) {
        findings.judge(way!["metadata", "annotations", err.annotation], &err.value, Some(err.reason));
    }
}

fn names_in_spec(spec: &PodSpec, findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for (list, index, container) in containers(spec) {
        let name = &container.name;
        findings.judge(way!["spec", list, index, "name"], name, names::label(name));
        if !seen.insert(name) {
            let problem = Some("is the name of another container, too");
            findings.judge(way!["spec", list, index, "name"], name, problem);
        }
    }
    for (key, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            findings.judge(way!["spec", key], value, names::label(value));
        }
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        findings.judge_address(way!["spec", "hostAliases", index, "ip"], &alias.ip);
        for (number, name) in alias.hostnames.iter().flatten().enumerate() {
            let way = way!["spec", "hostAliases", index, "hostnames", number];
            findings.judge(way, name, subdomain_problem(name));
        }
    }
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        findings.add(way!["spec", "terminationGracePeriodSeconds"], "is negative");
    }
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = (&'static str, usize, &Container)> {
    let init = spec.init_containers.iter().flatten().enumerate();
    let usual = spec.containers.iter().enumerate();
    let init = init.map(|(index, container)| ("initContainers", index, container));
    init.chain(usual.map(|(index, container)| ("containers", index, container)))
}

fn ports(spec: &PodSpec, findings: &mut Findings) {
    let mut taken = BTreeMap::new();
    let publishing: Vec<&Container> = containers_with_ports(spec).collect();
    for (list, index, container) in containers(spec) {
        let mut seen = BTreeSet::new();
        for (number, port) in container.ports.iter().flatten().enumerate() {
            let way = |field: &str| way!["spec", list, index, "ports", number, field];
            one_port(port, spec, &way, findings);
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty())
                && !seen.insert(name)
            {
                findings.judge(way("name"), name, Some("is the name of another port of this container, too"));
            }
            let host_port = port.host_port.unwrap_or(0);
            if host_port == 0 || !publishing.iter().any(|other| std::ptr::eq(*other, container)) {
                continue;
            }
            let host_ip = port.host_ip.as_deref().and_then(address);
            let key = (host_port, protocol(port.protocol.as_deref()), host_ip);
            if let Some(other) = taken.insert(key, &container.name) {
                let text = format!("{host_port} is published by container {other}, too");
                findings.add(way("hostPort"), text);
            }
        }
    }
}

fn one_port(port: &ContainerPort, spec: &PodSpec, way: &dyn Fn(&str) -> Vec<Step>, findings: &mut Findings) {
    if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
        findings.judge(way("name"), name, names::port(name));
    }
    if !(1..=65535).contains(&port.container_port) {
        findings.add(way("containerPort"), format!("{} is not between 1 and 65535", port.container_port));
    }
    let host_port = port.host_port.unwrap_or(0);
    if host_port != 0 && !(1..=65535).contains(&host_port) {
        findings.add(way("hostPort"), format!("{host_port} is not between 1 and 65535"));
    } else if spec.host_network == Some(true) && host_port != 0 && host_port != port.container_port {
        let text = format!("{host_port} must be the containerPort {} with hostNetwork", port.container_port);
        findings.add(way("hostPort"), text);
    }
    let name = port.protocol.as_deref();
    if protocol(name).is_none() {
        findings.judge(way("protocol"), name.unwrap_or_default(), Some("is none of TCP, UDP and SCTP"));
    }
    if let Some(ip) = port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
        findings.judge_address(way("hostIP"), ip);
    }
}

fn name_resolution(spec: &PodSpec, findings: &mut Findings) {
    let policy = spec.dns_policy.as_deref().unwrap_or_default();
    if !["", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"].contains(&policy) {
        let wrong = "is none of ClusterFirst, ClusterFirstWithHostNet, Default and None";
        findings.judge(way!["spec", "dnsPolicy"], policy, Some(wrong));
    }
    let config = spec.dns_config.as_ref();
    let servers = config.and_then(|config| config.nameservers.as_ref()).map_or(0, Vec::len);
    if policy == "None" && servers == 0 {
        findings.add(way!["spec", "dnsConfig", "nameservers"], "must name a server with dnsPolicy None");
    }
    if let Some(config) = config {
        dns_config(config, findings);
    }
}

fn dns_config(config: &PodDNSConfig, findings: &mut Findings) {
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if servers.len() > MAX_NAMESERVERS {
        let text = format!("are {}, {MAX_NAMESERVERS} are allowed", servers.len());
        findings.add(way!["spec", "dnsConfig", "nameservers"], text);
    }
    for (index, server) in servers.iter().enumerate() {
        findings.judge_address(way!["spec", "dnsConfig", "nameservers", index], server);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        let text = format!("are {}, {MAX_SEARCHES} are allowed", searches.len());
        findings.add(way!["spec", "dnsConfig", "searches"], text);
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARS {
        let text = format!("are longer than {MAX_SEARCH_CHARS} characters together");
        findings.add(way!["spec", "dnsConfig", "searches"], text);
    }
    for (index, search) in searches.iter().enumerate() {
        findings.judge(way!["spec", "dnsConfig", "searches", index], search, names::search(search));
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        let way = way!["spec", "dnsConfig", "options", index, "name"];
        match option.name.as_deref().unwrap_or_default() {
            "" => findings.add(way, "is missing"),
            name => findings.judge(way, name, space_problem(name)),
        }
        let value = option.value.as_deref().unwrap_or_default();
        findings.judge(way!["spec", "dnsConfig", "options", index, "value"], value, space_problem(value));
    }
}

/// Returns the problem of an option that is more than one word. The options are written into resolv.conf unchanged.
fn space_problem(text: &str) -> Option<&'static str> {
    let has_space = text.contains(|char: char| char.is_whitespace() || char.is_control());
    has_space.then_some("may not hold white space")
}
