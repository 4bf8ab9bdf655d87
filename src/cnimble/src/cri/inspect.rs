//! `cnimble cri inspect`: shows a pod as the runtime, the cache and the kernel see it.

mod sides;

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::json;

use cnimble_cri::Client;
use cnimble_liveness::Sight;

use super::{no_pod, of_pod, pods, report};
use crate::output::View;
use crate::report::{Exit, Report, fail_with};
use crate::style::{Paint, rows, table};
use crate::{Session, doctor, print, print_json};

use sides::Sides;

/// Prints each sandbox of a pod from three sides. It fails with [`Exit::Found`] if they differ.
pub(super) async fn inspect(session: &Session, client: &Client, pod: &str) -> Result<(), Report> {
    let what = format!("can't inspect pod {pod}");
    let all = client.sandboxes().await.map_err(|err| report(&what, &err))?;
    let found = of_pod(&all, pod);
    if found.is_empty() {
        return Err(no_pod(what, pod));
    }
    let doctor = doctor::new(session, &[], 0);
    let sight =
        Sight::look(&doctor.evidence).map_err(|err| Report::because(Exit::Files, what.as_str(), err))?;
    let tree = crate::tree::read(session, &crate::tree::Notes::default(), &what)?;
    let (mut documents, mut differ) = (Vec::new(), false);
    for sandbox in found {
        let status = client.sandbox(&sandbox.id).await.map_err(|err| report(&what, &err))?;
        let mut sides = Sides::compare_sandbox(&status, &sight, &tree);
        let compared = doctor.compare_container(&sight, &sandbox.id).await;
        sides.differences.extend(compared.findings.iter().map(|of| format!("{}: {}", of.what, of.why)));
        differ |= !sides.differences.is_empty();
        let not_compared: Vec<String> =
            compared.unchecked.into_iter().chain(sight.node.blind.clone()).collect();
        let runtime = pods::Pod::new(sandbox.clone(), Some(status));
        let view = Inspected { runtime, sides, not_compared };
        if session.json { documents.push(view) } else { print(&view.text(session.paint))? }
    }
    if session.json {
        print_json(&documents)?;
    }
    fail_with(differ.then_some(Exit::Found))
}

/// A sandbox with what the runtime, the cache and the kernel say about it.
struct Inspected {
    runtime: pods::Pod,
    sides: Sides,
    /// What was not compared, or not read, and why.
    not_compared: Vec<String>,
}

impl Serialize for Inspected {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let side = |column: fn(&sides::PropertyRow) -> &Vec<String>| {
            let of = self.sides.lines.iter().map(|line| (line.what, column(line)));
            of.collect::<BTreeMap<_, _>>()
        };
        let document = json!({
            "runtime": self.runtime,
            "cache": side(|line| &line.cache),
            "kernel": side(|line| &line.kernel),
            "differences": self.sides.differences,
            "notCompared": self.not_compared,
        });
        document.serialize(serializer)
    }
}

impl View for Inspected {
    fn text(&self, paint: Paint) -> String {
        let Inspected { runtime, sides, not_compared } = self;
        let lines: Vec<Vec<String>> = sides.lines.iter().flat_map(sides::PropertyRow::cells).collect();
        let differences = sides.differences.iter().map(|how| ("differs", paint.bad(how)));
        let notes: Vec<_> =
            differences.chain(not_compared.iter().map(|why| ("not compared", why.clone()))).collect();
        let table = table(&["", "RUNTIME", "CACHE", "KERNEL"], &lines, paint);
        let (title, notes) = (paint.bold(&runtime.title()), rows(&notes, paint));
        format!("{title}  {}  attempt {}\n{table}{notes}", runtime.id, runtime.attempt)
    }
}
