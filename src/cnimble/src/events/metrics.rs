//! Counts events since the start, in the text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::state::{Event, What};

/// The upper bounds of the histograms' buckets, in seconds.
const BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0];

/// All kinds of events.
const EVENTS: [What; 4] = [What::Add, What::Del, What::Failed, What::Repaired];

/// The durations of one network's ADDs or DELs.
#[derive(Default)]
struct Histogram {
    /// The durations up to each bound and above the one before. They are not cumulative, unlike those of the output.
    counts: [u64; BUCKETS.len()],
    /// The number of all durations, including those above the last bound.
    count: u64,
    /// The sum of all durations.
    seconds: f64,
}

impl Histogram {
    /// Counts a duration.
    fn observe(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some((count, _)) = self.counts.iter_mut().zip(BUCKETS).find(|(_, bound)| seconds <= *bound) {
            *count += 1;
        }
        self.count += 1;
        self.seconds += seconds;
    }

    /// Writes the histogram, with cumulative buckets.
    fn write(&self, out: &mut String, labels: &str) {
        const NAME: &str = "cnimble_attachment_duration_seconds";
        let mut below = 0;
        for (count, bound) in self.counts.iter().zip(BUCKETS) {
            below += count;
            let _ = writeln!(out, "{NAME}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(out, "{NAME}_bucket{{{labels},le=\"+Inf\"}} {}", self.count);
        let _ =
            writeln!(out, "{NAME}_sum{{{labels}}} {}\n{NAME}_count{{{labels}}} {}", self.seconds, self.count);
    }
}

/// The counts since the start.
#[derive(Default)]
pub(super) struct Metrics {
    /// The number of events, by network and kind.
    events: BTreeMap<(String, &'static str), u64>,
    /// The durations of ADDs and DELs, by network and kind.
    durations: BTreeMap<(String, &'static str), Histogram>,
    /// How often notifications were lost.
    lost: u64,
}

impl Metrics {
    /// Counts an event.
    pub(super) fn event(&mut self, event: &Event) {
        let network = &event.owner.network;
        for what in EVENTS {
            // A counter that starts at 0 makes its first increase visible.
            let count = self.events.entry((network.clone(), what.name())).or_default();
            *count += u64::from(what == event.what);
        }
        if let (What::Add | What::Del, Some(took)) = (event.what, event.took) {
            self.durations.entry((network.clone(), event.what.name())).or_default().observe(took);
        }
    }

    /// Counts a loss of notifications.
    pub(super) fn lost(&mut self) {
        self.lost += 1;
    }

    /// Returns all counts. The text ends with `# EOF`, so that a reader knows where one set of counts ends. `attached`
    /// is the current number of attachments.
    pub(super) fn text(&self, attached: usize) -> String {
        let mut out = String::new();
        head(&mut out, "cnimble_attachments", "gauge", "Attachments that have a result.");
        let _ = writeln!(out, "cnimble_attachments {attached}");
        head(
            &mut out,
            "cnimble_events_total",
            "counter",
            "What happened to attachments, as cnimble events tells it.",
        );
        for ((network, event), count) in &self.events {
            let _ = writeln!(out, "cnimble_events_total{{{}}} {count}", labels(network, event));
        }
        head(
            &mut out,
            "cnimble_attachment_duration_seconds",
            "histogram",
            "From the first sign to the last.",
        );
        for ((network, event), durations) in &self.durations {
            durations.write(&mut out, &labels(network, event));
        }
        head(
            &mut out,
            "cnimble_events_lost_total",
            "counter",
            "How often the kernel had more to tell than fits.",
        );
        let _ = writeln!(out, "cnimble_events_lost_total {}\n# EOF", self.lost);
        out
    }
}

/// Writes the lines above the values of a metric.
fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Returns the labels of a count, with the network's name escaped.
fn labels(network: &str, event: &str) -> String {
    let network = network.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("network=\"{network}\",event=\"{event}\"")
}

#[cfg(test)]
mod tests {
    use cnimble_cni::{Attachment, Owner};

    use super::super::state::About;
    use super::*;

    #[test]
    fn events_are_counted_by_network() {
        let attachment = Attachment { container_id: "web".to_owned(), ifname: "eth0".to_owned() };
        let mut event = Event {
            what: What::Add,
            owner: Owner { network: "a\"b".to_owned(), attachment },
            took: Some(Duration::from_millis(4)),
            about: About::default(),
        };
        let mut metrics = Metrics::default();
        metrics.event(&event);
        event.what = What::Failed;
        metrics.event(&event);
        metrics.lost();
        let text = metrics.text(3);
        for line in [
            "cnimble_attachments 3\n",
            "# TYPE cnimble_events_total counter\n",
            "cnimble_events_total{network=\"a\\\"b\",event=\"add\"} 1\n",
            "cnimble_events_total{network=\"a\\\"b\",event=\"del\"} 0\n",
            "cnimble_events_total{network=\"a\\\"b\",event=\"failed\"} 1\n",
            "cnimble_attachment_duration_seconds_bucket{network=\"a\\\"b\",event=\"add\",le=\"0.0025\"} 0\n",
            "cnimble_attachment_duration_seconds_bucket{network=\"a\\\"b\",event=\"add\",le=\"0.005\"} 1\n",
            "cnimble_attachment_duration_seconds_bucket{network=\"a\\\"b\",event=\"add\",le=\"+Inf\"} 1\n",
            "cnimble_attachment_duration_seconds_sum{network=\"a\\\"b\",event=\"add\"} 0.004\n",
            "cnimble_events_lost_total 1\n# EOF\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("event=\"failed\",le"), "{text}");
    }
}
