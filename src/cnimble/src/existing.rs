//! The attachment that `del` and `check` are about: its record, the network's file, and what a record says of an
//! attachment that was not named.

use std::path::PathBuf;

use cnimble_cni::{self as cni, NetworkList};
use cnimble_netlink::NetNs;
use cnimble_runtime::{Attach, ConfError, Entry, Lookup};

use super::args::{self, Attachment};
use super::report::{Exit, Report};
use super::{Session, network};

/// What the cache has of an ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RecordState {
    Usable,
    /// It is damaged, can't be read, or has no usable configuration, for the given reason.
    Unusable(String),
    Missing,
}

/// An attachment to delete or to check, with its configuration.
pub(super) struct Existing {
    /// The network of the file, or of the record if there is no file.
    pub(super) given: NetworkList,
    /// The configuration that the library uses for this attachment.
    pub(super) network: NetworkList,
    pub(super) attach: Attach,
    /// What the cache has of its ADD.
    pub(super) record: RecordState,
    /// The record, if it can be read.
    pub(super) entry: Option<Entry>,
    /// The network has a usable file.
    pub(super) has_file: bool,
}

/// Returns the attachment with the configuration to use. If the network's file is gone, the record of the ADD has a
/// copy, except with `--from-file`. Arguments that are not given are those of the recorded ADD.
///
/// # Errors
/// Fails if there is neither a usable file nor a usable record.
pub(super) fn find_attachment(
    session: &Session,
    arguments: &args::Existing,
    mut attach: Attach,
    what: &str,
    verb: &str,
) -> Result<Existing, Report> {
    let name = &arguments.attachment.network;
    let file = network::load_network(session, name);
    let (record, entry) = match &file {
        Ok(file) => look_up_record(session, &file.name, &attach),
        // The path of a file doesn't contain the network's name.
        Err(_) if cni::names::is_identifier(name) => look_up_record(session, name, &attach),
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
    if let Some(entry) = &entry {
        refuse_other_namespace(entry, arguments, &attach, what)?;
        recall(&mut attach, &arguments.attachment, entry);
    }
    let network = session.invoker.configuration_of(&given, &attach);
    Ok(Existing { given, network, attach, record, entry, has_file })
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
    if let RecordState::Unusable(reason) = record {
        return report.row("record", format!("that of {ifname} of {id} in {dir} can't be used: {reason}"));
    }
    let why = format!(
        "there is none of {ifname} of {id} in {dir}: it is removed already, a name is misspelt, or another cache has it"
    );
    let report = report.row("record", why);
    let other = other_record(session, name, attach, true);
    other.into_iter().fold(report, |report, other| report.hint(other.suggest_command(session, verb)))
}

/// Sets the arguments that are not given to those of the recorded ADD.
fn recall(attach: &mut Attach, given: &Attachment, entry: &Entry) {
    if given.netns.is_none() {
        attach.netns = entry.namespace().unwrap_or_default().to_owned();
    }
    if given.args.is_none() {
        attach.args.clone_from(&entry.args);
    }
    if given.cap_args.is_none() {
        attach.capability_args.clone_from(&entry.capability_args);
    }
}

/// Another attachment of the same namespace. The user has probably forgotten the container ID or the interface that was
/// given to `add`.
pub(super) struct SimilarAttachment {
    entry: Entry,
    netns: String,
}

impl SimilarAttachment {
    /// Returns a sentence with the command that runs `verb` for that attachment.
    pub(super) fn suggest_command(&self, session: &Session, verb: &str) -> String {
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
pub(super) fn other_record(
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

/// Returns the state of the attachment's record, and the record if it can be read. It logs nothing, because the
/// library's DEL and CHECK tell why they can't use a record.
pub(super) fn look_up_record(
    session: &Session,
    network: &str,
    attach: &Attach,
) -> (RecordState, Option<Entry>) {
    match session.invoker.cache().get(attach.key(network)) {
        Ok(Lookup::Entry(entry)) => match entry.network_list() {
            Ok(_) => (RecordState::Usable, Some(*entry)),
            Err(reason) => (RecordState::Unusable(reason.to_string()), Some(*entry)),
        },
        Ok(Lookup::Corrupt(why)) => (RecordState::Unusable(why), None),
        Ok(_) => (RecordState::Missing, None),
        Err(err) => (RecordState::Unusable(err.to_string()), None),
    }
}
