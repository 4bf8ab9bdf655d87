//! `guard`: restores what living pods lose on the host, as soon as the kernel reports a change.

mod fights;
mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use cnimble_cni::{Code, Error};
use cnimble_doctor::{Doctor, Finding, Reach, Repair, Subject};
use cnimble_netlink as netlink;
use cnimble_netlink::disturbance::Disturbances;
use cnimble_plugin::Item;
use cnimble_rules::survey::{FOLLOWED, OWN};

use super::doctor;
use super::finding::describe;
use super::interrupt::Signals;
use super::report::{Exit, Report, must_be_root};
use super::run::notify;
use super::style::count;
use super::{Session, args, services};
use fights::Fights;
use pace::{Pace, RoundOutcome};

/// The time in which the notifications of one change arrive. A DEL removes the link after its addresses.
const SETTLE: Duration = Duration::from_millis(50);

/// The number of times [`SETTLE`] after which a DEL that has removed a pod's rules or limits has also removed its link.
const REMOVAL: u32 = 6;

/// The wait for the lock of a network. It is short, so that an operation that hangs there delays no repair elsewhere.
const PATIENCE: Duration = Duration::from_secs(1);

const WHAT: &str = "can't guard this node";

/// Watches the node and repairs losses until SIGINT or SIGTERM. SIGHUP requests a look.
///
/// # Errors
/// Fails if the caller isn't root, and if the kernel's notifications can't be read.
pub(super) async fn guard(session: &Session, given: &args::doctor::Guard) -> Result<(), Report> {
    must_be_root(WHAT)?;
    let mut signals = Signals::listen()?;
    let mut changes = follow()?;
    services::follow().map_err(|err| Report::because(Exit::Files, WHAT, err))?;
    let invoker = session.invoker.clone().with_operation_limit(PATIENCE);
    let mut guard = Guard { fights: Fights::default(), failures: BTreeSet::new(), doubts: Doubts::default() };
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
                let (begun, before) = (Instant::now(), processor_time());
                let cause = if pace.follows_change(begun) { changes.borrow().clone() } else { "by a change that the kernel does not report".to_owned() };
                let doctor = Doctor { invoker: &invoker, ..doctor::new(session, &given.leases.data_dir, 0) };
                let outcome = guard.repair_losses(&doctor, &cause).await.unwrap_or_else(|err| {
                    log::warn!("the node could not be examined: {err}");
                    RoundOutcome::Failed
                });
                pace.looked(begun, Instant::now(), processor_time().saturating_sub(before), outcome);
            }
        }
    }
    notify::stopping();
    Ok(())
}

/// Starts a thread that follows the changes of the node, and returns the last one in words. The thread ends only if
/// notifications can't be read, which the receiver sees.
fn follow() -> Result<watch::Receiver<String>, Report> {
    let mut kernel =
        Disturbances::open(FOLLOWED, OWN).map_err(|err| Report::because(Exit::Files, WHAT, err))?;
    let (sender, receiver) = watch::channel("before the guard began".to_owned());
    let thread = std::thread::Builder::new().name("changes".to_owned());
    thread
        .spawn(move || tell_changes(&mut kernel, &sender))
        .map_err(|err| Report::because(Exit::Files, WHAT, err))?;
    Ok(receiver)
}

/// Sends each change in words. It ends only if notifications can't be read.
fn tell_changes(kernel: &mut Disturbances, sender: &watch::Sender<String>) {
    loop {
        match next(kernel) {
            Ok(Some(change)) => drop(sender.send_replace(format!("by a change {change}"))),
            Ok(None) => {}
            Err(err) => return log::error!("{err}"),
        }
    }
}

/// Waits for a notification, and then until those of the same change have arrived. Returns the change in words, or
/// `None` if it needs no look.
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
    for _ in 1..REMOVAL {
        if !kernel.may_be_a_removal() {
            break;
        }
        std::thread::sleep(SETTLE);
        kernel.read()?;
    }
    Ok(kernel.take_changes())
}

/// Returns the processor time that this process has used, or zero if it can't be read.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// A part of an attachment that a plugin wants, as the key of [`Fights`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    network: Option<String>,
    container_id: Option<String>,
    ifname: Option<String>,
    plugin: String,
    item: Option<Item>,
}

impl Object {
    fn from_finding(finding: &Finding) -> Self {
        let Subject { network, container_id, ifname, .. } = finding.subject.clone();
        let (plugin, item) = finding.item().map(|(plugin, item)| (plugin.to_owned(), item)).unzip();
        Object { network, container_id, ifname, plugin: plugin.unwrap_or_default(), item }
    }
}

/// Texts about what the guard leaves alone. A pod that is being removed looks the same for a moment. So a text is
/// logged only if two looks in a row have it, and then not again until a look lacks it.
#[derive(Debug, Default)]
struct Doubts {
    /// The texts of the last look.
    last: BTreeSet<String>,
    /// The texts that were logged.
    logged: BTreeSet<String>,
}

impl Doubts {
    /// Takes the texts of a look, and returns those to be logged now.
    fn next(&mut self, now: BTreeSet<String>) -> Vec<String> {
        self.logged.retain(|text| now.contains(text));
        let lasting = now.intersection(&self.last).filter(|text| !self.logged.contains(*text));
        let lasting: Vec<String> = lasting.cloned().collect();
        self.logged.extend(lasting.iter().cloned());
        self.last = now;
        lasting
    }
}

/// What the guard remembers between looks.
struct Guard {
    fights: Fights<Object>,
    /// The failures of the last look, so that a lasting one is logged once.
    failures: BTreeSet<String>,
    doubts: Doubts,
}

impl Guard {
    /// Looks for losses, and repairs those that are not in a pause. `cause` is what changed, for the log.
    ///
    /// # Errors
    /// Fails if the node can't be examined. A failed repair is logged, and part of the outcome.
    async fn repair_losses(&mut self, doctor: &Doctor<'_>, cause: &str) -> Result<RoundOutcome, Error> {
        let begun = Instant::now();
        let mut lost = doctor.lost(None).await?;
        lost.retain(|finding| !self.fights.is_paused(&Object::from_finding(finding), begun));
        let outcomes = doctor.repair(&lost, Reach::Host).await;
        let (mut repaired, mut failed) = (Vec::new(), BTreeSet::new());
        let (mut locked, mut left_alone) = (BTreeSet::new(), BTreeSet::new());
        for (finding, outcome) in lost.iter().zip(&outcomes) {
            match outcome {
                Repair::Done => repaired.push(finding),
                Repair::Failed(err) if err.code == Code::TRY_AGAIN_LATER => {
                    _ = locked.insert(err.to_string());
                }
                Repair::Failed(err) => drop(failed.insert(format!("{}: {err}", finding.what))),
                Repair::Doubt { .. } if finding.doubt.is_some() => {
                    _ = left_alone.insert(left_alone_text(finding));
                }
                // The pod is being removed.
                Repair::Gone | Repair::Doubt { .. } | Repair::NotAsked => {}
            }
        }
        if !repaired.is_empty() {
            let took = begun.elapsed().as_millis();
            log::info!("put back in {took} ms what was lost {cause}: {}", summary(&repaired));
        }
        self.note_repairs(&repaired, cause);
        for failure in failed.difference(&self.failures) {
            log::warn!("{failure}");
        }
        locked.iter().for_each(|why| log::info!("trying again: {why}"));
        self.failures = failed;
        for text in self.doubts.next(left_alone) {
            log::warn!("{text}");
        }
        let end = self.fights.next(Instant::now());
        Ok(match (self.failures.is_empty(), repaired.is_empty(), end) {
            _ if !locked.is_empty() => RoundOutcome::Waiting,
            (false, _, _) => RoundOutcome::Failed,
            (true, _, Some(end)) => RoundOutcome::Paused(end),
            (true, false, None) => RoundOutcome::Repaired,
            (true, true, None) => RoundOutcome::Quiet,
        })
    }

    /// Counts the repairs, and logs an error for each object whose pause begins.
    fn note_repairs(&mut self, repaired: &[&Finding], cause: &str) {
        let now = Instant::now();
        let mut fought: BTreeMap<(&str, &str), Vec<&Finding>> = BTreeMap::new();
        for finding in repaired {
            if self.fights.repaired(Object::from_finding(finding), now) {
                let network = finding.subject.network.as_deref().unwrap_or_default();
                fought.entry((network, &finding.what)).or_default().push(finding);
            }
        }
        for ((network, what), findings) in fought {
            let ids = findings.iter().filter_map(|finding| finding.subject.container_id.as_deref());
            let ids: BTreeSet<&str> = ids.collect();
            let first = ids.first().copied().unwrap_or_default();
            let others = match ids.len() {
                0 | 1 => String::new(),
                number => format!(" and of {}", count(number - 1, "other container")),
            };
            log::error!(
                "network {network}: the pod or another program changes again what the guard puts back, at last \
                 {cause}; the guard leaves alone for {} what is lost {what}, of container {first}{others}",
                count(fights::PAUSE.as_secs() as usize / 60, "minute")
            );
        }
    }
}

/// Returns the text about a finding that is left alone.
fn left_alone_text(finding: &Finding) -> String {
    let doubt = finding.doubt.as_deref().unwrap_or_default();
    format!("{}: {}: {}; left alone: {doubt}", describe(&finding.subject), finding.what, finding.why)
}

/// Returns the repaired parts, each with its number.
pub(super) fn summary(repaired: &[&Finding]) -> String {
    let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
    repaired.iter().for_each(|finding| *parts.entry(&finding.what).or_default() += 1);
    let parts: Vec<String> = parts.into_iter().map(|(what, number)| format!("{what} ({number})")).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_logged_once() {
        let mut doubts = Doubts::default();
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(doubts.next(set(&["a", "b"])), [""; 0]);
        assert_eq!(doubts.next(set(&["a"])), ["a"]);
        assert_eq!(doubts.next(set(&["a", "b"])), [""; 0]);
        assert_eq!(doubts.next(set(&[])), [""; 0]);
        assert_eq!(doubts.next(set(&["a"])), [""; 0]);
        assert_eq!(doubts.next(set(&["a"])), ["a"]);
    }
}
