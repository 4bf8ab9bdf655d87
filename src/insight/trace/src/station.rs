//! The stations of a packet, and the result of the whole way.

use std::path::PathBuf;

use serde::Serialize;

/// Whether a packet passes a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Stops,
    /// It cannot be known, or was not looked at. The text says why.
    Unknown,
}

/// The direction of the packet: to the receiver, or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    Out,
    Back,
}

/// A link that a probe can be captured on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tap {
    /// The namespace with the link. `None` is the host's.
    pub netns: Option<PathBuf>,
    pub index: u32,
}

/// One station of the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Station {
    pub way: Way,
    /// `host`, or the name of a pod.
    pub place: String,
    /// The kind of station: `route`, `neighbour`, `link`, `port`, `forward` …
    #[serde(rename = "station")]
    pub name: &'static str,
    pub verdict: Verdict,
    pub text: String,
    /// A command that shows or mends what stops the packet.
    #[serde(rename = "try")]
    pub remedy: Option<String>,
    #[serde(skip)]
    pub tap: Option<Tap>,
    /// Whether the station explains an answer that does not come back.
    #[serde(skip)]
    pub explains_silence: bool,
}

impl Station {
    pub fn new(way: Way, place: &str, name: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Station {
            way,
            place: place.to_owned(),
            name,
            verdict,
            text: text.into(),
            remedy: None,
            tap: None,
            explains_silence: false,
        }
    }

    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    #[must_use]
    pub fn tapped(mut self, netns: Option<PathBuf>, index: u32) -> Self {
        self.tap = Some(Tap { netns, index });
        self
    }
}

/// The result of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The answer to the probe came back.
    Answered,
    /// No station on the node stops the packet. Nothing was sent.
    Passes,
    Stopped,
    /// Some station cannot be known.
    Unknown,
}

/// The outcome of a look at these stations, without a probe.
pub(crate) fn outcome(stations: &[Station]) -> Outcome {
    let has = |verdict| stations.iter().any(|station| station.verdict == verdict);
    if has(Verdict::Stops) {
        Outcome::Stopped
    } else if has(Verdict::Unknown) {
        Outcome::Unknown
    } else {
        Outcome::Passes
    }
}
