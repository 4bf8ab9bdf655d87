//! `version`: the version of this program, and the versions of the specification that it speaks.

use serde::Serialize;

use cnimble_cni::Version;

use super::Session;
use super::args::help::{COMMIT, VERSION};
use super::output::View;
use super::report::Report;
use super::style::Paint;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    version: &'static str,
    commit: &'static str,
    cni_versions: Vec<&'static str>,
}

/// Prints the versions.
pub(super) fn version(session: &Session) -> Result<(), Report> {
    let cni_versions = Version::ALL.iter().map(|version| version.as_str()).collect();
    session.show(&Versions { version: env!("CARGO_PKG_VERSION"), commit: COMMIT, cni_versions })
}

impl View for Versions {
    fn text(&self, _: Paint) -> String {
        format!("cnimble {VERSION}\n")
    }
}
