//! `add`, `del` and `check`: the verbs for one attachment.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde_json::{Value, json};

use cnimble_cni::{self as cni, CniResult, Code, NetworkList, Version};
use cnimble_netlink::NetNs;
use cnimble_runtime::{Attach, ConfError, Entry, Error, Key, Lookup, PluginError};

use super::args::{self, Attachment};
use super::interrupt::{finish, interruptible};
use super::output::print_note;
use super::report::{Exit, Report, usage};
use super::{Session, network, print, print_json, style, target};

/// Adds an attachment, and prints the result. A signal undoes the ADD, unless the attachment was on record before.
pub(super) async fn add(session: &Session, given: &Attachment) -> Result<(), Report> {
    let attach = target::attach(given)?;
    let what = format!("can't add {} to network {}", attach.ifname, given.network);
    let network = network::load(session, &given.network, &what)?;
    target::must_exist(&attach, &what)?;
    network::warn_of_capabilities(&network, attach.capability_args.keys());
    let (_, known) = lookup(session, &network.name, &attach);
    let added = match interruptible(session.invoker.add(&network, &attach)).await {
        Ok(outcome) => outcome
            .map_err(|err| Report::of_attachment(&what, &err, &del_hint(session, &network, &attach)))?,
        Err(exit) => {
            let report = Report::new(exit, &what).row("network", &network.name);
            return Err(if known.is_some() {
                report
                    .row("why", "interrupted; not rolled back, because the attachment existed before")
                    .hint(del_hint(session, &network, &attach))
            } else {
                abandon(session, &network, &attach, report).await
            });
        }
    };
    if session.human() {
        print(&describe(session, &network, &attach, &added.result))
    } else {
        print_json(&added.document)
    }
    .map_err(|report| {
        let report = report.row("note", format!("{} is in network {}", attach.ifname, network.name));
        report.hint(del_hint(session, &network, &attach))
    })
}

/// Returns the command that deletes this attachment. It names the ID unless that is the default one of the namespace,
/// which the command would look for otherwise.
fn del_hint(session: &Session, network: &NetworkList, attach: &Attach) -> String {
    let mut command = format!("cnimble del {} {}", network.name, attach.netns);
    if attach.container_id != target::container_id(&attach.netns) {
        command += &format!(" --container-id {}", attach.container_id);
    }
    if attach.ifname != "eth0" {
        command += &format!(" -i {}", attach.ifname);
    }
    command + &session.directories
}

/// Returns the hint to repeat the ADD.
fn add_again(session: &Session, network: &NetworkList, attach: &Attach) -> String {
    format!("`{}`, and add it again", del_hint(session, network, attach))
}

/// Deletes the attachment of an interrupted ADD, and completes the report. The DEL waits until the library has undone
/// the ADD.
async fn abandon(session: &Session, network: &NetworkList, attach: &Attach, report: Report) -> Report {
    // A second signal interrupts this, too.
    match interruptible(session.invoker.del(network, attach)).await {
        Ok(Ok(())) => report.row("why", "interrupted; all changes are undone"),
        outcome => {
            let report = report.row("why", "interrupted, and some changes could not be undone");
            let report = match outcome {
                Ok(Err(err)) => report.row("then", err.to_string()),
                _ => report,
            };
            report.hint(del_hint(session, network, attach))
        }
    }
}

/// What the cache has of an ADD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordState {
    Usable,
    /// It is damaged, can't be read, or has no usable configuration. A warning has told why.
    Unusable,
    Missing,
}

/// An attachment to delete or to check, with its configuration.
struct Existing {
    /// The network of the file, or of the record if there is no file.
    given: NetworkList,
    /// The configuration that the library uses for this attachment.
    network: NetworkList,
    attach: Attach,
    /// What the cache has of its ADD.
    record: RecordState,
    /// The network has a usable file.
    has_file: bool,
}

/// Deletes an attachment. Without a record of it DEL runs by the network's file, and the message says so.
pub(super) async fn del(session: &Session, given: &args::Existing) -> Result<(), Report> {
    let session = &by_choice(session, given.from_file);
    let attach = target::attach(&given.attachment)?;
    let what = format!("can't delete {} from network {}", attach.ifname, given.attachment.network);
    let from_file = given.from_file;
    let Existing { given, network, attach, record, has_file } =
        find_attachment(session, given, attach, &what, "del")?;
    let outcome = interruptible(session.invoker.del(&given, &attach)).await;
    if let Ok(Err(err @ Error::Plugins(failures))) = &outcome {
        let is_missing = failures.iter().any(|of| matches!(of.cause, PluginError::Missing { .. }));
        if record == RecordState::Usable && has_file && !from_file && is_missing {
            let report = Report::from_error(session, &what, err);
            return Err(report.or_hint("go by the network's file, which may name other plugins: --from-file"));
        }
    }
    finish(session, &what, outcome)?;
    let Attach { ifname, container_id, netns, .. } = &attach;
    let name = &network.name;
    let mut words = match record {
        RecordState::Usable if from_file => format!(
            "DEL of {ifname} of {container_id} ran by the file of {name}; what a plugin made that the file doesn't \
             name stays"
        ),
        RecordState::Usable => format!("{ifname} of {container_id} is removed from {name}"),
        RecordState::Unusable => format!(
            "the configuration in the record of {ifname} of {container_id} on {name} can't be used, or the record as a \
             whole; DEL ran by the network's file"
        ),
        RecordState::Missing => format!(
            "there is no record of {ifname} of {container_id} on {name} in {}: nothing was attached under this ID, it \
             is removed already, or another cache has the record; DEL ran by the network's file",
            session.invoker.cache().dir().display()
        ),
    };
    if record != RecordState::Usable {
        if is_missing(netns) {
            words += &format!("; there is no namespace {netns}");
        }
        // A runtime's repeated DEL of one network of several is no mistake.
        if let Some(other) = other_record(session, &network.name, &attach, session.human()) {
            print_note(&other.suggest_command(session, "del"));
        }
    }
    session.done(&words, &summary(&network, &attach, "recorded", record == RecordState::Usable))
}

/// Checks that an attachment is as ADD has left it. With `disableCheck` no plugin is asked, and the message says so.
pub(super) async fn check(session: &Session, given: &args::Existing) -> Result<(), Report> {
    let session = &by_choice(session, given.from_file);
    let attach = target::attach(&given.attachment)?;
    let what = format!("can't check {} in network {}", attach.ifname, given.attachment.network);
    let from_file = given.from_file;
    let Existing { given, network, attach, record, .. } =
        find_attachment(session, given, attach, &what, "check")?;
    if attach.netns.is_empty() {
        return Err(usage("no network namespace was given, and the cache doesn't know it"));
    }
    let outcome = interruptible(session.invoker.check(&given, &attach)).await;
    match &outcome {
        Ok(Err(err @ Error::Plugins(failures))) if is_difference(&failures.first.cause) => {
            let what = if from_file {
                format!("{} differs from the file of network {}", attach.ifname, network.name)
            } else {
                format!("{} is not as network {} made it", attach.ifname, network.name)
            };
            return Err(Report::from_error(session, what, err).hint(add_again(session, &network, &attach)));
        }
        Ok(Err(err @ Error::NoResult { .. })) if record == RecordState::Missing => {
            let report = Report::from_error(session, &what, err);
            let other = other_record(session, &network.name, &attach, true);
            return Err(other
                .into_iter()
                .fold(report, |report, other| report.hint(other.suggest_command(session, "check"))));
        }
        _ => finish(session, &what, outcome)?,
    }
    let asked = !network.disable_check;
    let words = if asked {
        format!(
            "no plugin of {} found a difference at {} of {}",
            network.name, attach.ifname, attach.container_id
        )
    } else {
        format!("{} says disableCheck: its plugins were not asked", network.name)
    };
    session.done(&words, &summary(&network, &attach, "asked", asked))
}

/// Returns the session, whose invoker prefers the network's file to the record if `from_file` is set.
fn by_choice(session: &Session, from_file: bool) -> Session {
    let invoker = session.invoker.clone();
    session.with_invoker(if from_file { invoker.with_given_configuration() } else { invoker })
}

/// Returns the attachment with the configuration to use. If the network's file is gone, the record of the ADD has a
/// copy, except with `--from-file`. Arguments that are not given are those of the recorded ADD.
///
/// # Errors
/// Fails if there is neither a usable file nor a usable record.
fn find_attachment(
    session: &Session,
    arguments: &args::Existing,
    mut attach: Attach,
    what: &str,
    verb: &str,
) -> Result<Existing, Report> {
    let name = &arguments.attachment.network;
    let file = network::load_network(session, name);
    let (record, entry) = match &file {
        Ok(file) => lookup(session, &file.name, &attach),
        // The path of a file doesn't contain the network's name.
        Err(_) if cni::names::is_identifier(name) => lookup(session, name, &attach),
        Err(_) => (RecordState::Missing, None),
    };
    let has_file = file.is_ok();
    let given = match (file, &entry) {
        (Ok(file), _) => file,
        (Err(err), Some(entry)) if !arguments.from_file => entry.network_list().map_err(|reason| {
            Report::conf(what, &err).row("record", format!("its configuration can't be used: {reason}"))
        })?,
        (Err(err), Some(_)) => return Err(Report::conf(what, &err)),
        (Err(err), None) => {
            return Err(unknown(session, &attach, &Unknown { name, record, what, verb, err }));
        }
    };
    if let Some(entry) = entry {
        refuse_other_namespace(&entry, arguments, &attach, what)?;
        recall(&mut attach, &arguments.attachment, entry);
    }
    let network = session.invoker.configuration_of(&given, &attach);
    Ok(Existing { given, network, attach, record, has_file })
}

/// Fails if the given namespace is another one than that of the recorded ADD. The plugins would look for the pod's
/// interface in the wrong place, and DEL would end the record without having removed it. If one of both paths leads to
/// no namespace, nothing is known, and the call goes on. With `--from-file` the record does not count.
fn refuse_other_namespace(
    entry: &Entry,
    arguments: &args::Existing,
    attach: &Attach,
    what: &str,
) -> Result<(), Report> {
    let is_given = arguments.attachment.netns.is_some() && !arguments.from_file;
    let Some(recorded) = entry.namespace().filter(|_| is_given) else { return Ok(()) };
    let (Ok(added), Ok(given)) = (NetNs::open(recorded.as_ref()), NetNs::open(attach.netns.as_ref())) else {
        return Ok(());
    };
    if added.same_as(&given).unwrap_or(true) {
        return Ok(());
    }
    let Attach { ifname, container_id, netns, .. } = attach;
    let why = format!("by its record {ifname} of {container_id} is in {recorded}, and not in {netns}");
    Err(Report::because(Exit::Usage, what, why)
        .hint("leave the namespace out, or give the one on record; --from-file takes the one that is given"))
}

/// A call for an attachment with neither a usable file of the network nor a usable record.
struct Unknown<'a> {
    /// The network, as the caller has named it.
    name: &'a str,
    record: RecordState,
    /// The headline of the report.
    what: &'a str,
    /// The verb that a hint names.
    verb: &'a str,
    /// Why the network has no usable file.
    err: ConfError,
}

fn unknown(session: &Session, attach: &Attach, call: &Unknown<'_>) -> Report {
    let Unknown { name, record, what, verb, err } = call;
    let dir = session.invoker.cache().dir().display();
    let (ifname, id) = (&attach.ifname, &attach.container_id);
    let report = Report::conf(*what, err);
    if name.contains('/') {
        return report
            .or_hint("name the network instead: where its file is gone, the record of the ADD counts");
    }
    let why = if *record == RecordState::Unusable {
        format!("that of {ifname} of {id} in {dir} can't be used")
    } else {
        format!(
            "there is none of {ifname} of {id} in {dir}: it is removed already, a name is misspelt, or another cache \
             has it"
        )
    };
    let report = report.row("record", why);
    let other = other_record(session, name, attach, true);
    other.into_iter().fold(report, |report, other| report.hint(other.suggest_command(session, verb)))
}

/// Whether the plugin says that the attachment differs from the result of ADD. By other codes a plugin of another
/// maker may mean the same, or that it could not look.
fn is_difference(cause: &PluginError) -> bool {
    matches!(cause, PluginError::Refused { error, .. } if error.code == Code::CHECK_FAILED)
}

/// Sets the arguments that are not given to those of the recorded ADD.
fn recall(attach: &mut Attach, given: &Attachment, entry: Entry) {
    if given.netns.is_none() {
        attach.netns = entry.namespace().unwrap_or_default().to_owned();
    }
    if given.args.is_none() {
        attach.args = entry.args;
    }
    if given.cap_args.is_none() {
        attach.capability_args = entry.capability_args;
    }
}

/// Another attachment of the same namespace. The user has probably forgotten the container ID or the interface that was
/// given to `add`.
struct SimilarAttachment {
    entry: Entry,
    netns: String,
}

impl SimilarAttachment {
    /// Returns a sentence with the command that runs `verb` for that attachment.
    fn suggest_command(&self, session: &Session, verb: &str) -> String {
        let SimilarAttachment { entry, netns } = self;
        let (network, id, ifname) = (&entry.network, &entry.container_id, &entry.ifname);
        let option = if ifname == "eth0" { String::new() } else { format!(" -i {ifname}") };
        format!(
            "a record names this namespace with network {network}, ID {id} and interface {ifname}: \
             use `cnimble {verb} {network} {netns} --container-id {id}{option}{}`",
            session.directories
        )
    }
}

/// Returns the record of another attachment of this namespace, preferably one of this network. Those of other networks
/// count only if `anywhere` is set.
fn other_record(
    session: &Session,
    network: &str,
    attach: &Attach,
    anywhere: bool,
) -> Option<SimilarAttachment> {
    let netns = Some(attach.netns.clone()).filter(|path| !path.is_empty())?;
    let wanted = real(&netns);
    let mut entries = session.invoker.cache().list().unwrap_or_default();
    entries.retain(|of| of.ifname != "lo" && of.namespace().is_some_and(|path| real(path) == wanted));
    entries.sort_by_key(|of| of.network != network);
    let entry = entries.into_iter().find(|of| anywhere || of.network == network)?;
    Some(SimilarAttachment { entry, netns })
}

/// Returns the path without links, or as it is if the file is not found.
fn real(path: &str) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

/// Returns whether there is surely no such file. It returns false if that can't be determined.
fn is_missing(path: &str) -> bool {
    !path.is_empty() && std::fs::metadata(path).is_err_and(|err| err.kind() == ErrorKind::NotFound)
}

/// Returns the cache entry of the attachment, if it is usable. A failure to read it is logged.
fn lookup(session: &Session, network: &str, attach: &Attach) -> (RecordState, Option<Entry>) {
    let key = Key { network, container_id: &attach.container_id, ifname: &attach.ifname };
    match session.invoker.cache().get(key) {
        Ok(Lookup::Entry(entry)) if entry.network_list().is_ok() => (RecordState::Usable, Some(*entry)),
        Ok(Lookup::Entry(entry)) => (RecordState::Unusable, Some(*entry)),
        Ok(Lookup::Corrupt(why)) => {
            log::warn!("the record of {} of {} is damaged: {why}", attach.ifname, attach.container_id);
            (RecordState::Unusable, None)
        }
        Ok(_) => (RecordState::Missing, None),
        Err(err) => {
            log::warn!("{err}");
            (RecordState::Unusable, None)
        }
    }
}

/// Returns the JSON of a verb, with `key` for what only this verb has.
fn summary(network: &NetworkList, attach: &Attach, key: &str, value: bool) -> Value {
    json!({
        (key): value,
        "network": network.name,
        "cniVersion": network.version.as_str(),
        "containerID": attach.container_id,
        "ifname": attach.ifname,
        "netns": attach.netns,
    })
}

/// Returns the result of an ADD as text.
fn describe(session: &Session, network: &NetworkList, attach: &Attach, result: &CniResult) -> String {
    let headline = format!(
        "{} {} is on {}\n",
        session.paint.good("ok"),
        attach.netns,
        session.paint.bold(&network.name)
    );
    let mut lines: Vec<(&'static str, String)> = vec![("container", attach.container_id.clone())];
    for interface in &result.interfaces {
        let place = match interface.sandbox.as_str() {
            "" => "on the host",
            _ => "in the namespace",
        };
        let mtu = interface.mtu.map(|mtu| format!(" mtu {mtu}")).unwrap_or_default();
        lines.push(("interface", format!("{} {}{mtu} {place}", interface.name, interface.mac)));
    }
    for ip in &result.ips {
        let gateway = prefix_value(" gateway ", ip.gateway);
        let interface = ip.interface.and_then(|index| result.interfaces.get(index as usize));
        let on = interface.map(|of| format!(" on {}", of.name)).unwrap_or_default();
        lines.push(("address", format!("{}{on}{gateway}", ip.address)));
    }
    for route in &result.routes {
        lines.push(("route", format!("{}{}", route.dst, prefix_value(" via ", route.gw))));
    }
    if !result.dns.nameservers.is_empty() {
        lines.push(("dns", result.dns.nameservers.join(" ")));
    }
    if network.version < Version::V0_4_0 {
        lines.push(("note", "its version has no CHECK".to_owned()));
    }
    headline + &style::rows(&lines, session.paint)
}

/// Returns the value after the word, or nothing if there is none.
fn prefix_value(word: &str, value: Option<impl Display>) -> String {
    value.map(|value| format!("{word}{value}")).unwrap_or_default()
}
