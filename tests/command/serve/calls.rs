//! Tests each call with the client that talks to containerd.

use std::collections::BTreeMap;

use serde_json::Value;

use cnimble_cri::{CriError, Dns, PodConfig, PortMapping, Protocol, wire};
use cnimble_tests::need;

use super::{Shop, bridge, pod};

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

#[test]
fn a_sandbox_is_made_listed_looked_at_stopped_and_removed() {
    need!("ip", "nft");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    let serve = shop.start();
    let config = PodConfig {
        hostname: "web-0".into(),
        dns: Dns {
            servers: vec!["192.0.2.53".into()],
            searches: vec!["example.org".into()],
            ..Dns::default()
        },
        ports: vec![PortMapping {
            protocol: Protocol::Tcp,
            container_port: 80,
            host_port: 8080,
            host_ip: None,
        }],
        labels: map("app", "web"),
        annotations: map("note", "kept"),
        cgroup_parent: "/kubepods/pod1".into(),
        ..pod("web")
    };
    let web = shop.run(config.clone());
    assert_eq!(
        (web.sandbox.pod().as_str(), &*web.sandbox.uid, web.sandbox.attempt),
        ("shop/web", "uid-web", 0)
    );
    assert!(web.sandbox.ready && !web.host_network, "{web:?}");
    let id = web.sandbox.id.clone();
    let [ip] = web.ips.as_slice() else { panic!("{web:?}") };
    let netns = web.netns.clone().unwrap();
    let inside = shop.node.netns(netns.to_str().unwrap()).run("ip -o address show eth0").text();
    assert!(inside.contains(&ip.to_string()), "{inside}");
    let resolv = shop.node.sh(&format!("cat {}", shop.path(&format!("run/pods/{id}/resolv.conf")).display()));
    assert_eq!(resolv, "search example.org\nnameserver 192.0.2.53");
    assert!(shop.node.sh("nft list ruleset").contains("8080"));

    // The same attempt is refused while its sandbox is Ready. Another attempt isn't.
    let again = config.clone();
    let err = shop.ask(|client| async move { client.run(again, "").await }).unwrap_err();
    assert!(matches!(&err, CriError::Refused { code, .. } if code == "AlreadyExists"), "{err}");
    assert!(err.to_string().contains(&id), "{err}");
    let next = PodConfig { attempt: 1, ports: Vec::new(), labels: map("app", "other"), ..config };
    let next = shop.run(next);
    assert_eq!(next.sandbox.attempt, 1);
    assert!(next.sandbox.ready && shop.list().len() == 2 && shop.list().iter().all(|of| of.ready));

    // Filters select sandboxes.
    let filter = wire::PodSandboxFilter::default;
    let state = |state| Some(wire::PodSandboxStateValue { state });
    assert_eq!(shop.filtered(filter()), 2);
    assert_eq!(shop.filtered(wire::PodSandboxFilter { id: id[..12].to_owned(), ..filter() }), 1);
    assert_eq!(shop.filtered(wire::PodSandboxFilter { id: "no".to_owned(), ..filter() }), 0);
    assert_eq!(shop.filtered(wire::PodSandboxFilter { label_selector: map("app", "web"), ..filter() }), 1);
    assert_eq!(shop.filtered(wire::PodSandboxFilter { label_selector: map("app", "x"), ..filter() }), 0);
    assert_eq!(shop.filtered(wire::PodSandboxFilter { state: state(wire::READY), ..filter() }), 2);
    assert_eq!(shop.filtered(wire::PodSandboxFilter { state: state(wire::NOT_READY), ..filter() }), 0);

    whole_answers(&shop, &id);

    // The ID is abbreviated. A repeated stop finds the sandbox stopped.
    let short = &id[..13];
    for _ in 0..2 {
        shop.ok(|client| async move { client.stop(short).await });
    }
    let stopped = shop.ok(|client| async move { client.sandbox(short).await });
    assert!(!stopped.sandbox.ready && stopped.ips.is_empty(), "{stopped:?}");
    assert_eq!(shop.filtered(wire::PodSandboxFilter { state: state(wire::NOT_READY), ..filter() }), 1);
    assert_eq!(shop.leases(), [next.ips[0].to_string()].into());
    for _ in 0..2 {
        shop.ok(|client| {
            let id = id.clone();
            async move { client.remove(&id).await }
        });
    }
    let err = shop.ask(|client| async move { client.sandbox(&id).await }).unwrap_err();
    assert!(matches!(err, CriError::NoSandbox { .. }), "{err}");
    // A Ready sandbox is stopped before its removal.
    shop.ok(|client| async move { client.remove(&next.sandbox.id).await });
    shop.ok(|client| async move { client.stop(&"0".repeat(64)).await });
    shop.is_clean();
    serve.stop();
}

/// Checks the parts of answers that the client's own types omit.
fn whole_answers(shop: &Shop, id: &str) {
    let request = wire::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
    let path = "/runtime.v1.RuntimeService/PodSandboxStatus";
    let answer: wire::PodSandboxStatusResponse =
        shop.ok(|client| async move { client.ask(path, request).await });
    let status = answer.status.unwrap();
    assert_eq!((&status.labels["app"], &status.annotations["note"]), (&"web".into(), &"kept".into()));
    // The time is in nanoseconds, not in seconds with zeros appended.
    assert!(status.created_at > 1_700_000_000_000_000_000 && status.created_at % 1_000_000_000 != 0);
    let info: Value = serde_json::from_str(&answer.info["info"]).unwrap();
    let ip = status.network.unwrap().ip;
    assert_eq!(info["cniResult"]["ips"][0]["address"], format!("{ip}/24"));
    assert_eq!(info["addresses"][0], ip);
    assert_eq!(info["fault"], Value::Null);
    assert_eq!(info["checkpoint"]["cgroupPath"], "/kubepods/pod1");
    assert_eq!(info["checkpoint"]["config"]["hostname"], "web-0");
}

#[test]
fn calls_about_the_runtime_containers_and_images_have_answers() {
    need!("ip");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    let serve = shop.start();
    let (version, status) =
        shop.ok(|client| async move { Ok((client.version().clone(), client.status().await?)) });
    assert_eq!((&*version.name, &*version.api), ("cnimble", "v1"));
    let conditions: Vec<_> = status.conditions.iter().map(|of| (&*of.kind, of.holds)).collect();
    assert_eq!(conditions, [("RuntimeReady", true), ("NetworkReady", true)]);
    let cni = status.cni.unwrap();
    assert_eq!(cni.conf_dir, Some(shop.path("net.d")));
    assert_eq!((&*cni.networks[0].name, cni.networks[0].plugins.len(), cni.load_error), ("pods", 2, None));

    for path in [
        "/runtime.v1.RuntimeService/ListContainers",
        "/runtime.v1.RuntimeService/ListContainerStats",
        "/runtime.v1.ImageService/ListImages",
        "/runtime.v1.ImageService/ImageFsInfo",
    ] {
        let list: wire::Items = shop.ok(|client| async move { client.ask(path, wire::Empty {}).await });
        assert!(list.items.is_empty(), "{path}");
    }
    let path = "/runtime.v1.RuntimeService/RuntimeConfig";
    let config: wire::RuntimeConfigResponse =
        shop.ok(|client| async move { client.ask(path, wire::Empty {}).await });
    assert_eq!(config.linux.unwrap().cgroup_driver, wire::CGROUPFS);
    for path in [
        "/runtime.v1.RuntimeService/CreateContainer",
        "/runtime.v1.RuntimeService/ListPodSandboxStats",
        "/runtime.v1.RuntimeService/Exec",
        "/runtime.v1.ImageService/PullImage",
        "/runtime.v1alpha2.RuntimeService/Version",
        "/x",
    ] {
        let asked: Result<wire::Empty, _> =
            shop.ask(|client| async move { client.ask(path, wire::Empty {}).await });
        assert!(matches!(asked, Err(CriError::Unimplemented { .. })), "{path}: {asked:?}");
    }
    // The command `cri status` reads it, too.
    let command = cnimble_tests::command().display();
    let shown = shop.node.run(&format!("{command} cri status --cri {}", shop.socket.display())).success();
    assert!(shown.text().contains("cnimble is ready"), "{}", shown.describe());
    serve.stop();
    assert!(!shop.socket.exists());
}

#[test]
fn a_pod_on_the_nodes_network_has_no_namespace_and_no_plugin_is_asked() {
    need!("ip");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    let serve = shop.start();
    std::fs::remove_file(shop.path("net.d/10-pods.conflist")).unwrap();
    let made = shop.run(PodConfig { host_network: true, ..pod("agent") });
    assert!(made.host_network && made.sandbox.ready && made.ips.is_empty(), "{made:?}");
    assert_eq!(made.netns, None);
    assert!(shop.namespaces().is_empty() && shop.leases().is_empty());
    shop.clear();
    serve.stop();
}
