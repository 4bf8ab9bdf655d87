//! `ls`: lists attachments with the names of their pods.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::time::UNIX_EPOCH;

use serde::Serialize;
use serde_json::{Value, json};

use cnimble_cni::capability::PortMapping;
use cnimble_doctor::tree::{InterfaceState, Network, Pod, Tree, natural};
use cnimble_runtime::{Cache, Entry, Key};

use super::args::look::{Ls, Output};
use super::cri::evidence;
use super::output::View;
use super::pod::age_of;
use super::report::{Exit, Report};
use super::style::{Paint, joined, table};
use super::tree::{self, Notes};
use super::{Session, network, print};

const WHAT: &str = "can't list the attachments";

/// Lists the attachments of all networks, or of the given one.
///
/// # Errors
/// Fails if the given network is neither configured nor in use.
pub(super) fn ls(session: &Session, given: &Ls) -> Result<(), Report> {
    let notes = Notes { names: names(given.cri.as_deref())?, ..Notes::default() };
    let tree = tree::read(session, &notes, WHAT)?;
    if let Some(name) = &given.network
        && !tree.networks.iter().any(|network| network.name == *name)
    {
        let unknown = network::load_network(session, name).err();
        return Err(unknown.map_or_else(
            || Report::because(Exit::Usage, WHAT, format!("{name} is a file: give the network's name")),
            |err| Report::conf(WHAT, &err),
        ));
    }
    let is_chosen = |network: &&Network| given.network.as_ref().is_none_or(|name| *name == network.name);
    let attachments = attachments(&tree, is_chosen, &session.caches())
        .map_err(|why| Report::because(Exit::Files, WHAT, why))?;
    if given.output == Some(Output::Name) {
        let mut names: Vec<&str> = attachments.iter().map(|of| of.pod.as_str()).collect();
        names.dedup();
        return print(&names.iter().map(|name| format!("{name}\n")).collect::<String>());
    }
    let is_wide = given.output == Some(Output::Wide);
    session.show(&Listing { attachments, is_wide, has_headings: !given.no_headers })
}

/// Returns the names of the runtime's pods by container ID. It is empty without a socket.
fn names(socket: Option<&OsStr>) -> Result<std::collections::BTreeMap<String, String>, Report> {
    let Some(socket) = socket else { return Ok(Default::default()) };
    let sandboxes = evidence::runtime(socket, WHAT)?.sandboxes();
    let sandboxes = sandboxes.map_err(|err| Report::because(Exit::Execution, WHAT, err))?;
    Ok(sandboxes.into_iter().map(|sandbox| (sandbox.id, sandbox.pod)).collect())
}

#[derive(Serialize)]
struct Listing {
    attachments: Vec<AttachmentRow>,
    #[serde(skip)]
    is_wide: bool,
    #[serde(skip)]
    has_headings: bool,
}

/// An attachment: what the kernel has now, and what the record of its ADD says.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttachmentRow {
    pod: String,
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    netns: Option<String>,
    host_link: Option<String>,
    addresses: Vec<String>,
    mac: Option<String>,
    #[serde(serialize_with = "ports_as_json")]
    ports: Vec<PortMapping>,
    /// Seconds since 1970.
    created: Option<u64>,
    state: InterfaceState,
    problem: Option<String>,
}

/// Returns the attachments of the chosen networks, sorted by pod, network and interface. If several caches have an
/// entry for one attachment, the first cache counts.
///
/// # Errors
/// Fails if a cache can't be listed.
pub(super) fn attachments(
    tree: &Tree,
    is_chosen: impl Fn(&&Network) -> bool,
    caches: &[Cache],
) -> Result<Vec<AttachmentRow>, String> {
    let mut entries: HashMap<(String, String, String), (&Cache, Entry)> = HashMap::new();
    // An entry of an earlier cache replaces that of a later one.
    for cache in caches.iter().rev() {
        for entry in cache.list().map_err(|err| err.to_string())? {
            let key = (entry.network.clone(), entry.container_id.clone(), entry.ifname.clone());
            entries.insert(key, (cache, entry));
        }
    }
    let mut found = Vec::new();
    for network in tree.networks.iter().filter(is_chosen) {
        for pod in network.places.iter().flat_map(|place| &place.pods) {
            let key = (network.name.clone(), pod.container_id.clone(), pod.ifname.clone());
            found.push(attached(network, pod, entries.get(&key)));
        }
    }
    found.sort_by_cached_key(|of| (natural(&of.pod), of.network.clone(), of.ifname.clone()));
    Ok(found)
}

/// Combines what the tree and the cache entry, if there is one, know about an attachment.
fn attached(network: &Network, pod: &Pod, entry: Option<&(&Cache, Entry)>) -> AttachmentRow {
    AttachmentRow {
        pod: pod.title().to_owned(),
        network: network.name.clone(),
        container_id: pod.container_id.clone(),
        ifname: pod.ifname.clone(),
        netns: pod.netns.clone(),
        host_link: pod.link.as_ref().map(|link| link.name.clone()),
        addresses: pod.addresses.clone(),
        mac: pod.interface.as_ref().and_then(|interface| interface.mac.clone()),
        ports: entry
            .map(|(_, entry)| cnimble_liveness::cache_entries::published_ports(entry))
            .unwrap_or_default(),
        created: entry.and_then(|(cache, entry)| created(cache, entry.key())),
        state: pod.state,
        problem: pod.problem.clone(),
    }
}

/// Returns when the ADD succeeded, in seconds since 1970. This is when the cache's file was written, which happens
/// once. It returns `None` if the file can't be read.
fn created(cache: &Cache, key: Key<'_>) -> Option<u64> {
    let written = std::fs::metadata(cache.path(key)).ok()?.modified().ok()?;
    Some(written.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

fn ports_as_json<S: serde::Serializer>(ports: &[PortMapping], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ports.iter().map(port_as_json))
}

fn port_as_json(of: &PortMapping) -> Value {
    json!({"hostIP": of.host_ip, "hostPort": of.host_port, "containerPort": of.container_port, "protocol": of.protocol})
}

/// Returns the text, or a dash if it is missing or empty.
fn or_dash(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

impl AttachmentRow {
    fn line(&self, is_wide: bool) -> Vec<String> {
        let mut cells = vec![
            shortened(&self.pod),
            self.network.clone(),
            self.ifname.clone(),
            or_dash(Some(&joined(&self.addresses))),
            or_dash(self.mac.as_deref()),
            or_dash(Some(&self.ports.iter().map(port_in_words).collect::<Vec<_>>().join(" "))),
            self.created.map_or_else(|| "-".to_owned(), age_of),
            self.state.word().to_owned(),
        ];
        if is_wide {
            cells.push(or_dash(Some(&self.container_id)));
            cells.push(or_dash(self.netns.as_deref()));
            cells.push(or_dash(self.host_link.as_deref()));
            cells.push(or_dash(self.problem.as_deref()));
        }
        cells
    }
}

impl AttachmentRow {
    /// Returns one line for the description of a network.
    pub(super) fn in_words(&self) -> String {
        format!("{} {} {} {}", shortened(&self.pod), self.ifname, joined(&self.addresses), self.state.word())
    }
}

/// Returns the first twelve digits of a container ID of 64, which every verb accepts. Other names stay whole.
fn shortened(pod: &str) -> String {
    let is_id = pod.len() == 64 && pod.bytes().all(|byte| byte.is_ascii_hexdigit());
    pod.get(..12).filter(|_| is_id).unwrap_or(pod).to_owned()
}

fn port_in_words(port: &PortMapping) -> String {
    let address = match port.host_ip {
        Some(ip) if ip.is_ipv6() => format!("[{ip}]:"),
        Some(ip) => format!("{ip}:"),
        None => String::new(),
    };
    format!("{address}{}->{}/{}", port.host_port, port.container_port, port.protocol)
}

impl View for Listing {
    fn text(&self, paint: Paint) -> String {
        let lines: Vec<Vec<String>> = self.attachments.iter().map(|of| of.line(self.is_wide)).collect();
        let mut headings = vec!["POD", "NETWORK", "IF", "ADDRESSES", "MAC", "PORTS", "AGE", "STATE"];
        if self.is_wide {
            headings.extend(["CONTAINER", "NETNS", "HOST", "PROBLEM"]);
        }
        let text = table(&headings, &lines, paint);
        match (self.has_headings, text.split_once('\n')) {
            (false, Some((_, rest))) => rest.to_owned(),
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ids_are_short() {
        let mut port: PortMapping =
            serde_json::from_value(json!({"hostPort": 8080, "containerPort": 80})).unwrap();
        assert_eq!(port_in_words(&port), "8080->80/tcp");
        port.host_ip = Some("127.0.0.1".parse().unwrap());
        assert_eq!(port_in_words(&port), "127.0.0.1:8080->80/tcp");
        port.host_ip = Some("::1".parse().unwrap());
        assert_eq!(port_in_words(&port), "[::1]:8080->80/tcp");
        assert_eq!(shortened(&"ab".repeat(32)), "abababababab");
        assert_eq!(shortened("shop/web"), "shop/web");
        assert_eq!(shortened(&"x".repeat(64)), "x".repeat(64));
    }
}
