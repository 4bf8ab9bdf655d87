//! Tests the interfaces for a service manager, a monitoring system and a tracer.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::{PATIENCE, need, script, wait_until};

use super::{Cluster, bridge};

#[test]
fn metrics_are_openmetrics() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all((0..3).map(|number| format!("web-{number}")));
    let run = cluster.start("");
    run.wait_for(3);
    let lines = [
        "# TYPE cnimble_plugin_executions counter",
        "cnimble_plugin_executions_total{plugin=\"bridge\",verb=\"ADD\"} 3",
        "cnimble_plugin_executions_total{plugin=\"portmap\",verb=\"ADD\"} 3",
        "cnimble_plugin_executions_total{plugin=\"loopback\",verb=\"ADD\"} 3",
        "# UNIT cnimble_plugin_duration_seconds seconds",
        "cnimble_plugin_duration_seconds_count{plugin=\"bridge\",verb=\"ADD\"} 3",
        "cnimble_pod_operations_total{operation=\"up\"} 3",
        "cnimble_pods{phase=\"Ready\"} 3",
        "cnimble_pods{phase=\"Failed\"} 0",
        "cnimble_manifest_problems 0",
        "cnimble_leases_used{network=\"pods\",range=\"10.7.0.1-10.7.0.254\"} 3",
        "cnimble_leases_free{network=\"pods\",range=\"10.7.0.1-10.7.0.254\"} 250",
    ];
    let missing = |text: &str| -> Vec<&str> {
        let is_there = |line: &&str| text.lines().any(|other| other.trim_end_matches(".0") == *line);
        lines.into_iter().filter(|line| !is_there(line)).collect()
    };
    // A pod can be reported as Ready a moment before its work is counted.
    wait_until(PATIENCE, || run.page("/metrics").is_some_and(|(_, text)| missing(&text).is_empty()));
    let (status, text) = run.page("/metrics").unwrap();
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(missing(&text), [""; 0], "{text}");
    assert_eq!(run.page("/nothing").unwrap().0, "HTTP/1.1 404 Not Found");
    run.stop();
    assert!(!cluster.path("run/cnimble.sock").exists(), "the socket goes with us");
}

#[test]
fn errors_are_counted_by_plugin_verb_and_code() {
    need!("ip", "nft", "bash");
    let cluster = Cluster::new(&bridge("10.7.0.0/30"));
    cluster.put_all(["a", "b"].map(str::to_owned).into_iter());
    let run = cluster.start("--listen 127.0.0.1:9907");
    // The port is on the node's own loopback, so the request comes from the node.
    let request = r#"exec 3<>/dev/tcp/127.0.0.1/9907; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3"#;
    cluster.place("ask", request);
    let page = || cluster.node.run(&format!("bash {} 2>&1 || true", cluster.path("ask").display())).text();
    let counted = || {
        page().lines().any(|line| {
            line.starts_with("cnimble_plugin_errors_total{plugin=\"bridge\",verb=\"ADD\",code=\"")
        })
    };
    assert!(wait_until(PATIENCE, counted), "{}\n{}", page(), cluster.log());
    // The pod's failure comes later, after the work of the plugins is undone.
    let failed = "cnimble_pod_failures_total{operation=\"up\",reason=\"FailedCreatePodSandBox\"}";
    assert!(wait_until(PATIENCE, || page().contains(failed)), "{}\n{}", page(), cluster.log());
    run.stop();
}

#[test]
fn a_service_manager_is_told() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all(["web".to_owned()].into_iter());
    let socket = cluster.path("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut heard = String::new();
    // Waits for a message after the first `from` bytes. Returns its end.
    let mut hear = |from: usize, what: &str| {
        let mut end = None;
        wait_until(PATIENCE, || {
            let mut buffer = [0; 4096];
            if let Ok(length) = manager.recv(&mut buffer) {
                heard.push_str(&String::from_utf8_lossy(&buffer[..length]));
                heard.push('\n');
            }
            end = heard[from..].find(what).map(|at| from + at + what.len());
            end.is_some()
        });
        end.unwrap_or_else(|| panic!("{what} after {from} of: {heard}"))
    };
    let env = format!("NOTIFY_SOCKET={} WATCHDOG_USEC=3000000", socket.display());
    let args = format!("--manifests {}", cluster.path("manifests").display());
    let run = cluster.start_with(&env, &args);
    // The order is undefined, because pods are managed from the start.
    hear(0, "READY=1");
    hear(0, "STATUS=1 pod ready, 0 not");
    let here = hear(0, "WATCHDOG=1");
    // SIGHUP reads everything again.
    cluster.place("net.d/10-pods.conflist", "{");
    run.signal("HUP");
    let reloading = hear(here, "RELOADING=1\nMONOTONIC_USEC=");
    let ready = hear(reloading, "READY=1");
    assert!(run.status()["problems"].to_string().contains("10-pods.conflist"), "the network was read again");
    run.signal("TERM");
    hear(ready, "STOPPING=1");
    run.wait_until_gone();
}

/// A plugin that records its trace variables.
const TRACER: &str = r#"#!/bin/sh
config=$(cat)
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'; exit ;;
ADD) ;;
*) exit 0 ;;
esac
env | grep -E '^(TRACEPARENT|TRACESTATE|BAGGAGE)=' | sort | tr '\n' ' ' >>"$(dirname "$0")/traces"
echo >>"$(dirname "$0")/traces"
echo "$config" | jq .prevResult
"#;

#[test]
fn plugins_get_the_callers_trace_context_and_no_other() {
    need!("ip", "nft", "jq");
    let mut network = bridge("10.7.0.0/24");
    let tracers = [json!({"type": "tracer"}), json!({"type": "tracer"})];
    network["plugins"].as_array_mut().unwrap().extend(tracers);
    let cluster = Cluster::new(&network);
    fs::create_dir(cluster.path("bin")).unwrap();
    script(&cluster.path("bin/tracer"), TRACER);
    // Each of the two plugins writes one line.
    let traces = || fs::read_to_string(cluster.path("bin/traces")).unwrap();
    let args = format!("--manifests {}", cluster.path("manifests").display());
    cluster.put_all(["a".to_owned()].into_iter());
    let run = cluster.start_with("env --unset=TRACEPARENT --unset=TRACESTATE --unset=BAGGAGE", &args);
    run.wait_for(1);
    run.stop();
    assert_eq!(traces(), "\n\n", "no spans are exported, so none are made");

    fs::remove_file(cluster.path("bin/traces")).unwrap();
    cluster.put_all(["b".to_owned()].into_iter());
    let given = "BAGGAGE=user=me TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 TRACESTATE=a=b,c=d";
    let run = cluster.start_with(given, &args);
    run.wait_for(2);
    run.stop();
    assert_eq!(traces(), format!("{given} \n").repeat(2));
}

#[test]
fn logs_may_be_json() {
    need!("ip", "nft");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put_all(["web".to_owned()].into_iter());
    cluster.place("manifests/bad.json", "{");
    let run = cluster.start("--log-format json");
    run.wait_for(1);
    run.stop();
    let lines: Vec<Value> =
        cluster.log().lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let ready = lines.iter().find(|line| line["phase"] == "Ready").expect("word of the pod");
    assert_eq!((&ready["level"], &ready["pod"]), (&json!("info"), &json!("default/web")), "{ready}");
    assert!(ready["ips"].as_str().unwrap().starts_with("10.7.0."), "{ready}");
    assert!(lines.iter().any(|line| line["level"] == "warning"), "{lines:?}");
    assert!(lines.iter().all(|line| line["time"].as_str().unwrap().contains('T')));
}
