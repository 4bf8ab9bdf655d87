//! Writes the status of pods to the API server, as a kubelet does. Unless it confirms the removal of a pod, `kubectl
//! delete` never ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use cnimble_pod::PodId;
use cnimble_pod::manifest::Manifest;
use cnimble_pod::source::{PodStatus, StatusWriter};
use cnimble_pod::sync::{Event, Phase, PodReport};

/// What the writing has to know.
enum Word {
    /// cnimble alone manages the pod, and `ending` is set if it is terminating.
    Managed { id: PodId, uid: String, ending: bool },
    /// The server has removed the pod.
    Forget { id: PodId, uid: String },
    /// The loop reports a pod.
    Report(Box<PodReport>),
    /// The loop has taken the pod down.
    Gone(PodId),
}

/// The first and the longest pause between two attempts.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A handle to the task that writes. Its methods only queue, and never fail.
#[derive(Clone)]
pub(super) struct Writing(mpsc::UnboundedSender<Word>);

impl Writing {
    /// Starts the task.
    pub(super) fn start(writer: StatusWriter, tasks: &mut tokio::task::JoinSet<()>) -> Self {
        let (sender, words) = mpsc::unbounded_channel();
        tasks.spawn(Task { writer, pods: BTreeMap::new(), news: BTreeSet::new() }.run(words));
        Writing(sender)
    }

    fn say(&self, word: Word) {
        // The receiver ends with this process.
        let _ = self.0.send(word);
    }

    /// Begins to report a pod that cnimble alone manages.
    pub(super) fn managed(&self, pod: &Manifest) {
        self.say(Word::Managed { id: pod.id.clone(), uid: pod.uid.clone(), ending: false });
    }

    /// Records that such a pod is terminating. Its removal is confirmed once it is taken down.
    pub(super) fn ending(&self, pod: &Manifest) {
        self.say(Word::Managed { id: pod.id.clone(), uid: pod.uid.clone(), ending: true });
    }

    /// Ends the reports of a pod, unless another one with its name has replaced it.
    pub(super) fn forget(&self, pod: &Manifest) {
        self.say(Word::Forget { id: pod.id.clone(), uid: pod.uid.clone() });
    }

    /// Records an event of the loop. Those of pods that are not managed are ignored.
    pub(super) fn happened(&self, event: &Event) {
        match event {
            Event::Pod(report) => self.say(Word::Report(Box::new(report.clone()))),
            Event::Gone(id) => self.say(Word::Gone(id.clone())),
            _ => {}
        }
    }
}

/// A managed pod.
#[derive(Clone)]
struct Ours {
    uid: String,
    /// It is terminating.
    ending: bool,
    /// It is taken down, and the confirmation is due.
    gone: bool,
    /// The last status to write.
    status: Option<PodStatus>,
}

struct Task {
    writer: StatusWriter,
    pods: BTreeMap<PodId, Ours>,
    /// The pods of which the server doesn't have the last status or the confirmation yet.
    news: BTreeSet<PodId>,
}

impl Task {
    /// Writes until the handles are dropped. After a failure it waits, for longer with each one.
    async fn run(mut self, mut words: mpsc::UnboundedReceiver<Word>) {
        let mut wait = WAIT.0;
        let mut not_before = Instant::now();
        loop {
            let word = tokio::select! {
                biased;
                word = words.recv() => word,
                () = sleep_until(not_before), if !self.news.is_empty() => {
                    match self.tell_one().await {
                        Ok(()) => wait = WAIT.0,
                        Err(err) => {
                            log::warn!("can't write a pod's status: {err}");
                            not_before = Instant::now() + wait;
                            wait = (wait * 2).min(WAIT.1);
                        }
                    }
                    continue;
                }
            };
            let Some(word) = word else { return };
            self.note_word(word);
        }
    }

    /// Takes a word, and notes what has to be written.
    fn note_word(&mut self, word: Word) {
        match word {
            Word::Managed { id, uid, ending } => {
                let fresh = Ours { uid: uid.clone(), ending, gone: false, status: None };
                let ours = self.pods.entry(id).or_insert_with(|| fresh.clone());
                if ours.uid != uid {
                    *ours = fresh;
                }
                ours.ending |= ending;
            }
            Word::Forget { id, uid } => {
                if self.pods.get(&id).is_some_and(|ours| ours.uid == uid) {
                    self.pods.remove(&id);
                    self.news.remove(&id);
                }
            }
            Word::Report(report) => {
                let Some(ours) = self.pods.get_mut(&report.id).filter(|ours| ours.uid == report.uid) else {
                    return;
                };
                let status = match report.phase {
                    Phase::Ready => PodStatus::Ready(report.ips),
                    Phase::Failed => PodStatus::NotReady {
                        reason: report.reason.unwrap_or_default(),
                        message: report.message.unwrap_or_default(),
                    },
                    Phase::Pending | Phase::Terminating => return,
                };
                if ours.status.as_ref() != Some(&status) {
                    ours.status = Some(status);
                    self.news.insert(report.id);
                }
            }
            Word::Gone(id) => {
                if let Some(ours) = self.pods.get_mut(&id).filter(|ours| ours.ending) {
                    ours.gone = true;
                    self.news.insert(id);
                }
            }
        }
    }

    /// Writes what is due of one pod. It stays due if that fails.
    async fn tell_one(&mut self) -> Result<(), cnimble_pod::source::SourceError> {
        let Some(id) = self.news.first().cloned() else { return Ok(()) };
        if let Some(ours) = self.pods.get(&id) {
            match &ours.status {
                _ if ours.gone => self.writer.confirm(&id, &ours.uid).await?,
                Some(status) if !ours.ending => self.writer.write(&id, &ours.uid, status).await?,
                _ => {}
            }
        }
        self.news.remove(&id);
        Ok(())
    }
}
