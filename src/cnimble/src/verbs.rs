//! `add`, `del` and `check`: the verbs for one attachment.

use std::fmt::Display;
use std::io::ErrorKind;

use serde_json::{Value, json};

use cnimble_cni::{CniResult, Code, NetworkList, Version};
use cnimble_runtime::{Attach, Entry, Error, Failure, Lookup, PluginError};

use super::args::{self, Attachment};
use super::existing::{Existing, RecordState, find_attachment, look_up_record, other_record};
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
    let (_, record) = look_up_record(session, &network.name, &attach);
    // A record without a result is of an ADD that did not end. The library rolls back after such a record, too.
    let existed_before = record.is_some_and(|record| record.result.is_some());
    let added = match interruptible(session.invoker.add(&network, &attach)).await {
        Ok(outcome) => outcome.map_err(|err| {
            Report::of_attachment(session, &what, &err, &del_hint(session, &network, &attach))
        })?,
        Err(exit) => {
            let report = Report::new(exit, &what).row("network", &network.name);
            return Err(if existed_before {
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

/// Deletes an attachment. Without a record of it DEL runs by the network's file, and the message says so.
pub(super) async fn del(session: &Session, given: &args::Existing) -> Result<(), Report> {
    let session = &by_choice(session, given.from_file);
    let attach = target::attach(&given.attachment)?;
    let what = format!("can't delete {} from network {}", attach.ifname, given.attachment.network);
    let from_file = given.from_file;
    let Existing { given, network, attach, record, entry, has_file } =
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
    if record != RecordState::Missing {
        verify_record_is_gone(session, &network, &attach, entry.as_ref())?;
    }
    let Attach { ifname, container_id, netns, .. } = &attach;
    let name = &network.name;
    let mut words = match &record {
        RecordState::Usable if from_file => format!(
            "DEL of {ifname} of {container_id} ran by the file of {name}; what a plugin made that the file doesn't \
             name stays"
        ),
        RecordState::Usable => {
            format!("DEL of {ifname} of {container_id} on {name} succeeded, by the record of its ADD")
        }
        RecordState::Unusable(_) => format!(
            "the record of {ifname} of {container_id} on {name}, or the configuration in it, could not be used; DEL ran \
             by the network's file"
        ),
        RecordState::Missing => format!(
            "there is no record of {ifname} of {container_id} on {name} in {}: nothing was attached under this ID, it \
             is removed already, or another cache has the record; DEL ran by the network's file",
            session.invoker.cache().dir().display()
        ),
    };
    if record != RecordState::Usable && is_missing(netns) {
        words += &format!("; there is no namespace {netns}");
    }
    // A runtime's repeated DEL of one network of several is no mistake.
    if record == RecordState::Missing
        && let Some(other) = other_record(session, &network.name, &attach, session.human())
    {
        print_note(&other.suggest_command(session, "del"));
    }
    session.done(&words, &summary(&network, &attach, "recorded", record == RecordState::Usable))
}

/// Fails if the cache still has the record of an attachment whose DEL has succeeded. The library only warns, because a
/// runtime can do nothing about it. A record that stays is evidence of a living attachment, and the next ADD is not
/// rolled back because of it. `deleted` is the record as it was read before DEL. Another one is of an ADD that has come
/// since.
fn verify_record_is_gone(
    session: &Session,
    network: &NetworkList,
    attach: &Attach,
    deleted: Option<&Entry>,
) -> Result<(), Report> {
    let cache = session.invoker.cache();
    let key = attach.key(&network.name);
    let succeeded = format!("DEL of {} in network {} succeeded", attach.ifname, network.name);
    match cache.get(key) {
        Ok(Lookup::Nothing) => return Ok(()),
        Ok(Lookup::Entry(now)) if deleted.is_some_and(|entry| entry != &*now) => {
            print_note("the attachment was added again meanwhile: there is a new record of it");
            return Ok(());
        }
        Ok(_) => {}
        Err(err) => {
            let what = format!("{succeeded}, and whether its record is gone can't be read");
            return Err(Report::because(Exit::Files, what, err));
        }
    }
    let what = format!("{succeeded}, and its record stays");
    Err(Report::new(Exit::Left, what)
        .row("file", cache.path(key).display().to_string())
        .hint("remove the file, or make its directory writable and repeat the command"))
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
        return Err(match record {
            RecordState::Unusable(why) => Report::because(Exit::Files, what, why)
                .hint("name the network namespace, or make the record readable"),
            _ => usage("no network namespace was given, and the cache doesn't know it"),
        });
    }
    let outcome = interruptible(session.invoker.check(&given, &attach)).await;
    match &outcome {
        Ok(Err(err @ Error::Plugins(failures))) if is_difference(&failures.first) => {
            let what = if from_file {
                format!("{} differs from the file of network {}", attach.ifname, network.name)
            } else {
                format!("{} is not as network {} made it", attach.ifname, network.name)
            };
            return Err(Report::from_error(session, what, err).hint(add_again(session, &network, &attach)));
        }
        Ok(Err(err @ Error::NoResult { .. })) if record == RecordState::Missing => {
            let hint = match other_record(session, &network.name, &attach, true) {
                Some(other) => other.suggest_command(session, "check"),
                None => {
                    format!("`cnimble ls {}{}` lists what is attached", network.name, session.directories)
                }
            };
            return Err(Report::from_error(session, &what, err).hint(hint));
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

/// Returns whether the plugin says that the attachment differs from the result of ADD. Codes from 100 on are a plugin's
/// own, so only a plugin of the reference set is known to mean that. By other codes the Go plugins mean the same, or that
/// they could not look.
fn is_difference(failure: &Failure) -> bool {
    cnimble_lint::page(&failure.plugin).is_some()
        && matches!(&failure.cause, PluginError::Refused { error, .. } if error.code == Code::CHECK_FAILED)
}

/// Returns whether there is surely no such file. It returns false if that can't be determined.
fn is_missing(path: &str) -> bool {
    !path.is_empty() && std::fs::metadata(path).is_err_and(|err| err.kind() == ErrorKind::NotFound)
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
