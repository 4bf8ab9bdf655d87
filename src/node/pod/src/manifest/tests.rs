use std::time::{Duration, SystemTime};

use super::*;
use crate::network::{Bandwidth, Protocol};

const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c}]}\n";

fn origin() -> Origin {
    Origin::File("/p/a.yaml".into())
}

fn parse(text: &str) -> Result<Vec<Manifest>, ManifestError> {
    Manifest::parse(text.as_bytes(), &origin(), &Defaults::default())
}

fn one(text: &str) -> Manifest {
    parse(text).unwrap().remove(0)
}

/// Lines are `KEY: VALUE` in flow style.
fn with(meta: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n{meta}spec:\n  containers: [{{name: c}}]\n{spec}"
    )
}

#[test]
fn static_pods_get_the_kubelets_defaults() {
    let pod = one(WEB);
    assert_eq!(pod.id, PodId::new("default", "web"));
    assert_eq!((pod.uid.len(), pod.facts.annotations[HASH_ANNOTATION].as_str()), (32, pod.uid.as_str()));
    // The text may change without the pod changing; the pod, the place and the node may not.
    assert_eq!(one(&format!("# comment\n{WEB}")).uid, pod.uid);
    assert_ne!(one(&WEB.replace("name: c", "name: d")).uid, pod.uid);
    let elsewhere = Manifest::parse(WEB.as_bytes(), &Origin::File("/p/b".into()), &Defaults::default());
    assert_ne!(elsewhere.unwrap()[0].uid, pod.uid);
    let node = Defaults { node: "Node1".to_owned(), suffix: true };
    let named = Manifest::parse(WEB.as_bytes(), &origin(), &node).unwrap().remove(0);
    assert_eq!(named.id.name, "web-node1");
    assert_ne!(named.uid, pod.uid);
    assert_eq!(one(&with("  uid: mine\n  namespace: kube-system\n", "")).uid, "mine");
}

#[test]
fn documents_lists_and_json_are_read() {
    let list = r#"{"kind":"PodList","apiVersion":"v1","items":[
        {"metadata":{"name":"a\ud83d\ude00"}, "spec":{"containers":[]}},
        {"metadata":{"name":"b"}, "spec":{"containers":[]}}, {"kind":"Service","apiVersion":"v1"}]}"#;
    let Parsed { pods, errors } = Manifest::parse_each(list.as_bytes(), &origin(), &Defaults::default());
    assert_eq!(pods[0].id.name, "b");
    assert_eq!(errors.len(), 2);
    assert!(errors[0].to_string().contains("items[0].metadata.name: \"a😀\" may hold"), "{}", errors[0]);
    assert!(errors[1].to_string().contains("got kind \"Service\""), "{}", errors[1]);

    let many = format!("{WEB}---\n---\n{}", WEB.replace("web", "db"));
    assert_eq!(parse(&many).unwrap().len(), 2);
    let list = "apiVersion: v1\nkind: List\nitems: []\n";
    assert_eq!(parse(list).unwrap(), []);
    // YAML that looks like JSON.
    assert_eq!(one("{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {}} # fine").id.name, "web");
}

#[test]
fn one_bad_document_leaves_the_others() {
    let text = format!("{WEB}---\n{}---\n{}", WEB.replace("web", "Bad"), WEB.replace("web", "db"));
    let Parsed { pods, errors } = Manifest::parse_each(text.as_bytes(), &origin(), &Defaults::default());
    assert_eq!(pods.iter().map(|pod| pod.id.name.as_str()).collect::<Vec<_>>(), ["web", "db"]);
    assert_eq!((errors.len(), errors[0].position), (1, Some((8, 18))));
}

#[test]
fn every_bad_field_is_named_with_its_line() {
    let port = |port: &str| {
        format!("  initContainers:\n  - name: i\n    restartPolicy: Always\n    ports: [{port}]\n")
    };
    for (text, message) in [
        (with("  namespace: a.b\n", ""), "5:14: pod a.b/web: metadata.namespace: \"a.b\" may hold"),
        (with("  uid: ../x\n", ""), "5:8: pod default/web: metadata.uid"),
        (with("  labels: {a: -x}\n", ""), "5:15: pod default/web: metadata.labels.a: \"-x\" must"),
        (
            with("  annotations: {a: yes}\n", ""),
            "5:20: pod default/web: metadata.annotations.a: invalid type: boolean `true`, expected a string",
        ),
        (with("  annotations: {kubernetes.io/ingress-bandwidth: 1}\n", ""), "invalid type: integer"),
        (
            with("  annotations: {kubernetes.io/ingress-bandwidth: '1'}\n", ""),
            "metadata.annotations[kubernetes.io/ingress-bandwidth]: \"1\"",
        ),
        (
            with("", &port("{containerPort: 0}")),
            "10:29: pod default/web: spec.initContainers[0].ports[0].containerPort: 0 is not between",
        ),
        (with("", &port("{containerPort: 1, hostPort: 65536}")), "ports[0].hostPort: 65536 is not between"),
        (with("", &port("{containerPort: 1, hostPort: -1}")), "ports[0].hostPort: -1 is not between"),
        (
            with("", &port("{containerPort: x}")),
            "ports[0].containerPort: invalid type: string \"x\", expected i32",
        ),
        (with("", &port("{containerPort: 1, protocol: tcp}")), "ports[0].protocol: \"tcp\" is none of"),
        (with("", &port("{containerPort: 1, hostIP: x}")), "ports[0].hostIP: \"x\" is no IP address"),
        (with("", &port("{containerPort: 1, name: '80'}")), "ports[0].name: \"80\" must have a letter"),
        (
            with(
                "",
                &port("{containerPort: 1, hostPort: 2}, {containerPort: 3, hostPort: 2, protocol: TCP}"),
            ),
            "ports[1].hostPort: 2 is published by container i, too",
        ),
        (
            with("", &format!("{}  hostNetwork: true\n", port("{containerPort: 1, hostPort: 2}"))),
            "hostPort: 2 must be the containerPort 1",
        ),
        (
            with("", "  initContainers: [{name: c}]\n"),
            "spec.containers[0].name: \"c\" is the name of another",
        ),
        (with("", "  hostNetwork: 1\n"), "7:16: pod default/web: spec.hostNetwork: invalid type"),
        (with("", "  hostname: a.b\n"), "spec.hostname"),
        (with("", "  dnsPolicy: Cluster\n"), "spec.dnsPolicy: \"Cluster\" is none of"),
        (with("", "  dnsPolicy: None\n"), "must name a server"),
        (with("", "  dnsConfig: {nameservers: [a]}\n"), "spec.dnsConfig.nameservers[0]: \"a\" is no IP"),
        (with("", "  dnsConfig: {nameservers: [::1, ::2, ::3, ::4]}\n"), "are 4, 3 are allowed"),
        (
            with("", "  dnsConfig: {searches: [\"a\\nnameserver 1.1.1.1\"]}\n"),
            "searches[0]: \"a\\nnameserver",
        ),
        (with("", "  dnsConfig: {options: [{name: \"x\\ny\"}]}\n"), "options[0].name"),
        (with("", "  hostAliases: [{ip: 300.1.1.1}]\n"), "spec.hostAliases[0].ip"),
        (WEB.replace("{name: web}", "{}"), "3:11: metadata.name: is missing"),
        (WEB.replace("web", "a/../b"), "metadata.name: \"a/../b\" may hold"),
        (WEB.replace("spec:", "spek:"), "1:1: pod default/web: spec: is missing"),
        (WEB.replace("Pod", "Service"), "expected a Pod"),
        (WEB.replace("v1", "v2"), "of apiVersion \"v2\""),
        ("just words".to_owned(), "expected a Pod"),
        ("[1, 2]".to_owned(), "expected a Pod"),
        ("\n# nothing\n".to_owned(), "there is no pod in it"),
        ("{\"kind\": \"Pod\",\n \"metadata\": {".to_owned(), "/p/a.yaml:2:14: EOF while parsing an object"),
        ("{\"a\":".repeat(5000), "recursion limit exceeded"),
        ("apiVersion: v1\nkind: PodList\nitems: 5\n".to_owned(), "3:8: items: expected a list"),
    ] {
        let err = parse(&text).unwrap_err().to_string();
        assert!(err.starts_with("/p/a.yaml:") && err.contains(message), "{err}\nexpected {message}");
    }
    let bytes = Manifest::parse(&[0xff, 0xfe, 0], &origin(), &Defaults::default()).unwrap_err();
    assert_eq!(bytes.problem, Problem::NotText);
    let large = vec![b'#'; MAX_SIZE + 1];
    assert_eq!(
        Manifest::parse(&large, &origin(), &Defaults::default()).unwrap_err().problem,
        Problem::TooLarge
    );
}

#[test]
fn what_the_network_wants_to_know() {
    let pod = one(&with(
        "  annotations: {kubernetes.io/egress-bandwidth: 2M}\n",
        "  dnsConfig: {nameservers: [10.0.0.53], searches: [a.b], options: [{name: ndots, value: '2'}, {name: rotate}]}\n",
    ));
    assert_eq!(Bandwidth::from_annotations(&pod.facts.annotations).unwrap().unwrap().egress, Some(2_000_000));
    assert_eq!((pod.facts.dns_policy, pod.hostname()), (DnsPolicy::ClusterFirst, "web"));
    assert_eq!(pod.facts.dns.as_ref().unwrap().options, ["ndots:2", "rotate"]);
    assert_eq!(pod.termination_grace_period().as_secs(), 30);

    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostname: h\n  terminationGracePeriodSeconds: 5\n  containers:\n  - name: c\n    ports: [{containerPort: 80}, {containerPort: 53, hostPort: 5353, protocol: UDP, hostIP: 10.1.2.3}]\n  initContainers:\n  - {name: i, ports: [{containerPort: 1, hostPort: 1}]}\n";
    let pod = one(text);
    let ports = &pod.facts.ports;
    // A port has no host port, and a container ends.
    assert_eq!(ports.len(), 1);
    assert_eq!((ports[0].host_port, ports[0].container_port, ports[0].protocol), (5353, 53, Protocol::Udp));
    assert_eq!(ports[0].host_ip, Some("10.1.2.3".parse().unwrap()));
    assert_eq!((pod.hostname(), pod.termination_grace_period().as_secs()), ("h", 5));

    let host = one(&with("", "  hostNetwork: true\n"));
    assert!(host.facts.host_network && host.facts.ports.is_empty());
    assert_eq!(host.facts.dns_policy, DnsPolicy::Default);
}

#[test]
fn a_pod_of_the_api_is_taken_as_it_is() {
    let api = Arc::new(Origin::Api("https://k".to_owned()));
    let mut pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "namespace": "a", "uid": "u", "annotations": {"cnimble/managed": "true"},
            "deletionTimestamp": "1970-01-01T00:01:00Z", "deletionGracePeriodSeconds": 20},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let manifest = Manifest::from_pod(pod.clone(), &api).unwrap();
    assert_eq!((manifest.uid.as_str(), manifest.id.namespace.as_str()), ("u", "a"));
    assert!(manifest.facts.managed && manifest.facts.deletion.is_some() && !manifest.facts.ended);
    // Until the deletionTimestamp. With a clock that is behind, no more than the grace period.
    let left = |now| manifest.time_left(SystemTime::UNIX_EPOCH + Duration::from_secs(now)).unwrap().as_secs();
    assert_eq!((left(50), left(60), left(1_000), left(0)), (10, 0, 0, 20));
    for (phase, ended) in [("Pending", false), ("Succeeded", true), ("Failed", true), ("Unknown", false)] {
        pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
        assert_eq!(Manifest::from_pod(pod.clone(), &api).unwrap().facts.ended, ended, "{phase}");
    }
    pod.metadata.uid = None;
    assert!(Manifest::from_pod(pod, &api).unwrap_err().to_string().contains("metadata.uid"));
}
