//! `doctor`: finds and repairs orphans.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use cnimble_cni as cni;
use cnimble_doctor::{Diagnosis, Doctor, Reach};
use cnimble_liveness::{Evidence, data_dirs};
use cnimble_plugin::Plugin;

use super::cri::evidence;
use super::finding::{self, Item, Outcome, count};
use super::interrupt;
use super::output::View;
use super::plugin_files::PluginFiles;
use super::report::{Exit, Report, fail_with, must_be_root};
use super::style::{self, Paint};
use super::{Session, args, plain};

/// These plugins can repair an attachment, or are often chained with such plugins.
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    healthy: bool,
    living: usize,
    findings: Vec<Item>,
    not_looked_at: Vec<String>,
    not_checked: Vec<String>,
    warnings: Vec<String>,
    plugins: PluginFiles,
}

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
        let diagnosis = doctor.look().await?;
        let repairs = match reach {
            Some(reach) => Some(doctor.repair(&diagnosis.findings, reach).await),
            None => None,
        };
        Ok::<_, cni::Error>((diagnosis, repairs))
    };
    let (mut diagnosis, repairs) = interrupt::look(what, work).await?;
    let plugins = PluginFiles::look(session, &doctor).await;
    let findings = finding::items(&mut diagnosis, repairs);
    let found = count(&findings, Outcome::Found) + count(&findings, Outcome::InPod);
    let failed = count(&findings, Outcome::Failed);
    let healthy = found + failed == 0 && plugins.is_well();
    let Diagnosis { living, blind: not_looked_at, unchecked: not_checked, mut warnings, stopped, .. } =
        diagnosis;
    warnings.extend(stopped.into_iter().map(|of| format!("network {}: {}", of.network, of.text)));
    session.show(&Health { healthy, living, findings, not_looked_at, not_checked, warnings, plugins })?;
    fail_with(match failed {
        0 if healthy => None,
        0 => Some(Exit::Found),
        _ => Some(Exit::Left),
    })
}

/// Without given lease directories it uses the usual ones and those of the networks.
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
    Doctor { invoker: &session.invoker, evidence, plugins: PLUGINS }
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
        let verb = if self.living == 1 { "lives" } else { "live" };
        let mut parts = vec![format!("{} {verb}", style::count(self.living, "attachment"))];
        for (outcome, words) in [
            (Outcome::Repaired, "repaired"),
            (Outcome::Failed, "could not be repaired"),
            (Outcome::Left, "left alone"),
        ] {
            let count = count(&self.findings, outcome);
            parts.extend((count > 0).then(|| format!("{count} {words}")));
        }
        let of = |outcome| count(&self.findings, outcome);
        match (of(Outcome::Found), of(Outcome::InPod), of(Outcome::Failed)) {
            (0, 0, 0) if of(Outcome::Left) == 0 && self.warnings.is_empty() => {
                parts.push("all is well".to_owned())
            }
            (0, 0, _) => {}
            (0, in_pods, _) => parts.push(format!("{in_pods} in pods: --repair --pods repairs")),
            (found, ..) => parts.push(format!("{found} found, and nothing changed: --repair repairs")),
        }
        out + &parts.join("; ") + "\n"
    }
}
