//! `cnimble cri inspect`: shows a pod as the runtime, the cache and the kernel see it.

mod sides;

use serde_json::{Value, json};

use cnimble_cri::Client;
use cnimble_liveness::Sight;

use super::{no_pod, of_pod, pods, report};
use crate::report::{Exit, Report};
use crate::style::{rows, table};
use crate::{Session, doctor, print, print_json};

use sides::Sides;

pub(super) async fn inspect(session: &Session, client: &Client, pod: &str) -> Result<(), Report> {
    let what = format!("can't inspect pod {pod}");
    let all = client.sandboxes().await.map_err(|err| report(&what, &err))?;
    let found = of_pod(&all, pod);
    if found.is_empty() {
        return Err(no_pod(what, pod));
    }
    let doctor = doctor::new(session, &[], 0);
    let failed =
        |err: cnimble_cni::Error| Report::new(Exit::Files, what.as_str()).row("why", err.to_string());
    let sight = Sight::look(&doctor.witnesses).map_err(failed)?;
    let tree = crate::tree::read(session, &crate::tree::Notes::default())?;
    let (mut documents, mut differ) = (Vec::new(), false);
    for sandbox in found {
        let status = client.sandbox(&sandbox.id).await.map_err(|err| report(&what, &err))?;
        let mut sides = Sides::of(&status, &sight, &tree);
        let compared = doctor.compare_container(&sight, &sandbox.id).await;
        sides.differences.extend(compared.findings.iter().map(|of| format!("{}: {}", of.what, of.why)));
        differ |= !sides.differences.is_empty();
        if session.json {
            documents.push(document(&sides, &pods::as_json(sandbox, Some(&status))));
            continue;
        }
        let headline =
            format!("{}  {}  attempt {}", session.paint.bold(&sandbox.pod()), sandbox.id, sandbox.attempt);
        let lines: Vec<Vec<String>> = sides.lines.iter().flat_map(sides::Line::cells).collect();
        let differences: Vec<_> =
            sides.differences.iter().map(|how| ("differs", session.paint.bad(how))).collect();
        print(&format!(
            "{headline}\n{}{}",
            table(&["", "RUNTIME", "CACHE", "KERNEL"], &lines, session.paint),
            rows(&differences, session.paint)
        ))?;
    }
    if session.json {
        print_json(&Value::Array(documents))?;
    }
    match differ {
        true => Err(Report::new(Exit::Found, "")),
        false => Ok(()),
    }
}

fn document(sides: &Sides, runtime: &Value) -> Value {
    let side = |column: fn(&sides::Line) -> &Vec<String>| {
        let of = sides.lines.iter().map(|line| (line.what.to_owned(), json!(column(line))));
        Value::Object(of.collect())
    };
    json!({
        "runtime": runtime,
        "cache": side(|line| &line.cache),
        "kernel": side(|line| &line.kernel),
        "differences": sides.differences,
    })
}
