//! Shows events as lines of text or as one JSON object per line.

use std::io;
use std::time::Duration;

use cnimble_cni::capability::PortMapping;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::output::emit;
use crate::style::{Paint, count};
use crate::{Session, plain};

use super::metrics::Metrics;
use super::state::{Event, What};

impl What {
    /// Returns the name of the kind of event in output.
    pub(super) fn name(self) -> &'static str {
        match self {
            What::Add => "add",
            What::Del => "del",
            What::Failed => "failed",
            What::Repaired => "repaired",
        }
    }
}

/// Prints events in the requested form.
pub(super) struct Show {
    json: bool,
    paint: Paint,
    /// The only network whose events are shown, or `None` for all.
    network: Option<String>,
    /// The counts, if they are shown in place of the events.
    metrics: Option<Metrics>,
    /// A count has changed since the last output.
    changed: bool,
}

impl Show {
    /// Creates the output. `network` is the only network that is shown, and with `metrics` counts replace the events.
    pub(super) fn new(session: &Session, network: Option<String>, metrics: Option<Metrics>) -> Self {
        Show { json: session.json, paint: session.paint, network, metrics, changed: false }
    }

    /// Prints that all later events will be shown. `attached` is the number of attachments that exist already.
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

    /// Prints that events may be missing. `what` is the kind of notifications that were lost.
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

    /// Prints an event, and for an ADD a warning for each process of the host that listens on a published port of the
    /// pod. Events of other networks are ignored.
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
        self.line(
            || format!("{}  {name}  {}", clock(), words(event)),
            || Value::Object(object(event, event.what.name())),
        )?;
        let addrs = event.about.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let ports: &[PortMapping] = if event.what == What::Add { &event.about.ports } else { &[] };
        match cnimble_doctor::shadowed(ports, addrs) {
            Ok(texts) => texts.iter().try_for_each(|text| self.warning(event, text)),
            Err(err) => {
                log::warn!("processes that listen on the pod's published ports were not looked at: {err}");
                Ok(())
            }
        }
    }

    /// Prints a warning with the attachment of the event. `text` says which process listens on a published port, and
    /// the warning adds that the port leads to the pod now.
    fn warning(&self, event: &Event, text: &str) -> io::Result<()> {
        let text = format!("{text}, which leads to the pod now");
        let named = Event { took: None, ..event.clone() };
        self.line(
            || format!("{}  {}  {}  {text}", clock(), self.paint.bad("warning "), words(&named)),
            || {
                let mut object = object(&named, "warning");
                object.insert("message".to_owned(), json!(text));
                Value::Object(object)
            },
        )
    }

    /// Prints the counts if one has changed since the last call. Without counts it prints nothing.
    pub(super) fn round(&mut self, attached: usize) -> io::Result<()> {
        let Some(metrics) = self.metrics.as_ref().filter(|_| std::mem::take(&mut self.changed)) else {
            return Ok(());
        };
        emit(&metrics.text(attached))
    }

    /// Prints a line in the requested form.
    fn line(&self, text: impl FnOnce() -> String, object: impl FnOnce() -> Value) -> io::Result<()> {
        emit(&if self.json { plain::json(&format!("{}\n", object())) } else { format!("{}\n", text()) })
    }
}

/// Returns the text of an event after its name.
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

/// Returns the JSON of an event.
fn object(event: &Event, name: &str) -> Map<String, Value> {
    let fields = [
        ("time", json!(time())),
        ("event", json!(name)),
        ("network", json!(event.owner.network)),
        ("containerID", json!(event.owner.attachment.container_id)),
        ("ifname", json!(event.owner.attachment.ifname)),
        ("pod", json!(event.about.pod)),
        ("netns", json!(event.about.netns)),
        ("addresses", json!(event.about.addresses)),
        ("milliseconds", json!(event.took.map(|took| (milliseconds(took) * 1000.0).round() / 1000.0))),
    ];
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn milliseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

/// Returns the time in RFC 3339.
fn time() -> String {
    Timestamp::now().to_string()
}

/// Returns the time of day in UTC.
fn clock() -> String {
    Timestamp::now().strftime("%H:%M:%S%.3fZ").to_string()
}
