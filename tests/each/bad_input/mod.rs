//! Every parameter and key with every kind of wrong value. The answer is one CNI error with the specification's code,
//! exit status 1 and exactly one JSON object. Nothing changes on the host.
//!
//! A [`Row`] is one wrong call and the expected answer. The modules write rows into the [`Table`], by the kind of
//! error. The only test makes all calls, in parallel on several hosts.

mod bridge;
mod document;
mod environment;
mod host_local;
mod samples;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use cnimble_tests::{Call, Host, Pod, Sample, Snapshot, announce, configs, need, skip};

/// A wrong call and the expected answer.
struct Row {
    name: String,
    verb: &'static str,
    plugin: &'static str,
    change: Change,
    code: u64,
    /// A text in the message or the details, compared without regard to case.
    says: String,
}

/// The difference between the call and one that would succeed.
enum Change {
    /// A variable has another value, or is missing with `None`.
    Env(&'static str, Option<Vec<u8>>),
    /// The input on stdin is replaced.
    Stdin(Vec<u8>),
    /// These keys of the configuration have other values.
    Keys(Vec<(String, Value)>),
    /// The key is missing.
    Without(&'static str),
    /// The configuration is replaced.
    Config(Value),
}

#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn row(&mut self, name: String, change: Change, code: u64, says: &str) -> &mut Row {
        self.0.push(Row { name, verb: "ADD", plugin: "bridge", change, code, says: says.to_lowercase() });
        self.0.last_mut().unwrap()
    }

    fn env(&mut self, key: &'static str, value: &str, code: u64, says: &str) -> &mut Row {
        let change = Change::Env(key, Some(value.into()));
        self.row(format!("{key}={value:.40}"), change, code, says)
    }

    fn no_env(&mut self, key: &'static str) -> &mut Row {
        self.row(format!("no {key}"), Change::Env(key, None), 4, key)
    }

    fn stdin(&mut self, bytes: &[u8], code: u64, says: &str) -> &mut Row {
        let name = format!("stdin {:.40}", String::from_utf8_lossy(bytes));
        self.row(name, Change::Stdin(bytes.into()), code, says)
    }

    fn key(&mut self, pointer: &str, value: Value, code: u64, says: &str) -> &mut Row {
        let name = format!("{pointer} = {value}");
        self.row(name, Change::Keys(vec![(pointer.into(), value)]), code, says)
    }

    /// Adds a row like [`key`](Self::key), for host-local called alone.
    fn ipam(&mut self, pointer: &str, value: Value, code: u64, says: &str) -> &mut Row {
        self.key(pointer, value, code, says).of("host-local")
    }

    /// Adds a row with an ADD of host-local with this list of range sets.
    fn ranges(&mut self, ranges: Value, says: &str) -> &mut Row {
        self.ipam("/ipam/ranges", ranges, 7, says)
    }
}

impl Row {
    fn of(&mut self, plugin: &'static str) -> &mut Row {
        self.plugin = plugin;
        self
    }

    fn on(&mut self, verb: &'static str) -> &mut Row {
        self.verb = verb;
        self
    }

    fn and(&mut self, pointer: &str, value: Value) -> &mut Row {
        let Change::Keys(keys) = &mut self.change else {
            panic!("only for keys");
        };
        keys.push((pointer.into(), value));
        self
    }
}

/// Returns the call of a row, on a host with its pod.
fn call<'h>(host: &'h Host, pod: &Pod, row: &Row) -> Call<'h> {
    let mut config = match row.plugin {
        "bridge" => configs::v4(host),
        "host-local" => configs::ipam(host),
        plugin => Sample::of(plugin).config(host),
    };
    if row.verb == "CHECK" {
        config["prevResult"] = json!({
            "cniVersion": configs::newest(),
            "interfaces": [{"name": "br0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": pod.path()}],
        });
    }
    let mut call = host.call(row.plugin).command(row.verb).attachment("bad", pod.path(), "eth0");
    match &row.change {
        Change::Env(key, Some(value)) => call = call.env(key, OsStr::from_bytes(value)),
        Change::Env(key, None) => call = call.unset(key),
        Change::Stdin(bytes) => return call.stdin(bytes.clone()),
        Change::Keys(keys) => {
            for (pointer, value) in keys {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                config.pointer_mut(parent).unwrap()[key] = value.clone();
            }
        }
        Change::Without(key) => {
            config.as_object_mut().unwrap().remove(*key);
        }
        Change::Config(whole) => config = whole.clone(),
    }
    call.config(&config)
}

/// Returns the error in the answer, or `None` if it is correct.
fn judge(row: &Row, call: &Call<'_>) -> Option<String> {
    let outcome = call.run();
    let error = match outcome.try_error() {
        Ok(error) => error,
        Err(why) => return Some(why),
    };
    let all = error.all().to_lowercase();
    if error.code != row.code {
        return Some(format!("code {} instead of {}: {}", error.code, row.code, error.all()));
    }
    if !all.contains(&row.says) {
        return Some(format!("doesn't say \"{}\": {}", row.says, error.all()));
    }
    // go-cni takes these words for "already removed".
    if all.contains("not found") || (row.verb == "DEL" && all.contains("no such file or directory")) {
        return Some(format!("says what runtimes swallow: {}", error.all()));
    }
    if !outcome.stderr.is_empty() {
        return Some(format!("logs without being asked: {}", outcome.stderr));
    }
    None
}

/// Returns a host with the requirements of the samples, and its state.
fn fresh() -> (Host, Snapshot) {
    let host = Host::new();
    Sample::all().iter().for_each(|sample| sample.prepare(&host));
    let before = Snapshot::settled(&host);
    (host, before)
}

/// The number of calls between two snapshots, which take longer than the calls.
const BETWEEN_SNAPSHOTS: usize = 8;

#[test]
fn one_error_and_nothing_changed() {
    need!("ip", "nft");
    if configs::newest() < "1.1.0" {
        skip!("the plugins know {} at most", configs::newest());
    }
    let mut table = Table::default();
    environment::variables(&mut table);
    document::standard_input(&mut table);
    document::common_keys(&mut table);
    bridge::keys(&mut table);
    host_local::keys(&mut table);
    samples::types(&mut table);
    let rows = &table.0;
    // Failed rows are reported in one list at the end.
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers = 4;
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                scope.spawn(move || {
                    let pod = Pod::new();
                    let pod_before = Snapshot::of_ns(&pod);
                    let mut failures = Vec::new();
                    let mut host = fresh();
                    let name = |row: &Row| format!("{} {}, {}", row.plugin, row.verb, row.name);
                    let own: Vec<&Row> = rows.iter().skip(worker).step_by(workers).collect();
                    for rows in own.chunks(BETWEEN_SNAPSHOTS) {
                        let wrong = |row: &Row| judge(row, &call(&host.0, &pod, row));
                        failures.extend(
                            rows.iter().filter_map(|row| Some(format!("{}: {}", name(row), wrong(row)?))),
                        );
                        let diff =
                            host.1.diff(&Snapshot::of(&host.0)) + &pod_before.diff(&Snapshot::of_ns(&pod));
                        if !diff.is_empty() {
                            let names: Vec<String> = rows.iter().map(|row| name(row)).collect();
                            failures
                                .push(format!("one of these changes the host: {}\n{diff}", names.join("; ")));
                            // The next rows start on a clean host.
                            host = fresh();
                        }
                    }
                    failures
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    announce("NOTE", &format!("{} rows", rows.len()));
    assert!(rows.len() >= 150, "{} rows", rows.len());
    assert!(failures.is_empty(), "{} of {} rows:\n{}", failures.len(), rows.len(), failures.join("\n"));
}
