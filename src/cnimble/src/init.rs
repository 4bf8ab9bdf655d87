//! `init`: writes a network's file for a purpose, after a check of the configuration.

use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use cnimble_cni::{cidr, names};
use cnimble_lint::{self as lint, Document, File, Finding, Host, Level};
use cnimble_netlink::Netlink;

use super::args::config::{Init, Purpose};
use super::lint::host;
use super::report::{Exit, Report, usage};
use super::{Session, network, print};

/// The version for a runtime that knows only `cniVersion`, as podman 4 and libcni before 1.1 do.
const VERSION: &str = "1.0.0";
/// The versions for a newer runtime. It takes the highest of these that it knows, which decides whether it calls STATUS
/// and GC (specification 1.1.0, section 1).
const VERSIONS: [&str; 2] = ["1.0.0", "1.1.0"];
/// The only directory that k3s reads.
const K3S_DIR: &str = "/var/lib/rancher/k3s/agent/etc/cni/net.d";

/// Writes the file of a new network, or only prints it with `--dry-run`. It never overwrites a file.
///
/// # Errors
/// Fails if the directory has a network of this name, and if the configuration has a fault or overlaps another network.
pub(super) fn init(session: &Session, given: &Init) -> Result<(), Report> {
    network::must_be_name(&given.name)?;
    let dir = match given.purpose {
        Purpose::K3s if !session.own_conf => PathBuf::from(K3S_DIR),
        _ => session.conf.dir().to_owned(),
    };
    let path = dir.join(format!("{}-{}.conflist", order(given.purpose), given.name));
    let networks = networks(&dir)?;
    if let Some(other) = networks.iter().find(|other| other.root.text_of("name") == Some(&given.name)) {
        let report = failed(given).row("why", format!("{} has a network of this name", other.file.path));
        return Err(report.hint(format!("`cnimble network inspect {}` shows it", given.name)));
    }
    let (text, host) = (|subnet| text(given, subnet), host::read()?);
    let document = match (given.subnet, given.purpose) {
        (Some(subnet), _) => checked(given, &path, text(Some(cidr::network_of(subnet)))?, &networks, &host)?,
        (None, Purpose::Dhcp) => checked(given, &path, text(None)?, &networks, &host)?,
        (None, Purpose::Macvlan) => {
            return Err(usage("macvlan needs --subnet, the subnet of the master's network")
                .hint("`cnimble init dhcp NAME` leaves addresses to the network's DHCP server"));
        }
        (None, _) => free(given, &path, &networks, &host)?,
    };
    if given.dry_run {
        return print(&document.file.text);
    }
    write(&path, &document.file.text).map_err(|err| {
        unwritten(given)
            .row("file", path.display().to_string())
            .row("why", err.to_string())
            .hint("run it as root, or name another directory with --conf-dir")
    })?;
    session.done(
        &format!("{} is there: try `cnimble add {} NETNS`", path.display(), given.name),
        &json!({"network": given.name, "file": path}),
    )
}

/// Returns the error for a configuration that can't be made.
fn failed(given: &Init) -> Report {
    Report::new(Exit::Config, format!("network {} is not made", given.name))
}

/// Returns the error for a failure to read the host or to write the file.
fn unwritten(given: &Init) -> Report {
    Report::new(Exit::Files, format!("network {} is not made", given.name))
}

/// Returns the number in front of the file's name. Runtimes take the first file of the directory as the default
/// network.
fn order(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Containerd | Purpose::K3s => "10",
        Purpose::Podman => "87",
        _ => "50",
    }
}

/// Returns the networks of a directory. Files that don't parse are left out, because `validate` reports them.
pub(super) fn networks(dir: &Path) -> Result<Vec<Document>, Report> {
    let files = super::lint::files::in_directory(dir)?;
    Ok(files.into_iter().filter_map(|file| Document::parse(file).ok()).collect())
}

/// Returns the configuration with the first unused /24 from 10.89.0.0 on. It skips 10.88.0.0/16, the subnet of podman's
/// own network, which has no file at first.
fn free(given: &Init, path: &Path, networks: &[Document], host: &Host) -> Result<Document, Report> {
    for subnet in candidates() {
        let document = parsed(path, text(given, Some(subnet))?)?;
        if overlaps(&document, networks, host).is_empty() {
            return Ok(document);
        }
    }
    Err(failed(given)
        .row("why", "every /24 from 10.89.0.0 to 10.95.255.0 is taken")
        .hint("name one with --subnet"))
}

/// Returns the subnets from which a free one is chosen, in order.
pub(super) fn candidates() -> impl Iterator<Item = IpNetwork> {
    let numbers = (89..96_u8).flat_map(|second| (0..=255_u8).map(move |third| [10, second, third, 0]));
    numbers.filter_map(|number| IpNetwork::new(number.into(), 24).ok())
}

fn parsed(path: &Path, text: String) -> Result<Document, Report> {
    Document::parse(File { path: path.display().to_string(), text })
        .map_err(|failed| Report::new(Exit::Config, failed.1.message))
}

/// Returns what the network shares with the other networks or with the host's routes.
pub(super) fn overlaps(document: &Document, networks: &[Document], host: &Host) -> Vec<Finding> {
    let mut found = lint::together(document, networks);
    found.extend(lint::on_host(document, host));
    found
}

/// Parses the configuration, and fails if a check finds more than a note.
fn checked(
    given: &Init,
    path: &Path,
    text: String,
    networks: &[Document],
    host: &Host,
) -> Result<Document, Report> {
    let document = parsed(path, text)?;
    let mut found = lint::lint(&document);
    found.extend(overlaps(&document, networks, host));
    found.retain(|finding| finding.level > Level::Note);
    if found.is_empty() {
        return Ok(document);
    }
    Err(found.iter().fold(failed(given), |report, finding| report.row("why", &finding.message)))
}

/// Returns the text of the file. Keys with a leading `_` are explanations, which plugins don't read.
fn text(given: &Init, subnet: Option<IpNetwork>) -> Result<String, Report> {
    let (why, plugins) = choose_plugins(given, subnet)?;
    let mut network = json!({
        "_why": why,
        "cniVersion": VERSION,
        "cniVersions": VERSIONS,
        "name": given.name,
        "plugins": plugins,
    });
    if let (Some(subnet), None, Value::Object(network)) = (subnet, given.subnet, &mut network) {
        let why = format!("{subnet} is free: no other network here and no route of this host overlaps it");
        network.insert("_subnet".to_owned(), why.into());
    }
    Ok(cnimble_cni::json::to_pretty(&InOrder(&network)) + "\n")
}

/// Returns the sentence that explains a purpose to the user, and the entries of its plugins.
fn choose_plugins(given: &Init, subnet: Option<IpNetwork>) -> Result<(&'static str, Vec<Value>), Report> {
    Ok(match given.purpose {
        Purpose::Bridge => (
            "a bridge of the host, which is the pods' gateway; what leaves it gets the host's address, ports can be published",
            vec![build_bridge(&names::bridge_for(&given.name), subnet), build_portmap()],
        ),
        Purpose::Ptp => (
            "a pair for each pod, routed by the host: pods see no frames of each other",
            vec![json!({"type": "ptp", "ipMasq": true, "ipam": build_host_local(subnet)}), build_portmap()],
        ),
        Purpose::Podman => (
            "as podman makes its networks: published ports, a firewall that lets the pods out, and podman's --mac-address by tuning",
            vec![
                build_bridge(&names::bridge_for(&given.name), subnet),
                build_portmap(),
                json!({"type": "firewall"}),
                json!({"type": "tuning"}),
            ],
        ),
        Purpose::Containerd => (
            "the first file of the directory is the default network of containerd and CRI-O; hostPort and bandwidth annotations work",
            vec![build_bridge("cni0", subnet), build_portmap(), build_bandwidth()],
        ),
        Purpose::K3s => (
            "for k3s --flannel-backend=none: the subnet has to be the node's podCIDR, and routes between nodes are not made here",
            vec![build_bridge("cni0", subnet), build_portmap(), build_bandwidth()],
        ),
        Purpose::Macvlan => (
            "pods with MACs of their own on the master's network; the host itself can't reach them",
            vec![
                json!({"type": "macvlan", "master": master(given)?, "mode": "bridge", "ipam": build_host_local(subnet)}),
            ],
        ),
        Purpose::Dhcp => (
            "pods with MACs of their own on the master's network, and addresses of its DHCP server; the plugin keeps the leases by itself, with the Go plugin a daemon has to run",
            vec![
                json!({"type": "macvlan", "master": master(given)?, "mode": "bridge", "ipam": {"type": "dhcp"}}),
            ],
        ),
    })
}

/// Returns the entry of the plugin bridge, with addresses of `subnet` from host-local.
fn build_bridge(name: &str, subnet: Option<IpNetwork>) -> Value {
    json!({
        "type": "bridge",
        "bridge": name,
        "isGateway": true,
        "ipMasq": true,
        "hairpinMode": true,
        "ipam": build_host_local(subnet),
    })
}

/// Returns the key `ipam` for host-local, with a default route of the subnet's family.
fn build_host_local(subnet: Option<IpNetwork>) -> Value {
    let subnet = subnet.map(|subnet| subnet.to_string()).unwrap_or_default();
    let default = if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" };
    json!({"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": default}]})
}

/// Returns the entry of portmap, to which runtimes pass the published ports.
fn build_portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

/// Returns the entry of bandwidth, to which runtimes pass the limits of a pod.
fn build_bandwidth() -> Value {
    json!({"type": "bandwidth", "capabilities": {"bandwidth": true}})
}

/// Keys in the order in which people read a configuration.
const ORDER: [&str; 6] = ["_why", "_subnet", "cniVersion", "cniVersions", "name", "type"];

/// A value whose objects begin with the keys of [`ORDER`]. The lists of plugins and the object `ipam` come last.
struct InOrder<'a>(&'a Value);

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(map) => {
                let mut keys: Vec<(&String, &Value)> = map.iter().collect();
                keys.sort_by_key(|(key, _)| {
                    let first = ORDER.iter().position(|known| known == key).unwrap_or(ORDER.len());
                    (first, ["ipam", "plugins"].contains(&key.as_str()))
                });
                serializer.collect_map(keys.into_iter().map(|(key, value)| (key, InOrder(value))))
            }
            Value::Array(list) => serializer.collect_seq(list.iter().map(InOrder)),
            other => other.serialize(serializer),
        }
    }
}

/// Returns the interface that `--master` names, or else that of the default route. It fails if there is neither.
fn master(given: &Init) -> Result<String, Report> {
    if let Some(master) = &given.master {
        return Ok(master.clone());
    }
    match default_link() {
        Ok(Some(name)) => Ok(name),
        Ok(None) => Err(failed(given)
            .row("why", "there is no default route, whose interface would be the master")
            .hint("name it with --master")),
        Err(err) => Err(unwritten(given).row("why", err.to_string())),
    }
}

/// Returns the name of the default route's interface.
fn default_link() -> cnimble_netlink::Result<Option<String>> {
    let mut netlink = Netlink::open()?;
    let Some(index) = netlink.default_link()? else { return Ok(None) };
    Ok(Some(netlink.link_at(index)?.name))
}

/// Writes a file atomically, and creates its directory. It fails if the file exists.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    let draft = dir.join(format!(".{}.{}", std::process::id(), "cnimble-init"));
    cnimble_os::files::create(path, &draft, text.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_begins_with_its_type() {
        let network = json!({
            "plugins": [{"bridge": "b", "ipam": {"ranges": [], "type": "host-local"}, "isGateway": true, "type": "bridge"}],
            "name": "n",
            "cniVersion": "1.0.0",
        });
        let text = cnimble_cni::json::to_pretty(&InOrder(&network));
        let keys: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim().split_once("\": "))
            .map(|(key, _)| &key[1..])
            .collect();
        assert_eq!(
            keys,
            ["cniVersion", "name", "plugins", "type", "bridge", "isGateway", "ipam", "type", "ranges"]
        );
    }
}
