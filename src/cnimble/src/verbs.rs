//! `add`, `del` and `check`: the verbs for one attachment.

use std::fmt::Display;

use serde_json::{Value, json};

use cnimble_cni::{CniResult, NetworkList, Version};
use cnimble_runtime::{Attach, ConfError, Entry, Key};

use super::args::Attachment;
use super::interrupt::{finish, interruptible};
use super::report::{Exit, Report, usage};
use super::{Session, network, print, print_json, style, target};

pub(super) async fn add(session: &Session, given: &Attachment) -> Result<(), Report> {
    let attach = target::attach(given)?;
    let what = format!("can't add {} to network {}", attach.ifname, given.network);
    let network = network::load(session, &given.network, &what)?;
    target::must_exist(&attach, &what)?;
    network::warn_of_capabilities(&network, attach.capability_args.keys());
    let known = lookup(session, &network.name, &attach).is_some();
    let added = match interruptible(session.invoker.add(&network, &attach)).await {
        Ok(outcome) => outcome.map_err(|err| Report::of(&what, &err))?,
        Err(exit) => {
            let report = Report::new(exit, &what).row("network", &network.name);
            return Err(match known {
                true => report
                    .row("why", "interrupted; not rolled back, because the attachment existed before")
                    .hint(del_hint(&network, &attach)),
                false => abandon(session, &network, &attach, report).await,
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
        report.hint(del_hint(&network, &attach))
    })
}

fn del_hint(network: &NetworkList, attach: &Attach) -> String {
    format!("cnimble del {} {}", network.name, attach.netns)
}

/// DEL waits until the library has undone the interrupted ADD.
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
            report.hint(del_hint(network, attach))
        }
    }
}

pub(super) async fn del(session: &Session, given: &Attachment) -> Result<(), Report> {
    let mut attach = target::attach(given)?;
    let what = format!("can't delete {} from network {}", attach.ifname, given.network);
    let network = match network::find(session, &given.network) {
        Ok(network) => Ok(network),
        // The cache has the configuration that ADD used.
        Err(err @ ConfError::NoNetwork { .. }) => match lookup(session, &given.network, &attach) {
            Some(entry) => entry.network_list().map_err(|reason| {
                Report::new(Exit::Config, &what)
                    .row("network", &given.network)
                    .row("why", format!("{err}; the copy in the cache can't be used: {reason}"))
            }),
            None => Err(Report::conf(&what, &err)),
        },
        Err(err) => Err(Report::conf(&what, &err)),
    }?;
    if let Some(entry) = lookup(session, &network.name, &attach) {
        recall(&mut attach, given, entry);
    }
    let outcome = interruptible(session.invoker.del(&network, &attach)).await;
    finish(&what, outcome)?;
    session.done(
        &format!("{} of {} is no longer on {}", attach.ifname, attach.container_id, network.name),
        &summary(&network, &attach),
    )
}

pub(super) async fn check(session: &Session, given: &Attachment) -> Result<(), Report> {
    let mut attach = target::attach(given)?;
    let what = format!("can't check {} in network {}", attach.ifname, given.network);
    let network = network::load(session, &given.network, &what)?;
    let what = format!("{} is not as network {} made it", attach.ifname, network.name);
    if let Some(entry) = lookup(session, &network.name, &attach) {
        recall(&mut attach, given, entry);
    }
    if attach.netns.is_empty() {
        return Err(usage("no network namespace was given, and the cache doesn't know it"));
    }
    let outcome = interruptible(session.invoker.check(&network, &attach)).await;
    finish(&what, outcome)?;
    session.done(
        &format!("{} of {} is as {} made it", attach.ifname, attach.container_id, network.name),
        &summary(&network, &attach),
    )
}

/// Restores missing arguments from the values at ADD.
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

fn lookup(session: &Session, network: &str, attach: &Attach) -> Option<Entry> {
    let key = Key { network, container_id: &attach.container_id, ifname: &attach.ifname };
    match session.invoker.cache().get(key) {
        Ok(found) => found.entry(),
        Err(err) => {
            log::warn!("{err}");
            None
        }
    }
}

fn summary(network: &NetworkList, attach: &Attach) -> Value {
    json!({
        "network": network.name,
        "cniVersion": network.version.as_str(),
        "containerID": attach.container_id,
        "ifname": attach.ifname,
        "netns": attach.netns,
    })
}

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
        let gateway = with(" gateway ", ip.gateway);
        let interface = ip.interface.and_then(|index| result.interfaces.get(index as usize));
        let on = interface.map(|of| format!(" on {}", of.name)).unwrap_or_default();
        lines.push(("address", format!("{}{on}{gateway}", ip.address)));
    }
    for route in &result.routes {
        lines.push(("route", format!("{}{}", route.dst, with(" via ", route.gw))));
    }
    if !result.dns.nameservers.is_empty() {
        lines.push(("dns", result.dns.nameservers.join(" ")));
    }
    if network.version < Version::V0_4_0 {
        lines.push(("note", "its version has no CHECK".to_owned()));
    }
    headline + &style::rows(&lines, session.paint)
}

fn with(word: &str, value: Option<impl Display>) -> String {
    value.map(|value| format!("{word}{value}")).unwrap_or_default()
}
