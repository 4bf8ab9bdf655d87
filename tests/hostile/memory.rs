//! 256 MiB are enough for every plugin, with any input. It succeeds, or prints one error with its code. If the memory
//! ran out first, the plugin would die without an answer.

use std::fmt::Write;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Call, Host, Outcome, Pod, Role, Sample, announce, need};

/// The same as `ulimit -v 262144`.
const LIMIT: [&str; 2] = ["prlimit", "--as=268435456"];
/// A little less than the maximum size of stdin.
const SIZE: usize = (16 << 20) - 4096;
/// The shared code is tested with every fifth plugin.
const TURNS: usize = 5;

fn repeat(start: &str, part: &str, end: &str) -> String {
    format!("{start}{}{end}", part.repeat((SIZE - start.len() - end.len()) / part.len()))
}

fn many_keys() -> String {
    let mut keys = String::from("{");
    for number in 0_u32.. {
        if keys.len() > SIZE - 4096 {
            break;
        }
        let _ = write!(keys, "\"{number:x}\":0,");
    }
    keys + "\"\":0}"
}

/// Returns JSON values that need much memory, and the expected error code when the plugin doesn't use the value.
fn shapes() -> Vec<(&'static str, String, u64)> {
    vec![
        ("one text", repeat("\"", "x", "\""), 6),
        ("escapes", repeat("\"", "\\u0041", "\""), 0),
        ("numbers", repeat("[", "0,", "0]"), 6),
        ("empty lists", repeat("[", "[],", "0]"), 6),
        ("empty objects", repeat("[", "{},", "0]"), 6),
        ("short texts", repeat("[", "\"\",", "0]"), 6),
        ("objects of one key", repeat("[", "{\"\":0},", "0]"), 6),
        ("deep objects", repeat("[", &format!("{}0{},", "{\"\":".repeat(60), "}".repeat(60)), "0]"), 6),
        ("deep lists", repeat("[", &format!("{}0{},", "[".repeat(60), "]".repeat(60)), "0]"), 6),
        ("a million keys", many_keys(), 6),
        ("one key again and again", repeat("{", "\"a\":{\"\":0},", "\"a\":0}"), 6),
        ("brackets", repeat("", "[", ""), 6),
        ("digits", repeat("", "9", ""), 6),
    ]
}

/// Returns a call with little memory, for a pod that does not exist.
fn call<'h>(host: &'h Host, sample: &Sample, verb: &str) -> Call<'h> {
    let call = host.call(&sample.plugin).command(verb);
    call.attachment("c1", "/run/netns/nowhere", &sample.ifname).under(&LIMIT)
}

/// Returns the code of the single error, or 0.
#[track_caller]
fn code(outcome: &Outcome, what: &str) -> u64 {
    if outcome.status == 0 {
        return 0;
    }
    let error = outcome.try_error().unwrap_or_else(|why| {
        panic!("{what}: status {}: {why}: {:.200}{:.200}", outcome.status, outcome.text(), outcome.stderr)
    });
    assert!(outcome.text().len() < 1 << 18, "{what}: an error of {} bytes", outcome.text().len());
    error.code
}

#[test]
fn no_document_takes_much_memory() {
    need!("prlimit");
    let host = Host::new();
    for (at, (what, shape, expected)) in shapes().into_iter().enumerate() {
        // All plugins use the same reader. bridge gets each shape, and each of the others gets some of them.
        let takes =
            |(number, sample): &(usize, &Sample)| sample.plugin == "bridge" || (number + at) % TURNS == 0;
        for (_, sample) in Sample::all().iter().enumerate().filter(takes) {
            let config = sample.config(&host).to_string();
            let text = format!("{},\"x\":{shape}}}", config.strip_suffix('}').unwrap());
            let what = format!("{}: {what}", sample.plugin);
            let outcome = call(&host, sample, "GC").stdin(text).run();
            assert_eq!(code(&outcome, &what), expected, "{what}: {:.300}", outcome.text());
        }
    }
}

/// Collects the places in a configuration that hold a value.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                places(value, &format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                places(value, &format!("{path}/{index}"), found);
            }
        }
        _ => {}
    }
    if !path.is_empty() {
        found.push(path.to_owned());
    }
}

/// Returns as many copies as the reader accepts: a long text, or a list that repeats the first element.
fn swollen(value: &Value) -> Option<Value> {
    match value {
        // A character with a six-character escape.
        Value::String(_) => Some("<".repeat(4_000_000).into()),
        Value::Array(list) => {
            let first = list.first()?;
            let count = (60_000 / (1 + first.as_object().map_or(0, |map| map.len() / 3))).max(1);
            Some(std::iter::repeat_n(first.clone(), count).collect())
        }
        _ => None,
    }
}

/// Tests every text and every list of every sample, in turns.
#[test]
fn no_key_takes_much_memory() {
    need!("prlimit");
    let host = Host::new();
    let mut calls = 0;
    for sample in Sample::all() {
        let config = sample.config(&host);
        let mut found = Vec::new();
        places(&config, "", &mut found);
        for (number, place) in found.into_iter().enumerate() {
            let Some(value) = swollen(config.pointer(&place).unwrap()) else { continue };
            let mut config = config.clone();
            *config.pointer_mut(&place).unwrap() = value;
            let text = config.to_string();
            // GC reads the same keys, except for those that it ignores.
            let verbs = if number.is_multiple_of(TURNS) { &["ADD", "GC"][..] } else { &["ADD"] };
            for verb in verbs {
                let outcome = call(&host, sample, verb).stdin(text.clone()).run();
                code(&outcome, &format!("{}: {verb} with much {place}", sample.plugin));
                calls += 1;
            }
        }
    }
    announce("NOTE", &format!("{calls} calls"));
}

/// Results of every allowed size, which a chained plugin has to pass on.
#[test]
fn a_large_result_is_handed_on() {
    need!("ip", "prlimit");
    let host = Host::new();
    let pod = Pod::new();
    let route = |n: u32| json!({"dst": format!("10.{}.{}.0/24", n >> 8 & 255, n & 255), "gw": "10.1.2.1"});
    let routes: Value = (0..60_000).map(route).collect();
    let cases = [
        ("60,000 routes", "/routes", routes, 0),
        ("short texts", "/dns/search", std::iter::repeat_n("a", 700_000).collect(), 0),
        ("a long text", "/dns/domain", "<".repeat(4_000_000).into(), 0),
        ("a text that is too long", "/dns/domain", "<".repeat(5_000_000).into(), 6),
    ];
    for (what, place, value, expected) in cases {
        let mut prev = json!({
            "cniVersion": "1.0.0", "interfaces": [{"name": "lo", "sandbox": pod.path()}], "ips": [],
            "routes": [], "dns": {"search": [], "domain": ""},
        });
        *prev.pointer_mut(place).unwrap() = value;
        let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "tuning", "dataDir": host.dir(),
            "prevResult": prev});
        for verb in ["ADD", "CHECK", "DEL"] {
            let call = host.call("tuning").command(verb).attachment("c1", pod.path(), "lo").under(&LIMIT);
            let outcome = call.config(&config).run();
            assert_eq!(code(&outcome, what), expected, "{what}: {:.300}", outcome.text());
            if verb == "ADD" && expected == 0 {
                assert_eq!(outcome.result().pointer(place), prev.pointer(place), "{what}");
            }
        }
    }
}

/// GC on a node with more attachments than any node has.
#[test]
fn gc_of_a_hundred_thousand_attachments_works() {
    need!("ip", "prlimit");
    let attachment = |n: u32| format!("{{\"containerID\":\"{n:064x}\",\"ifname\":\"eth0\"}}");
    let dead: Vec<String> = (0..100_000).map(attachment).collect();
    let dead = dead.join(",");
    for sample in Sample::all().iter().filter(|sample| !sample.is_picky() && !sample.is_apart()) {
        let host = Host::hasty();
        let place = sample.place(&host, "c1", 0);
        place.added();
        let config = place.net.config.to_string();
        let config = config.strip_suffix('}').unwrap();
        let with = |valid: String| format!("{config},\"cni.dev/valid-attachments\":[{valid}]}}");
        let gc = |valid: String| place.net.gc_call(None).stdin(with(valid)).under(&LIMIT).run();
        let outcome = gc(format!("{dead},{}", place.att.listed()));
        assert_eq!(code(&outcome, &sample.plugin), 0, "{}: {:.500}", sample.plugin, outcome.text());
        if sample.role == Role::Main {
            assert!(place.pod.links().contains(&sample.ifname), "{}: a valid one went", sample.plugin);
        }
        // As many as fit into stdin. bridge passes them to host-local.
        if sample.plugin == "bridge" {
            let short = "{\"containerID\":\"a\",\"ifname\":\"e\"},".repeat(500_000);
            let outcome = gc(format!("{short}{}", place.att.listed()));
            assert_eq!(code(&outcome, "500,000"), 0, "{:.500}", outcome.text());
        }
        // Without its entry, the sample's own state is removed.
        gc(dead.clone()).success();
        place.net.call("DEL", &place.att, place.prev.as_ref()).run().success();
        place.clear();
    }
}

/// The answer of a delegate is read with the same limits.
#[test]
fn no_answer_of_a_delegate_takes_much_memory() {
    need!("ip", "prlimit");
    let host = Host::hasty();
    let pod = Pod::new();
    let bin = host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for (number, (what, shape, _)) in shapes().into_iter().enumerate() {
        // A key that isn't read, and one that is.
        for (key, status) in [("x", 0), [("dns", 0), ("ips", 0), ("msg", 1)][number % 3]] {
            let name = format!("ipam{number}{key}{status}");
            let answer = host.dir().join(&name);
            std::fs::write(&answer, format!("{{\"cniVersion\":\"1.0.0\",\"code\":7,\"{key}\":{shape}}}"))
                .unwrap();
            let line = format!("#!/bin/sh\ncat >/dev/null; cat {}; exit {status}\n", answer.display());
            cnimble_tests::script(&bin.join(&name), &line);
            let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "bridge", "bridge": "br0",
                "ipam": {"type": name}});
            let att = Attachment::new("c1", &pod);
            let call = host.call("bridge").command("ADD").attachment(&att.id, pod.path(), "eth0");
            let outcome = call.config(&config).env("CNI_PATH", &bin).under(&LIMIT).run();
            let code = code(&outcome, &format!("{what} in {key}"));
            // An empty result has no address for a bridge. An error without a text is still an error.
            assert!([6, 7, 104].contains(&code), "{what} in {key}: {:.300}", outcome.text());
            assert_eq!(pod.links(), ["lo"], "{what} in {key}");
            std::fs::remove_file(answer).unwrap();
        }
    }
}
