//! `network`: lists, shows and removes networks.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use cnimble_doctor::removal::{Kept, NotRemoved, OtherNetwork, Others};
use cnimble_netlink::{IfPresent, Netlink};
use cnimble_pod::leases::{RangeUsage, usage};
use cnimble_rules::objects::bridge;
use cnimble_runtime::{ConfError, Listing, Network};

use super::args::network::{self as args, NetworkCommand, One, Rm};
use super::ls::{self, AttachmentRow};
use super::output::View;
use super::report::{Exit, Report};
use super::style::{Paint, part, rows};
use super::tree::{self, Notes};
use super::{Session, doctor, interrupt, list};

/// Runs a subcommand of `network`.
pub(super) async fn network(session: &Session, given: &args::Network) -> Result<(), Report> {
    match &given.command {
        NetworkCommand::Ls => list::networks(session),
        NetworkCommand::Inspect(one) => inspect(session, one),
        NetworkCommand::Rm(given) => rm(session, given).await,
    }
}

/// Removes the first network of this name from the listing, and returns it. Later ones of that name stay.
fn take_network(session: &Session, listing: &mut Listing, name: &str, what: &str) -> Result<Network, Report> {
    match listing.networks.iter().position(|network| network.list.name == name) {
        Some(at) => Ok(listing.networks.remove(at)),
        None => Err(match session.conf.load(name) {
            Err(err) => Report::conf(what, &err),
            // It was written in this moment.
            Ok(_) => Report::because(Exit::Config, what, format!("{name} is new")).hint("run it again"),
        }),
    }
}

fn listing(session: &Session, what: &str) -> Result<Listing, Report> {
    session.conf.list().map_err(|err: ConfError| Report::conf(what, &err))
}

/// Shows a network: its file, its bridges, its ranges of addresses and its attachments.
fn inspect(session: &Session, given: &One) -> Result<(), Report> {
    let what = "can't show the network";
    let mut listing = listing(session, what)?;
    let network = take_network(session, &mut listing, &given.network, what)?;
    let hides = listing.networks.into_iter().filter(|other| other.list.name == given.network);
    let hides = hides.map(|other| other.path).collect();
    let failed = |err: String| Report::because(Exit::Files, what, err);
    let ranges = usage(&network.list).map_err(|err| failed(err.to_string()))?;
    let tree = tree::read(session, &Notes::default(), what)?;
    let caches = session.caches();
    let attachments = ls::attachments(&tree, |of| of.name == given.network, &caches).map_err(failed)?;
    let bridges = bridge::configured(&network.list).map(look_at_bridge).collect::<Result<_, _>>();
    let bridges = bridges.map_err(|err: cnimble_netlink::Error| failed(err.to_string()))?;
    session.show(&Shown { network, hides, bridges, ranges, attachments })
}

/// A bridge that a network's configuration names.
#[derive(Serialize)]
struct Bridge {
    name: String,
    /// The link, or `None` if no link has this name, which the first ADD makes.
    link: Option<BridgeLink>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BridgeLink {
    kind: String,
    up: bool,
    mtu: u32,
    mac: Option<String>,
    addresses: Vec<String>,
    /// The link has the mark of the bridges that these plugins make.
    made_by_cnimble: bool,
}

fn look_at_bridge(name: String) -> cnimble_netlink::Result<Bridge> {
    let mut host = Netlink::open()?;
    let Some(link) = host.find_link(&name)? else { return Ok(Bridge { name, link: None }) };
    let addresses = host.addrs(link.index).if_present()?.unwrap_or_default();
    let link = BridgeLink {
        made_by_cnimble: bridge::is_made_here(&link),
        kind: link.kind,
        up: link.up,
        mtu: link.mtu,
        mac: link.mac.map(|mac| mac.to_string()),
        addresses: addresses.iter().map(|address| address.net.to_string()).collect(),
    };
    Ok(Bridge { name, link: Some(link) })
}

/// A network in its file and in the kernel.
struct Shown {
    network: Network,
    /// Later files with a network of this name, which runtimes ignore.
    hides: Vec<PathBuf>,
    bridges: Vec<Bridge>,
    ranges: Vec<RangeUsage>,
    attachments: Vec<AttachmentRow>,
}

fn range_as_json(of: &RangeUsage) -> Value {
    json!({"range": of.range, "used": of.used.to_string(), "free": of.free.to_string()})
}

impl Serialize for Shown {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let list = &self.network.list;
        json!({
            "network": list.name,
            "cniVersion": list.version.as_str(),
            "file": self.network.path,
            "hides": self.hides,
            "plugins": list.plugins.iter().map(|plugin| &plugin.plugin_type).collect::<Vec<_>>(),
            "configuration": list.document,
            "bridges": self.bridges,
            "ranges": self.ranges.iter().map(range_as_json).collect::<Vec<_>>(),
            "attachments": self.attachments,
        })
        .serialize(serializer)
    }
}

impl View for Shown {
    fn text(&self, paint: Paint) -> String {
        let list = &self.network.list;
        let plugins: Vec<&str> = list.plugins.iter().map(|plugin| plugin.plugin_type.as_str()).collect();
        let mut lines = vec![("file", self.network.path.display().to_string())];
        lines.extend(self.hides.iter().map(|path| ("hides", path.display().to_string())));
        lines.push(("version", format!("CNI {}", list.version)));
        lines.push(("plugins", plugins.join(" ")));
        lines.extend(self.bridges.iter().map(|of| ("bridge", of.in_words())));
        lines.extend(
            self.ranges
                .iter()
                .map(|of| ("range", format!("{}: {} used, {} free", of.range, of.used, of.free))),
        );
        lines.extend(self.attachments.iter().map(|of| ("pod", of.in_words())));
        if self.attachments.is_empty() {
            lines.push(("pod", "none".to_owned()));
        }
        part(&list.name, &lines, paint)
    }
}

impl Bridge {
    fn in_words(&self) -> String {
        let name = &self.name;
        let Some(link) = &self.link else { return format!("{name}, which the first add makes") };
        let state = if link.up { "up" } else { "down" };
        let maker = if link.made_by_cnimble { "" } else { ", not made by cnimble" };
        format!("{name} {state} {}{maker}", link.addresses.join(" "))
    }
}

/// Removes a network: the remains of dead attachments, its bridges, its leases and its file. It fails while a pod uses
/// the network.
async fn rm(session: &Session, given: &Rm) -> Result<(), Report> {
    let what = format!("network {} is not removed", given.one.network);
    let mut listing = listing(session, &what)?;
    let network = take_network(session, &mut listing, &given.one.network, &what)?;
    let mut doctor = doctor::new(session, &[], given.grace);
    doctor.evidence.data_dirs.extend(cnimble_liveness::data_dirs(&network.list));
    let others = load_others(session, listing, &given.one.network, &what)?;
    let outcome =
        interrupt::interruptible(doctor.remove_network(&network.list, &network.path, &others)).await;
    let outcome = outcome.map_err(|exit| {
        Report::because(exit, &what, "interrupted; its file is still there").hint("run it again")
    })?;
    let removal = outcome.map_err(|err| report_refusal(&what, &given.one.network, err))?;
    let hidden = others.networks.into_iter().find(|other| other.list.name == given.one.network);
    session.show(&Removed {
        network: given.one.network.clone(),
        removed: removal.removed,
        kept: removal.kept,
        next: hidden.map(|other| other.place),
    })
}

/// Returns the report for a network that could not be removed.
fn report_refusal(what: &str, network: &str, err: NotRemoved) -> Report {
    match err {
        NotRemoved::InUse(users) => {
            let report =
                users.into_iter().fold(Report::new(Exit::Left, what), |report, of| report.row("in use", of));
            report.hint(format!(
                "`cnimble ls {network}` lists its pods; detach them first. Nothing was changed"
            ))
        }
        NotRemoved::Failed { what: part, error } => Report::new(Exit::Left, what)
            .row("part", part)
            .row("why", error.to_string())
            .hint("its file is still there: run it again"),
        NotRemoved::Unseen(error) => Report::because(Exit::Files, what, error),
    }
}

/// Returns the networks that may share something with the removed one: those of the other files, and the recorded ones
/// of other names. A record of a configuration that can't be used is skipped.
fn load_others(session: &Session, listing: Listing, name: &str, what: &str) -> Result<Others, Report> {
    let unread = listing.problems.iter().map(ToString::to_string).collect();
    let mut networks = Vec::new();
    for network in listing.networks {
        networks.push(OtherNetwork { place: network.path.display().to_string(), list: network.list });
    }
    for cache in session.caches() {
        let entries = cache.list().map_err(|err| Report::because(Exit::Files, what, err))?;
        for entry in entries.iter().filter(|entry| entry.network != name) {
            if let Ok(list) = entry.network_list() {
                let place = format!("the record of container {}", entry.container_id);
                networks.push(OtherNetwork { place, list });
            }
        }
    }
    Ok(Others { networks, unread })
}

/// The outcome of `network rm`.
struct Removed {
    network: String,
    removed: Vec<String>,
    kept: Vec<Kept>,
    /// The file with a network of this name that runtimes use from now on.
    next: Option<String>,
}

impl Serialize for Removed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kept = self.kept.iter().map(|of| json!({"what": of.what, "why": of.why}));
        json!({
            "network": self.network,
            "removed": self.removed,
            "kept": kept.collect::<Vec<_>>(),
            "nextFile": self.next,
        })
        .serialize(serializer)
    }
}

impl View for Removed {
    fn text(&self, paint: Paint) -> String {
        let mut lines: Vec<(&'static str, String)> =
            self.removed.iter().map(|what| ("removed", what.clone())).collect();
        lines.extend(self.kept.iter().map(|of| ("kept", format!("{}: {}", of.what, of.why))));
        lines.extend(
            self.next.iter().map(|file| ("note", format!("{file} has the network of this name now"))),
        );
        format!("{} {} is removed\n{}", paint.good("ok"), self.network, rows(&lines, paint))
    }
}
