//! `gc`, `status` and `validate`: the verbs for a network.

use std::io::Read;
use std::path::Path;

use serde_json::json;

use cnimble_cni::{self as cni, Attachment, NetworkList, Version};
use cnimble_doctor::Reach;
use cnimble_liveness::{DEFAULT_GRACE, data_dirs};
use cnimble_os::shell;
use cnimble_runtime::{ConfError, load_file};

use super::args::{Gc, Valid};
use super::cri::evidence;
use super::finding::{self, Item, RepairOutcome, count};
use super::interrupt::{self, finish, interruptible};
use super::output::print_note;
use super::report::{Exit, Report, usage};
use super::{Session, doctor, gc_cri, plugin_files};

/// Loads the network of this name, or the file at this path if it has a slash.
pub(super) fn load_network(session: &Session, name: &str) -> Result<NetworkList, ConfError> {
    if name.contains('/') {
        return load_file(Path::new(name));
    }
    session.conf.load(name)
}

/// Fails with a usage error if the name can't be that of a network.
pub(super) fn must_be_name(name: &str) -> Result<(), Report> {
    if cni::names::is_identifier(name) {
        Ok(())
    } else {
        Err(usage(format!("{name}: a network's name has letters, digits, _ . - only")))
    }
}

/// Does the same as [`load_network`], with a report that begins with `what` for the error.
pub(super) fn load(session: &Session, name: &str, what: &str) -> Result<NetworkList, Report> {
    load_network(session, name).map_err(|err| Report::conf(what, &err))
}

/// Logs a warning for each capability argument in `given` that no plugin takes, and for a portmap without ports. ADD
/// would succeed without the requested work.
pub(super) fn warn_of_capabilities<'a>(network: &NetworkList, given: impl Iterator<Item = &'a String>) {
    let name = &network.name;
    for key in given.filter(|key| !network.takes(key)) {
        log::warn!("no plugin of network {name} takes the capability argument {key}: it has no effect");
    }
    if network.plugins.iter().any(cni::list::ListEntry::lacks_ports) {
        log::warn!(
            "plugin portmap of network {name} publishes no ports: its `capabilities` don't have \
             `\"portMappings\": true`"
        );
    }
}

/// Removes the attachments that are not in the list of valid ones, or with `--gone` and `--cri` those that are dead.
/// With neither it deletes nothing, and says so.
pub(super) async fn gc(session: &Session, given: &Gc) -> Result<(), Report> {
    let network = cleanable(session, given)?;
    let what = format!("can't clean up everything in network {}", network.name);
    if given.valid.gone || given.valid.cri.is_some() {
        return gone(session, given, &network, &what).await;
    }
    let valid = valid(&given.valid)?;
    let mut invoker = session.invoker.clone();
    if given.from_file {
        invoker = invoker.with_given_configuration();
    }
    let outcome = interruptible(invoker.gc(&network, valid.as_deref())).await;
    finish(session, &what, outcome)?;
    if network.disable_gc {
        return disabled(session, &network);
    }
    let (name, dir) = (&network.name, session.invoker.cache().dir().display());
    let words = match &valid {
        None => {
            // Without this note a forgotten list looks like a clean network.
            print_note(
                "no list of valid attachments was given, so no DEL ran, and plugins with GC were given no list; \
                 see --gone, --valid and --all",
            );
            format!("{name}: no DEL ran")
        }
        Some(valid) if network.version >= Version::V1_1_0 => format!(
            "{name}: DEL of attachments that aren't valid, by the usable records in {dir}, and GC of the plugins that \
             were found succeeded; valid attachments: {}",
            valid.len()
        ),
        Some(valid) => format!(
            "{name}: DEL of attachments that aren't valid, by the usable records in {dir}, succeeded; valid \
             attachments: {}; version {} has no GC",
            valid.len(),
            network.version
        ),
    };
    let count = valid.as_ref().map(Vec::len);
    session.done(&words, &json!({"network": name, "validAttachments": count, "disableGC": false}))
}

/// Returns the network of the file. If it can't be loaded, it returns the configuration of the first attachment on
/// record, unless `--from-file` is given.
fn cleanable(session: &Session, given: &Gc) -> Result<NetworkList, Report> {
    let name = &given.named.network;
    let err = match load_network(session, name) {
        Ok(network) => return Ok(network),
        Err(err) => err,
    };
    let unreadable = |err| Report::because(Exit::Files, "can't read the records", err);
    let (entries, unread) = session.invoker.cache().list_with_unread().map_err(unreadable)?;
    let mut of_network = entries.iter().filter(|entry| entry.network == *name && !given.from_file);
    match of_network.find_map(|entry| entry.network_list().ok()) {
        Some(recorded) => {
            print_note(&format!(
                "there is no usable file of network {name}; the records of its attachments count"
            ));
            Ok(recorded)
        }
        // A record that can't be read may be of this network.
        None => Err(match unread.into_iter().next() {
            Some(unread) if !given.from_file => unreadable(unread),
            _ => Report::conf("can't clean up", &err),
        }),
    }
}

/// Reports that nothing was done, because the network's `disableGC` forbids it.
fn disabled(session: &Session, network: &NetworkList) -> Result<(), Report> {
    let object = json!({"network": network.name, "validAttachments": null, "disableGC": true});
    session.done(&format!("{} says disableGC; nothing was done", network.name), &object)
}

/// Removes the attachments that are dead, and logs those that a doubt keeps. It doesn't call the plugins' GC, whose
/// list can't include attachments that another runtime adds later.
async fn gone(session: &Session, given: &Gc, network: &NetworkList, what: &str) -> Result<(), Report> {
    if network.disable_gc {
        return disabled(session, network);
    }
    let mut doctor = doctor::new(session, &given.data_dir, given.grace);
    doctor.evidence.data_dirs.extend(data_dirs(network));
    if let Some(socket) = &given.valid.cri {
        doctor.evidence.runtime = Some(evidence::runtime(socket, what)?);
        return gc_cri::gc(session, given, doctor, network).await;
    }
    let diagnosis = doctor.look_at(&network.name);
    let mut diagnosis = diagnosis.map_err(|err| Report::because(Exit::Files, what, err))?;
    let repairs = interruptible(doctor.repair(&diagnosis.findings, Reach::Host)).await;
    let repairs = repairs.map_err(|exit| interrupt::stopped(exit, what))?;
    let items = finding::items(&mut diagnosis, Some(repairs));
    items.iter().filter_map(Item::left_alone_text).for_each(|left| log::warn!("left alone: {left}"));
    let unseen = diagnosis.blind.iter().chain(&diagnosis.unchecked);
    unseen.for_each(|unread| log::warn!("not looked at: {unread}"));
    let mut failed = items.iter().filter_map(Item::failure).peekable();
    if failed.peek().is_some() {
        let report = Report::new(Exit::Left, what).row("network", &network.name);
        let report = failed.fold(report, |report, why| report.row("why", why));
        let mut options = session.directories.clone();
        for dir in &given.data_dir {
            options += &shell::option("--data-dir", dir.as_os_str());
        }
        if given.grace != DEFAULT_GRACE.as_secs() {
            options += &format!(" --grace {}", given.grace);
        }
        return Err(report.hint(format!("`cnimble doctor{options}` names a remedy for each of the node")));
    }
    let (cleaned, left) = (count(&items, RepairOutcome::Repaired), count(&items, RepairOutcome::Left));
    let (name, living) = (&network.name, diagnosis.living);
    let object = json!({
        "network": name, "validAttachments": living, "cleanedUp": cleaned, "leftAlone": left, "disableGC": false,
    });
    session.done(
        &format!(
            "{name}: attachments that live or may live: {living}; cleaned up: {cleaned}; left alone: {left}"
        ),
        &object,
    )
}

/// Returns the list of valid attachments from the flags, or `None` without any. `--all` gives an empty list, so that
/// all are removed.
fn valid(given: &Valid) -> Result<Option<Vec<Attachment>>, Report> {
    if given.all {
        return Ok(Some(Vec::new()));
    }
    if let Some(file) = &given.valid_file {
        return read_list(file).map(Some);
    }
    if given.valid.is_empty() {
        return Ok(None);
    }
    let parsed = given.valid.iter().map(|text| match text.split_once('/') {
        Some((id, ifname)) if !id.is_empty() && !ifname.is_empty() => {
            Ok(Attachment { container_id: id.to_owned(), ifname: ifname.to_owned() })
        }
        _ => Err(usage(format!("--valid {text}: expected CONTAINER_ID/IFNAME"))),
    });
    parsed.collect::<Result<_, _>>().map(Some)
}

/// Reads a list of attachments in JSON.
fn read_list(file: &Path) -> Result<Vec<Attachment>, Report> {
    let bytes = read_input(file).map_err(|err| report_list(file, &err))?;
    serde_json::from_slice(&bytes).map_err(|err| report_list(file, &err))
}

/// Returns the report for a list of attachments that can't be read.
fn report_list(file: &Path, why: &dyn std::fmt::Display) -> Report {
    usage(format!("--valid-file {}: {why}", file.display()))
}

/// Reads a file, or stdin for `-`.
pub(super) fn read_input(file: &Path) -> std::io::Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
}

/// Reports whether the network's plugins can serve ADD. Before CNI 1.1.0 there is no STATUS, so no plugin is asked.
pub(super) async fn status(session: &Session, name: &str) -> Result<(), Report> {
    let network = load(session, name, "can't ask for the status")?;
    let what = format!("network {} is not ready", network.name);
    let outcome = interruptible(session.invoker.status(&network)).await;
    finish(session, &what, outcome)?;
    let asked = network.version >= Version::V1_1_0;
    let words = if asked {
        format!("{} is ready", network.name)
    } else {
        format!("{} is {}, which has no STATUS: its plugins were not asked", network.name, network.version)
    };
    session.done(&words, &json!({"network": network.name, "ready": true, "asked": asked}))
}

/// Reports whether the plugins accept the network's version, and logs what is suspicious about its plugins' files.
pub(super) async fn validate(session: &Session, name: &str) -> Result<(), Report> {
    let network = load(session, name, "the network is not valid")?;
    let what = format!("network {} is not valid", network.name);
    let outcome = interruptible(session.invoker.validate(&network)).await;
    let capabilities = finish(session, &what, outcome)?;
    warn_of_capabilities(&network, std::iter::empty());
    let plugins: Vec<&str> = network.plugins.iter().map(|plugin| plugin.plugin_type.as_str()).collect();
    let files = plugin_files::named(session, plugins.iter().copied()).await;
    for said in files.iter().filter_map(|file| file.misnamed().or_else(|| file.mixed(&files))) {
        log::warn!("{said}");
    }
    let taken = match capabilities.as_slice() {
        [] => "none".to_owned(),
        list => list.join(", "),
    };
    session.done(
        &format!(
            "{} is valid: CNI {}, plugins {}, capabilities {taken}",
            network.name,
            network.version,
            plugins.join(", ")
        ),
        &json!({
            "network": network.name,
            "cniVersion": network.version.as_str(),
            "plugins": plugins,
            "capabilities": capabilities,
        }),
    )
}
