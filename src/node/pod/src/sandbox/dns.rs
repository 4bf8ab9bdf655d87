//! Makes a pod's resolv.conf from its policy and the node's file, as Kubernetes' pkg/kubelet/network/dns does.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_os::files::{self, Links};

use crate::manifest::DnsPolicy;
use crate::network::Dns;

/// How many name servers the resolver reads (resolv.conf(5)).
const MAX_SERVERS: usize = 3;
/// Kubernetes' limits of search lists.
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// The limit of the node's file, in bytes.
const LIMIT: usize = 1 << 20;

/// The node's configuration of name resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsOptions {
    /// The addresses of the cluster's DNS. The list is empty outside a cluster.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain, usually `cluster.local`. May be empty.
    pub cluster_domain: String,
    /// The node's resolv.conf that pods get parts of.
    pub resolv_conf: PathBuf,
}

impl Default for DnsOptions {
    /// Returns options without a cluster, with the node's resolv.conf. If that names only a server on loopback
    /// (systemd-resolved), which no pod reaches, the file with the servers behind it is used.
    fn default() -> Self {
        let own = Path::new("/etc/resolv.conf");
        let behind = Path::new("/run/systemd/resolve/resolv.conf");
        let dns = parse(&fs::read_to_string(own).unwrap_or_default());
        let stub = !dns.servers.is_empty()
            && dns.servers.iter().all(|server| server.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()));
        let resolv_conf = if stub && behind.exists() { behind } else { own };
        DnsOptions {
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: resolv_conf.to_owned(),
        }
    }
}

impl DnsOptions {
    /// Returns the content of a pod's resolv.conf. `own` is the pod's `dnsConfig`. Entries over the limits are left
    /// out, with a warning. An unreadable file of the node counts as empty, with a warning.
    pub fn resolve(&self, policy: DnsPolicy, namespace: &str, own: &Dns) -> Dns {
        let mut dns = match policy {
            DnsPolicy::None => Dns::default(),
            DnsPolicy::ClusterFirst if !self.cluster_dns.is_empty() => {
                self.cluster(namespace, &self.read_node())
            }
            DnsPolicy::ClusterFirst | DnsPolicy::Default => self.read_node(),
        };
        add(&mut dns.servers, &own.servers);
        add(&mut dns.searches, &own.searches);
        for option in &own.options {
            dns.options.retain(|other| option_name(other) != option_name(option));
            dns.options.push(option.clone());
        }
        limit(&mut dns);
        dns
    }

    /// Reads the node's resolv.conf. An unreadable one counts as empty, with a warning.
    fn read_node(&self) -> Dns {
        // Only a regular file is read: a pipe would make every pod wait.
        match files::read(&self.resolv_conf, LIMIT, Links::Follow) {
            Ok(text) => parse(&String::from_utf8_lossy(&text)),
            Err(err) => {
                log::warn!("{}: {err}: pods have no name servers from it", self.resolv_conf.display());
                Dns::default()
            }
        }
    }

    /// Returns the settings for the policy ClusterFirst.
    fn cluster(&self, namespace: &str, node: &Dns) -> Dns {
        let domain = self.cluster_domain.trim_matches('.');
        let mut searches = Vec::new();
        if !domain.is_empty() {
            searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
        }
        add(&mut searches, &node.searches);
        Dns {
            servers: self.cluster_dns.iter().map(ToString::to_string).collect(),
            searches,
            options: vec!["ndots:5".to_owned()],
        }
    }
}

/// Returns an option without its value.
fn option_name(option: &str) -> &str {
    option.split(':').next().unwrap_or_default()
}

/// Adds the texts that are not there yet.
fn add(to: &mut Vec<String>, more: &[String]) {
    for text in more {
        if !to.contains(text) {
            to.push(text.clone());
        }
    }
}

/// Leaves out servers and search domains over the limits, with a warning.
fn limit(dns: &mut Dns) {
    if dns.servers.len() > MAX_SERVERS {
        let rest = dns.servers.split_off(MAX_SERVERS);
        log::warn!("more than {MAX_SERVERS} name servers: {rest:?} are left out");
    }
    let mut chars = 0;
    let fitting = dns.searches.iter().enumerate().take_while(|(index, search)| {
        chars += search.len() + usize::from(*index > 0);
        *index < MAX_SEARCHES && chars <= MAX_SEARCH_CHARS
    });
    let length = fitting.count();
    if length < dns.searches.len() {
        let rest = dns.searches.split_off(length);
        log::warn!("the search list is too long: {rest:?} are left out");
    }
}

/// Parses the text of a resolv.conf(5). The last `search` or `domain` line counts. Of several `options` lines only the
/// last one counts, which the manual does not say.
pub(super) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.servers.extend(words.next()),
            Some("search" | "domain") => dns.searches = words.filter(|word| word != ".").collect(),
            Some("options") => dns.options = words.collect(),
            _ => {}
        }
    }
    dns
}

/// Returns the text of a resolv.conf(5).
pub(super) fn resolv_conf(dns: &Dns) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        text.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> (tempfile::TempDir, DnsOptions) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        fs::write(&path, text).unwrap();
        let options = DnsOptions {
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: path,
        };
        (dir, options)
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn each_policy_has_its_own_sources() {
        let (_dir, mut options) = node(
            "# comment\nnameserver 192.0.2.1\nsearch old.example\nsearch example.org .\noptions rotate timeout:2\n",
        );
        let own = Dns::default();
        assert_eq!(
            resolv_conf(&options.resolve(DnsPolicy::ClusterFirst, "team", &own)),
            "search team.svc.cluster.local svc.cluster.local cluster.local example.org\n\
             nameserver 10.96.0.10\noptions ndots:5\n"
        );
        let default = "search example.org\nnameserver 192.0.2.1\noptions rotate timeout:2\n";
        assert_eq!(resolv_conf(&options.resolve(DnsPolicy::Default, "team", &own)), default);
        assert_eq!(options.resolve(DnsPolicy::None, "team", &own), own);
        // Outside a cluster the node's servers are better than none.
        options.cluster_dns.clear();
        assert_eq!(resolv_conf(&options.resolve(DnsPolicy::ClusterFirst, "team", &own)), default);
    }

    #[test]
    fn the_pods_own_settings_are_merged_and_limited() {
        let (_dir, options) = node("nameserver 192.0.2.1\nsearch a b\noptions rotate ndots:1\n");
        let own = Dns {
            servers: texts(&["192.0.2.2", "192.0.2.1", "192.0.2.3", "192.0.2.4"]),
            searches: texts(&["b", "c"]),
            options: texts(&["ndots:3", "edns0"]),
        };
        let dns = options.resolve(DnsPolicy::Default, "x", &own);
        assert_eq!(dns.servers, ["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        assert_eq!(dns.searches, ["a", "b", "c"]);
        assert_eq!(dns.options, ["rotate", "ndots:3", "edns0"]);

        let many = Dns { searches: (0..40).map(|n| format!("s{n}")).collect(), ..Dns::default() };
        assert_eq!(options.resolve(DnsPolicy::None, "x", &many).searches.len(), 32);
        let long = Dns { searches: (0..10).map(|n| format!("{n}{}", "x".repeat(250))).collect(), ..many };
        // Eight of 251 characters and seven spaces make 2015.
        assert_eq!(options.resolve(DnsPolicy::None, "x", &long).searches.len(), 8);
    }
}
