//! `stats`: shows the counters of pods, live.

mod read;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::Instant;

use serde_json::{Value, json};

use cnimble_liveness::named::Records;
use cnimble_netlink::counters::Counters;
use cnimble_runtime::Cache;

use super::args::follow::Stats;
use super::output::{emit, unwritten};
use super::report::{Exit, Report};
use super::style::table;
use super::{Session, plain, target};
use read::Counted;

const WHAT: &str = "can't show pods' counters";

/// Returns the escape codes that clear the terminal.
fn clear() -> String {
    plain::code("[H") + &plain::code("[2J")
}

/// Shows the counters once, or repeatedly until the reader closes the pipe or a signal ends the process.
///
/// # Errors
/// Fails if no attachment has the given name at the start.
pub(super) fn stats(session: &Session, given: &Stats) -> Result<(), Report> {
    let caches = session.caches();
    let container = match &given.whose {
        Some(whose) => recorded(&caches, whose)?,
        None => None,
    };
    let mut before: Option<(Instant, HashMap<String, Counters>)> = None;
    loop {
        let mut all = read::read(&caches).map_err(|why| Report::because(Exit::Files, WHAT, why))?;
        let now = Instant::now();
        if let Some(whose) = &given.whose {
            all.retain(|counted| match &container {
                Some(id) => counted.owner.attachment.container_id == *id,
                // A link's alias may name a pod that no record has.
                None => counted.owner.attachment.container_id.starts_with(whose),
            });
            if all.is_empty() && before.is_none() {
                return Err(Report::because(
                    Exit::Usage,
                    WHAT,
                    format!("there is no pod and no container {whose}"),
                )
                .hint("`cnimble ls` lists them"));
            }
        }
        let rates: Vec<Option<[f64; 2]>> = all
            .iter()
            .map(|counted| {
                let (then, old) = before.as_ref()?;
                let seconds = now.duration_since(*then).as_secs_f64();
                compute_rates(old.get(&counted.owner.tag())?, &counted.counters?, seconds)
            })
            .collect();
        let shown = if session.json {
            plain::json(&json!({
                "time": jiff::Timestamp::now().to_string(),
                "attachments": all.iter().zip(&rates).map(|(of, rates)| object(of, *rates)).collect::<Value>(),
            })
            .to_string())
                + "\n"
        } else {
            lines(session, &all, &rates)
        };
        let clear = if given.once || !session.human() { String::new() } else { clear() };
        match emit(&format!("{clear}{shown}")) {
            Err(err) if err.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(err) => return Err(unwritten(&err)),
            Ok(()) if given.once => return Ok(()),
            Ok(()) => {}
        }
        let counters = all.into_iter().filter_map(|of| Some((of.owner.tag(), of.counters?)));
        before = Some((now, counters.collect()));
        std::thread::sleep(given.interval);
    }
}

/// Returns the bytes received and sent in each second. Returns `None` if a counter fell, because the counters of a
/// recreated link begin at 0.
fn compute_rates(old: &Counters, new: &Counters, seconds: f64) -> Option<[f64; 2]> {
    let received = new.rx_bytes.checked_sub(old.rx_bytes)?;
    let sent = new.tx_bytes.checked_sub(old.tx_bytes)?;
    Some([received as f64 / seconds, sent as f64 / seconds])
}

/// Returns the ID of the container that is recorded under this name, or `None`. It fails if there are several.
fn recorded(caches: &[Cache], whose: &str) -> Result<Option<String>, Report> {
    let records = Records::read(caches, None).map_err(|err| Report::because(Exit::Files, WHAT, err))?;
    let found = records
        .container(whose)
        .map_err(|unnamed| target::unnamed(WHAT, whose, unnamed, "").hint("`cnimble ls` lists the pods"))?;
    Ok(found.map(str::to_owned))
}

/// Returns the counters as a table.
fn lines(session: &Session, all: &[Counted], rates: &[Option<[f64; 2]>]) -> String {
    let lines: Vec<Vec<String>> = all.iter().zip(rates).map(|(of, rates)| row(of, *rates)).collect();
    let headings = [
        "POD", "NETWORK", "IF", "HOST", "RX/S", "TX/S", "RX", "TX", "RX-PKT", "TX-PKT", "RX-DROP", "TX-DROP",
        "RX-LIMIT", "TX-LIMIT",
    ];
    table(&headings, &lines, session.paint)
}

/// Returns the cells of an attachment's row. A number that is unknown is a dash.
fn row(of: &Counted, rates: Option<[f64; 2]>) -> Vec<String> {
    let counters = of.counters.as_ref();
    let [received_drops, sent_drops] = of.limited;
    let cells = [
        Some(of.title.clone()),
        Some(of.owner.network.clone()),
        Some(of.owner.attachment.ifname.clone()),
        of.host_link.clone(),
        rates.map(|[rx, _]| format!("{}/s", scaled(rx))),
        rates.map(|[_, tx]| format!("{}/s", scaled(tx))),
        counters.map(|of| scaled(of.rx_bytes as f64)),
        counters.map(|of| scaled(of.tx_bytes as f64)),
        counters.map(|of| of.rx_packets.to_string()),
        counters.map(|of| of.tx_packets.to_string()),
        counters.map(|of| of.rx_dropped.to_string()),
        counters.map(|of| of.tx_dropped.to_string()),
        received_drops.map(|drops| drops.to_string()),
        sent_drops.map(|drops| drops.to_string()),
    ];
    cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())).to_vec()
}

/// Returns the counters of an attachment as JSON.
fn object(of: &Counted, rates: Option<[f64; 2]>) -> Value {
    let counters = of.counters.map(|of| {
        json!({
            "rxBytes": of.rx_bytes, "rxPackets": of.rx_packets, "rxErrors": of.rx_errors, "rxDropped": of.rx_dropped,
            "txBytes": of.tx_bytes, "txPackets": of.tx_packets, "txErrors": of.tx_errors, "txDropped": of.tx_dropped,
        })
    });
    let [rx, tx] = of.limited;
    json!({
        "network": of.owner.network,
        "containerID": of.owner.attachment.container_id,
        "ifname": of.owner.attachment.ifname,
        "pod": of.pod,
        "hostLink": of.host_link,
        "counters": counters,
        "limitDrops": {"rx": rx, "tx": tx},
        "bytesPerSecond": rates.map(|[rx, tx]| json!({"rx": rx.round(), "tx": tx.round()})),
    })
}

/// Returns a number of bytes with its unit, and one decimal from KiB on.
fn scaled(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut rest, mut unit) = (bytes, "EiB");
    for name in UNITS {
        if rest < 1000.0 {
            unit = name;
            break;
        }
        rest /= 1024.0;
    }
    match unit {
        "B" => format!("{rest:.0} B"),
        unit => format!("{rest:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = |bytes: f64| scaled(bytes);
        assert_eq!([shown(0.0), shown(999.0), shown(1000.0)], ["0 B", "999 B", "1.0 KiB"]);
        assert_eq!([shown(1536.0 * 1024.0), shown(u64::MAX as f64)], ["1.5 MiB", "16.0 EiB"]);
    }
}
