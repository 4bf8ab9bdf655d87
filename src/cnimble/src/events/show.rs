//! Shows events as lines of text or as one JSON object per line.

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::output::emit;
use crate::style::{Paint, count};
use crate::{Session, plain};

use super::metrics::Metrics;
use super::state::{Event, What};

impl What {
    pub(super) fn name(self) -> &'static str {
        match self {
            What::Add => "add",
            What::Del => "del",
            What::Failed => "failed",
            What::Repaired => "repaired",
        }
    }
}

pub(super) struct Show {
    json: bool,
    paint: Paint,
    network: Option<String>,
    metrics: Option<Metrics>,
    changed: bool,
}

impl Show {
    pub(super) fn new(session: &Session, network: Option<String>, metrics: Option<Metrics>) -> Self {
        Show { json: session.json, paint: session.paint, network, metrics, changed: false }
    }

    /// Announces that all later events are shown.
    pub(super) fn begin(&mut self, attached: usize) -> io::Result<()> {
        if self.metrics.is_some() {
            self.changed = true;
            return self.round(attached);
        }
        let words = format!("following {}", count(attached, "attachment"));
        self.line(
            || self.paint.dim(&words),
            || json!({"time": time(), "event": "following", "attachments": attached}),
        )
    }

    /// Announces that events may be missing.
    pub(super) fn lost(&mut self, what: &str) -> io::Result<()> {
        if let Some(metrics) = &mut self.metrics {
            metrics.lost();
            self.changed = true;
            return Ok(());
        }
        let words = format!("{what} were lost; the current state is read again");
        self.line(
            || format!("{}  {}  {words}", clock(), self.paint.bad("lost    ")),
            || json!({"time": time(), "event": "lost", "what": what}),
        )
    }

    pub(super) fn event(&mut self, event: &Event) -> io::Result<()> {
        if self.network.as_ref().is_some_and(|network| *network != event.owner.network) {
            return Ok(());
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.event(event);
            self.changed = true;
            return Ok(());
        }
        let name = format!("{:8}", event.what.name());
        let name = match event.what {
            What::Failed => self.paint.bad(&name),
            What::Repaired => self.paint.good(&name),
            What::Add | What::Del => name,
        };
        self.line(|| format!("{}  {name}  {}", clock(), words(event)), || object(event))
    }

    /// Prints the counts if one has changed.
    pub(super) fn round(&mut self, attached: usize) -> io::Result<()> {
        let Some(metrics) = self.metrics.as_ref().filter(|_| std::mem::take(&mut self.changed)) else {
            return Ok(());
        };
        emit(&metrics.text(attached))
    }

    fn line(&self, text: impl FnOnce() -> String, object: impl FnOnce() -> Value) -> io::Result<()> {
        emit(&match self.json {
            true => plain::json(&format!("{}\n", object())),
            false => format!("{}\n", text()),
        })
    }
}

fn words(event: &Event) -> String {
    let attachment = &event.owner.attachment;
    let mut words = vec![event.owner.network.clone(), attachment.ifname.clone()];
    match &event.about.pod {
        Some(pod) => words.push(pod.clone()),
        None => words.push(attachment.container_id.clone()),
    }
    if !event.about.addresses.is_empty() {
        words.push(event.about.addresses.join(" "));
    }
    words.extend(event.took.map(|took| format!("in {:.1} ms", milliseconds(took))));
    plain::line(&words.join("  "))
}

fn object(event: &Event) -> Value {
    json!({
        "time": time(),
        "event": event.what.name(),
        "network": event.owner.network,
        "containerID": event.owner.attachment.container_id,
        "ifname": event.owner.attachment.ifname,
        "pod": event.about.pod,
        "netns": event.about.netns,
        "addresses": event.about.addresses,
        "milliseconds": event.took.map(|took| (milliseconds(took) * 1000.0).round() / 1000.0),
    })
}

fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

fn time() -> String {
    Timestamp::now().to_string()
}

/// The time is in UTC.
fn clock() -> String {
    Timestamp::now().strftime("%H:%M:%S%.3fZ").to_string()
}
