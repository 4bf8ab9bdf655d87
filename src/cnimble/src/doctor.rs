//! `doctor`: finds and repairs orphans.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use cnimble_cni as cni;
use cnimble_cni::list::Injection;
use cnimble_doctor::{Diagnosis, Doctor, Reach};
use cnimble_liveness::{Evidence, data_dirs};
use cnimble_plugin::Plugin;

use super::cri::evidence;
use super::finding::{self, Item, RepairOutcome, count};
use super::interrupt;
use super::output::View;
use super::plugin_files::PluginFiles;
use super::report::{Exit, Report, fail_with, must_be_root};
use super::style::{self, Paint};
use super::{Session, args, etcd, plain};

/// The plugins that can repair an attachment, or are often chained with such plugins.
static PLUGINS: &[&dyn Plugin] = &[
    cnimble_bandwidth::PLUGIN,
    cnimble_bridge::PLUGIN,
    cnimble_firewall::PLUGIN,
    cnimble_host_local::PLUGIN,
    cnimble_ipvlan::PLUGIN,
    cnimble_loopback::PLUGIN,
    cnimble_macvlan::PLUGIN,
    cnimble_portmap::PLUGIN,
    cnimble_ptp::PLUGIN,
    cnimble_static::PLUGIN,
    cnimble_tuning::PLUGIN,
];

/// What the doctor found on this node, as text and as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    healthy: bool,
    /// The number of attachments that live.
    living: usize,
    findings: Vec<Item>,
    /// Why some namespaces or cache entries could not be read, so that most orphans are in doubt.
    not_looked_at: Vec<String>,
    /// The parts of living attachments that were not compared.
    not_checked: Vec<String>,
    warnings: Vec<String>,
    /// Rules of other programs that decide about pods' packets, which are no fault.
    notes: Vec<String>,
    plugins: PluginFiles,
}

/// Looks at this node, and repairs what `--repair` and `--pods` allow.
///
/// The exit status is [`Exit::Left`] if a repair failed, otherwise [`Exit::Found`] unless the node is healthy after the
/// repairs. A finding that was left alone for good counts as unhealthy, one that time clears doesn't.
pub(super) async fn doctor(session: &Session, given: &args::doctor::Doctor) -> Result<(), Report> {
    let what = "can't examine this node";
    must_be_root(what)?;
    let mut doctor = new(session, &given.leases.data_dir, given.grace);
    if let Some(socket) = &given.cri {
        doctor.evidence.runtime = Some(evidence::runtime(socket, what)?);
    }
    let reach = match (given.repair, given.pods) {
        (false, _) => None,
        (true, false) => Some(Reach::Host),
        (true, true) => Some(Reach::Pods),
    };
    let work = async {
        let diagnosis = doctor.examine_node().await?;
        let repairs = match reach {
            Some(reach) => Some(doctor.repair(&diagnosis.findings, reach).await),
            None => None,
        };
        Ok::<_, cni::Error>((diagnosis, repairs))
    };
    let (mut diagnosis, repairs) = interrupt::await_reading(what, work).await?;
    let plugins = PluginFiles::examine_files(session, &doctor).await;
    let findings = finding::items(&mut diagnosis, repairs);
    let found = count(&findings, RepairOutcome::Found) + count(&findings, RepairOutcome::InPod);
    let failed = count(&findings, RepairOutcome::Failed);
    let Diagnosis {
        living,
        blind: not_looked_at,
        unchecked: mut not_checked,
        mut warnings,
        notes,
        stopped,
        ..
    } = diagnosis;
    not_checked.extend(unusable_files(session));
    warnings.extend(store_faults(session).await);
    warnings.extend(stopped.into_iter().map(|of| format!("network {}: {}", of.network, of.text)));
    let lasting = finding::count_lasting(&findings);
    let healthy = found + failed + lasting + warnings.len() == 0 && plugins.is_well();
    session.show(&Health {
        healthy,
        living,
        findings,
        not_looked_at,
        not_checked,
        warnings,
        notes,
        plugins,
    })?;
    fail_with(match failed {
        0 if healthy => None,
        0 => Some(Exit::Found),
        _ => Some(Exit::Left),
    })
}

/// Returns the error that an ADD would meet now, for each network whose IPAM plugin needs the cluster's store.
async fn store_faults(session: &Session) -> Vec<String> {
    let mut faults = Vec::new();
    for network in session.conf.list().map(|listing| listing.networks).unwrap_or_default() {
        let Some(plugin) = etcd::plugin_of(&network.list) else { continue };
        let config = network.list.configuration(plugin, &Injection::default()).to_string();
        if let Err(err) = etcd::check_store(session.invoker.path(), &config).await {
            faults.push(format!("network {}: {err}", network.list.name));
        }
    }
    faults
}

/// Returns texts about the networks' files that can't be used. Nothing tells where their leases are, or whether they need
/// the cluster's store.
fn unusable_files(session: &Session) -> Vec<String> {
    let problems = match session.conf.list() {
        Ok(listing) => listing.problems,
        Err(err) => vec![err],
    };
    problems
        .iter()
        .map(|problem| format!("leases and the store of a network without a usable file: {problem}"))
        .collect()
}

/// Creates the doctor. `given` are the lease directories to judge. If there are none, it takes the usual ones and those
/// of the networks. `grace` is in seconds.
pub(super) fn new<'s>(session: &'s Session, given: &[PathBuf], grace: u64) -> Doctor<'s> {
    let mut evidence = Evidence::new(session.invoker.cache().clone());
    evidence.grace = Duration::from_secs(grace);
    // With `--cache-dir` only that cache is judged.
    evidence.judge_others = !session.own_cache;
    if given.is_empty() {
        let networks = session.conf.list().map(|listing| listing.networks).unwrap_or_default();
        evidence.data_dirs.extend(networks.iter().flat_map(|network| data_dirs(&network.list)));
    } else {
        evidence.data_dirs = given.to_vec();
    }
    Doctor {
        invoker: &session.invoker,
        evidence,
        plugins: PLUGINS,
        options: &session.directories_without_cache,
    }
}

impl Health {
    /// Returns the sentence that nothing is wrong, as far as the doctor has looked, or `None` if something is. The
    /// sentence says nothing about the network around the pods.
    fn whole(&self) -> Option<&'static str> {
        let well =
            count(&self.findings, RepairOutcome::Repaired) + count(&self.findings, RepairOutcome::Gone);
        if self.findings.len() > well || !self.warnings.is_empty() || !self.plugins.is_well() {
            return None;
        }
        if self.not_looked_at.is_empty() && self.not_checked.is_empty() {
            Some("the plugins' objects are whole")
        } else {
            Some("the plugins' objects are whole as far as they were compared")
        }
    }
}

impl View for Health {
    fn text(&self, paint: Paint) -> String {
        let mut out = self.plugins.text(paint);
        self.findings.iter().for_each(|item| out += &item.text("remedy", "repaired", paint));
        for blind in &self.not_looked_at {
            out += &format!("not looked at: {}\n", plain::line(blind));
        }
        self.not_checked.iter().for_each(|unchecked| out += &format!("not checked: {unchecked}\n"));
        self.warnings.iter().for_each(|warning| out += &format!("warning: {warning}\n"));
        self.notes.iter().for_each(|note| out += &format!("note: {}\n", plain::line(note)));
        let verb = if self.living == 1 { "lives or may live" } else { "live or may live" };
        let mut parts = vec![format!("{} {verb}", style::count(self.living, "attachment"))];
        for (outcome, words) in [
            (RepairOutcome::Repaired, "repaired"),
            (RepairOutcome::Gone, "gone meanwhile"),
            (RepairOutcome::Failed, "could not be repaired"),
            (RepairOutcome::Left, "left alone"),
        ] {
            let count = count(&self.findings, outcome);
            parts.extend((count > 0).then(|| format!("{count} {words}")));
        }
        parts.extend(finding::skipped_in_pods(&self.findings));
        parts.extend(finding::found(&self.findings));
        let warnings = self.warnings.len();
        parts.extend((warnings > 0).then(|| style::count(warnings, "warning")));
        parts.extend(
            (!self.plugins.is_well())
                .then(|| "something is to be done about the plugins' files, see above".to_owned()),
        );
        parts.extend(self.whole().map(str::to_owned));
        out + &parts.join("; ") + "\n"
    }
}
