//! The capabilities(7) that each verb needs. The tests remove one after the other, and also grant no others.
//! docs/SECURITY.md has the table, and each cell is tested.

use serde_json::json;

use cnimble_tests::{Call, Host, Place, Sample, announce, leases, missing, need, skip};

/// The capabilities that a network plugin could need.
const CANDIDATES: &[&str] = &[
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "net_admin",
    "net_bind_service",
    "net_raw",
    "setpcap",
    "sys_admin",
    "sys_module",
    "sys_resource",
];

const VERBS: &[&str] = &["ADD", "DEL", "CHECK", "GC", "STATUS"];

/// Returns the state of an attachment, on the host and in the pod.
fn traces(host: &Host, place: &Place<'_>) -> Vec<String> {
    let mut found = host.links();
    found.extend(leases(&host.data_dir()).into_iter().filter(|line| line.contains(&place.att.id)));
    let rules = host.nft("list ruleset");
    found.extend(rules.lines().filter(|line| line.contains("id: ")).map(str::to_owned));
    let links = place.pod.ip_json("link show");
    let inside = links.as_array().unwrap().iter();
    found.extend(inside.map(|link| format!("{} {} {}", link["flags"], link["mtu"], link["txqlen"])));
    found
}

/// The time limit in seconds for a verb that cannot reach a server. Otherwise the plugin would continue for minutes.
const SOON: &str = "15";

/// Returns true if a verb of the sample's plugin does its work with these privileges. Afterwards the state is restored.
fn works(sample: &Sample, host: &Host, verb: &str, privileges: &str) -> bool {
    // A lease daemon survives its verb, with the verb's privileges.
    let own = sample.is_served().then(Host::hasty);
    let host = own.as_ref().unwrap_or(host);
    let _server = sample.serve(host);
    let place = sample.place(host, "c1", 0);
    let clean = traces(host, &place);
    let full = |verb: &str| place.net.call(verb, &place.att, place.prev.as_ref());
    let with = |call: Call<'_>| {
        let bounding = format!("--bounding-set={privileges}");
        let limited = ["timeout", SOON, "setpriv", "--inh-caps=-all", &bounding];
        // The time limit applies only to verbs without a capability.
        let first = if sample.is_served() && privileges.starts_with("+all,-") { 0 } else { 2 };
        call.under(&limited[first..]).run().status == 0
    };
    let good = match verb {
        "ADD" => with(full("ADD")),
        "STATUS" => with(place.net.status_call()),
        _ => {
            let result = place.added();
            match verb {
                // GC must remove the state of this attachment.
                "GC" => {
                    let call = place.net.gc_call(Some(json!([{"containerID": "c2", "ifname": "eth0"}])));
                    // sbr, which isn't picky, looks there, too.
                    let looks_inside = sample.is_picky() || sample.plugin == "sbr";
                    with(if looks_inside { call.pinning(host.dir(), &[&place.pod]) } else { call })
                }
                "DEL" => {
                    with(place.net.call(verb, &place.att, Some(&result))) && traces(host, &place) == clean
                }
                _ => with(place.net.call(verb, &place.att, Some(&result))),
            }
        }
    };
    full("DEL").run().success();
    place.clear();
    good
}

/// docs/SECURITY.md, which has the table.
const PAGE: &str = include_str!("../../docs/SECURITY.md");

/// Returns the cells of a plugin's row in the table. Plugins with equal cells share a row.
fn cells(plugin: &str) -> Option<&'static str> {
    PAGE.lines().find_map(|line| {
        let (plugins, cells) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        let is_row =
            cells.split(" | ").count() == VERBS.len() && plugins.split(", ").any(|one| one == plugin);
        is_row.then_some(cells)
    })
}

/// Returns the table's row for a plugin's verbs. The test checks that row, or every candidate with `CNIMBLE_MEASURE`
/// set.
pub(super) fn told(plugin: &str) -> Option<Vec<Vec<&'static str>>> {
    let known = |cell: &'static str| cell.split(", ").filter(|one| CANDIDATES.contains(one)).collect();
    Some(cells(plugin)?.split(" | ").map(known).collect())
}

/// Returns a plugin's row of the table, and the errors in it.
fn row(sample: &Sample) -> (String, Vec<String>) {
    let (host, plugin) = (Host::hasty(), &sample.plugin);
    let (mut cells, mut wrong) = (Vec::new(), Vec::new());
    let told = told(plugin);
    for (number, verb) in VERBS.iter().enumerate() {
        assert!(works(sample, &host, verb, "+all"), "{plugin} {verb} doesn't work at all");
        // A capability outside the row isn't needed if the verb works with the row alone, which is tested below.
        let candidates = match &told {
            Some(cells) if std::env::var_os("CNIMBLE_MEASURE").is_none() => cells[number].clone(),
            _ => CANDIDATES.to_vec(),
        };
        let needed: Vec<&str> = candidates
            .into_iter()
            .filter(|one| !works(sample, &host, verb, &format!("+all,-{one}")))
            .collect();
        let only: String = needed.iter().map(|one| format!(",+{one}")).collect();
        // The pods of these tests are in /proc/PID/fd, which not every process may read.
        if !works(sample, &host, verb, &format!("-all,+sys_ptrace{only}")) {
            wrong.push(format!("{plugin} {verb} doesn't work with {needed:?} alone"));
        }
        cells.push(if needed.is_empty() { "none".to_owned() } else { needed.join(", ") });
    }
    let measured = cells.join(" | ");
    let row = format!("| {plugin} | {measured} |");
    if self::cells(plugin) != Some(&measured) {
        wrong.push(format!("docs/SECURITY.md lacks the row: {row}"));
    }
    (row, wrong)
}

/// Measures these plugins in parallel, and compares the results with the table.
fn measure(samples: &[&Sample]) {
    need!("ip", "nft", "dnsmasq");
    if let Some(why) = missing(&["setpriv"]) {
        skip!("{why}");
    }
    let rows: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = samples.iter().map(|sample| scope.spawn(|| row(sample))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut wrong = Vec::new();
    for (row, more) in rows {
        announce("NOTE", &row);
        wrong.extend(more);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_verb_needs_what_the_table_says() {
    measure(
        &Sample::all()
            .iter()
            .filter(|sample| sample.missing().is_none() || sample.is_served())
            .collect::<Vec<_>>(),
    );
}

/// Plugins that need kinds of interfaces which many kernels lack.
mod in_vm {
    use super::*;

    #[test]
    fn so_does_every_verb_that_needs_another_kernel() {
        cnimble_tests::in_vm!();
        measure(&Sample::all().iter().filter(|sample| sample.is_for_the_machine()).collect::<Vec<_>>());
    }
}
