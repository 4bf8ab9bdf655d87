//! `guard`: puts back what living pods lose on the host, as soon as the kernel reports a change.

mod fights;
mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::watch;

use cnimble_cni::Error;
use cnimble_doctor::{Doctor, Finding, Reach, Repair};
use cnimble_netlink as netlink;
use cnimble_netlink::disturbance::Disturbances;
use cnimble_rules::survey::FOLLOWED;

use super::doctor;
use super::finding::describe;
use super::interrupt::Signals;
use super::report::{Exit, Report, must_be_root};
use super::run::notify;
use super::style::count;
use super::{Session, args, services};
use fights::Fights;
use pace::{Outcome, Pace};

/// The notifications of one change come within this time. A DEL removes the link after its addresses.
const SETTLE: Duration = Duration::from_millis(50);

/// The processes that change packet rules as cnimble. Their changes are no losses.
const OWN: &[&str] = &["cnimble", "bridge", "firewall", "portmap", "ptp"];

const WHAT: &str = "can't guard this node";

pub(super) async fn guard(session: &Session, given: &args::doctor::Guard) -> Result<(), Report> {
    must_be_root(WHAT)?;
    let mut signals = Signals::listen()?;
    let mut changes = follow()?;
    services::follow().map_err(|err| Report::because(Exit::Files, WHAT, err))?;
    let mut guard =
        Guard { fights: Fights::default(), failures: BTreeSet::new(), left_alone: BTreeSet::new() };
    let mut pace = Pace::new(Instant::now());
    notify::ready();
    loop {
        tokio::select! {
            exit = signals.next() => match exit {
                Exit::HungUp => pace.disturbed(Instant::now()),
                _ => break,
            },
            changed = changes.changed() => match changed {
                Ok(()) => pace.disturbed(Instant::now()),
                Err(_) => return Err(Report::because(Exit::Files, WHAT, "the kernel's notifications ended")),
            },
            () = pace.due() => {
                let cause = changes.borrow().clone();
                let begun = Instant::now();
                let doctor = doctor::new(session, &given.leases.data_dir, 0);
                let outcome = guard.look(&doctor, &cause).await.unwrap_or_else(|err| {
                    log::warn!("the node could not be examined: {err}");
                    Outcome::Failed
                });
                pace.looked(begun, Instant::now(), outcome);
            }
        }
    }
    notify::stopping();
    Ok(())
}

/// Follows the changes of the node, in words. The thread never ends, unless a notification can't be read.
fn follow() -> Result<watch::Receiver<String>, Report> {
    let failed = |err: &dyn std::error::Error| Report::because(Exit::Files, WHAT, err);
    let mut kernel = Disturbances::open(FOLLOWED, OWN).map_err(|err| failed(&err))?;
    let (sender, receiver) = watch::channel("before the guard began".to_owned());
    let wait = move || {
        loop {
            match next(&mut kernel) {
                Ok(Some(change)) => drop(sender.send_replace(format!("by a change {change}"))),
                Ok(None) => {}
                Err(err) => return log::error!("{err}"),
            }
        }
    };
    std::thread::Builder::new().name("changes".to_owned()).spawn(wait).map_err(|err| failed(&err))?;
    Ok(receiver)
}

/// Waits for notifications. Returns the change that they tell of, once its notifications are there.
fn next(kernel: &mut Disturbances) -> netlink::Result<Option<String>> {
    let mut fds: Vec<PollFd<'_>> =
        kernel.descriptors().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(netlink::Error::io("wait for notifications", &errno.into())),
    }
    if !kernel.read()? {
        return Ok(None);
    }
    std::thread::sleep(SETTLE);
    kernel.read()?;
    Ok(kernel.take())
}

struct Guard {
    fights: Fights,
    /// The failures that are logged. They are logged again after a repair.
    failures: BTreeSet<String>,
    /// What is left alone and logged, until it ends.
    left_alone: BTreeSet<String>,
}

impl Guard {
    async fn look(&mut self, doctor: &Doctor<'_>, cause: &str) -> Result<Outcome, Error> {
        let begun = Instant::now();
        let mut lost = doctor.lost().await?;
        lost.retain(|finding| !self.fights.is_paused(network(finding), begun));
        let outcomes = doctor.repair(&lost, Reach::Host).await;
        let (mut repaired, mut failed, mut left_alone) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (finding, outcome) in lost.iter().zip(&outcomes) {
            match outcome {
                Repair::Done => repaired.push(finding),
                Repair::Failed(err) => drop(failed.insert(format!("{}: {err}", finding.what))),
                Repair::Doubt(_) if finding.doubt.is_some() => drop(left_alone.insert(left(finding))),
                // The pod is being removed.
                Repair::Doubt(_) | Repair::NotAsked => {}
            }
        }
        if !repaired.is_empty() {
            let took = begun.elapsed().as_millis();
            log::info!("put back in {took} ms what was lost {cause}: {}", summary(&repaired));
        }
        let networks: BTreeSet<&str> = repaired.iter().map(|finding| network(finding)).collect();
        for network in networks {
            if self.fights.repaired(network, Instant::now()) {
                log::error!(
                    "network {network}: another program removes what the guard puts back, at last {cause}; \
                     the guard leaves the network alone for {}",
                    count(fights::PAUSE.as_secs() as usize / 60, "minute")
                );
            }
        }
        for failure in failed.difference(&self.failures) {
            log::warn!("{failure}");
        }
        self.failures = failed;
        for text in left_alone.difference(&self.left_alone) {
            log::warn!("{text}");
        }
        self.left_alone = left_alone;
        Ok(match (self.failures.is_empty(), repaired.is_empty(), self.fights.next(Instant::now())) {
            (false, _, _) => Outcome::Failed,
            (true, _, Some(end)) => Outcome::Paused(end),
            (true, false, None) => Outcome::Repaired,
            (true, true, None) => Outcome::Quiet,
        })
    }
}

fn network(finding: &Finding) -> &str {
    finding.subject.network.as_deref().unwrap_or_default()
}

/// Returns why an attachment's part is left alone.
fn left(finding: &Finding) -> String {
    let doubt = finding.doubt.as_deref().unwrap_or_default();
    format!("{}: {}: {}; left alone: {doubt}", describe(&finding.subject), finding.what, finding.why)
}

/// Returns the repaired parts with their numbers.
fn summary(repaired: &[&Finding]) -> String {
    let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
    repaired.iter().for_each(|finding| *parts.entry(&finding.what).or_default() += 1);
    let parts: Vec<String> = parts.into_iter().map(|(what, number)| format!("{what} ({number})")).collect();
    parts.join(", ")
}
