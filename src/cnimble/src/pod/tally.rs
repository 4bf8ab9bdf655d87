//! Reads manifests from the command line and reports the outcome of each pod.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use cnimble_pod::PodId;
use cnimble_pod::manifest::{Defaults, Manifest, Origin, Parsed};

use crate::network::read_input;
use crate::plain;
use crate::report::{Exit, Report};
use crate::{Session, print, print_json};

/// Reads the pods of manifests. A bad pod, or a second one of the same name, is a failure in `tally` and doesn't
/// exclude the others.
///
/// # Errors
/// Fails if a file can't be read.
pub(crate) fn manifests(files: &[PathBuf], tally: &mut Tally<'_>) -> Result<Vec<Manifest>, Report> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for file in files {
        let bytes = read_input(file).map_err(|err| {
            Report::new(Exit::Config, "can't read the manifest")
                .row("file", file.display().to_string())
                .row("why", err.to_string())
        })?;
        let origin = if file == Path::new("-") {
            Origin::Other("stdin".to_owned())
        } else {
            Origin::File(file.clone())
        };
        let Parsed { pods, errors } = Manifest::parse_each(&bytes, &origin, &Defaults::default());
        for error in errors {
            let report = Report::because(Exit::Config, "a pod can't be used", error);
            tally.fail(None, &report);
        }
        for pod in pods {
            if seen.insert(pod.id.clone()) {
                found.push(pod);
            } else {
                let why = format!("{}: an earlier manifest has pod {}, too", pod.origin, pod.id);
                let report = Report::because(Exit::Config, "a pod can't be used", why);
                tally.fail(Some(&pod.id), &report);
            }
        }
    }
    Ok(found)
}

/// The outcomes of the pods of one command. Each is reported at once as text, or all together as JSON.
pub(crate) struct Tally<'s> {
    session: &'s Session,
    objects: Vec<Value>,
    /// The first failed write to stdout. The work continues after it, and the command fails at the end.
    unwritten: Option<Report>,
    /// The exit status of the first failure.
    exit: Option<Exit>,
    /// The number of failures.
    failed: usize,
}

impl<'s> Tally<'s> {
    pub(crate) fn new(session: &'s Session) -> Self {
        Tally { session, objects: Vec::new(), unwritten: None, exit: None, failed: 0 }
    }

    /// Records a success, as a line of text or as an object in JSON.
    pub(crate) fn done(&mut self, line: &str, object: &impl Serialize) {
        if self.session.json {
            self.objects.push(json!(object));
        } else {
            let written = print(&format!("{} {}\n", self.session.paint.good("ok"), plain::line(line)));
            self.unwritten = self.unwritten.take().or(written.err());
        }
    }

    /// Records a failure. The first one decides the exit status. JSON names the pod only if it is given here.
    pub(crate) fn fail(&mut self, pod: Option<&PodId>, report: &Report) {
        self.failed += 1;
        self.exit.get_or_insert(report.exit);
        if self.session.json {
            let mut object = json!({"error": report.json()});
            if let (Some(pod), Some(map)) = (pod, object.as_object_mut()) {
                map.insert("namespace".to_owned(), pod.namespace.clone().into());
                map.insert("name".to_owned(), pod.name.clone().into());
            }
            self.objects.push(object);
        } else {
            report.print(crate::style::Paint::for_stream(&std::io::stderr()));
        }
    }

    /// Prints the JSON, and fails if something has failed. `count` is the number of pods, and `verb` what they should
    /// be.
    pub(crate) fn finish(self, verb: &str, count: usize) -> Result<(), Report> {
        if self.session.json {
            print_json(&self.objects)?;
        }
        if let Some(unwritten) = self.unwritten {
            return Err(unwritten);
        }
        match self.exit {
            None => Ok(()),
            Some(exit) if self.session.json || count < 2 => Err(Report::new(exit, "")),
            Some(exit) => {
                let be = if self.failed == 1 { "is" } else { "are" };
                Err(Report::new(exit, format!("{} of {count} pods {be} not {verb}", self.failed)))
            }
        }
    }
}
