//! The stations of a packet, and the outcome of the whole way.

use std::path::PathBuf;

use serde::Serialize;

/// Whether a packet passes a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Stops,
    /// It is unknown whether the packet passes. The text says why.
    Unknown,
}

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// To the receiver.
    Out,
    /// The answer, to the sender.
    Back,
}

/// A link on which a probe can be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tap {
    /// The path of the link's namespace. `None` is the host's.
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
    /// A command that shows or repairs what stops the packet.
    #[serde(rename = "try")]
    pub remedy: Option<String>,
    /// The link of the station, if it is one.
    #[serde(skip)]
    pub tap: Option<Tap>,
    /// The programs on the link of the station. No trace shows what they do.
    #[serde(skip)]
    pub programs: Vec<String>,
    /// Whether the station explains it if no answer comes back.
    #[serde(skip)]
    pub explains_silence: bool,
}

impl Station {
    /// Creates a station without a remedy.
    pub fn new(way: Way, place: &str, name: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Station {
            way,
            place: place.to_owned(),
            name,
            verdict,
            text: text.into(),
            remedy: None,
            tap: None,
            programs: Vec::new(),
            explains_silence: false,
        }
    }

    /// Sets what the user can try.
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
    /// A look found no station on the node that stops the packet. Nothing was sent.
    Passes,
    /// A station stops the packet.
    Stopped,
    /// Some station is unknown, and none stops the packet.
    Unknown,
}

/// Returns the outcome of a look, without a probe.
pub(crate) fn outcome(stations: &[Station]) -> Outcome {
    if stations.iter().any(|station| station.verdict == Verdict::Stops) {
        Outcome::Stopped
    } else if stations.iter().any(|station| station.verdict == Verdict::Unknown) {
        Outcome::Unknown
    } else {
        Outcome::Passes
    }
}
