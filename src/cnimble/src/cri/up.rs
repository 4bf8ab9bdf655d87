//! `cnimble cri up` and `down`: create and remove pods through the runtime, as a kubelet does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use futures::StreamExt;
use serde_json::json;

use cnimble_cri::{Client, PodConfig, Sandbox, SandboxStatus};
use cnimble_netlink::{self as netlink, NetNs, Netlink};
use cnimble_pod::sandbox::{DnsOptions, SandboxConfig};

use super::{of_pod, pods, report};
use crate::Session;
use crate::args::cri::{Down, Up};
use crate::pod::tally::{Tally, manifests};
use crate::report::{Exit, Report};
use crate::style::joined;

/// The number of pods that are created at once.
const AT_ONCE: usize = 8;

/// Creates the sandboxes of the pods in manifests. A failed pod doesn't stop the others.
pub(super) async fn up(session: &Session, client: &Client, given: &Up) -> Result<(), Report> {
    let mut tally = Tally::new(session);
    let dns = DnsOptions::default();
    let configs: Vec<SandboxConfig> = manifests(&given.files, &mut tally)?
        .iter()
        .map(|manifest| SandboxConfig::from_manifest(manifest, &dns))
        .collect();
    let listed = client.sandboxes().await.map_err(|err| report("can't list the runtime's pods", &err))?;
    let tally = RefCell::new(tally);
    let work = configs.iter().map(|config| async {
        let pod = &config.pod;
        match one_up(client, config, given, &listed).await {
            Ok((status, was_up)) => {
                let words = if was_up { "is up already" } else { "is up" };
                let place =
                    if status.host_network { "the node's network".to_owned() } else { joined(&status.ips) };
                let line = format!("{pod} {words}: {place}");
                tally.borrow_mut().done(&line, &pods::Pod::new(status.sandbox.clone(), Some(status)));
            }
            Err(failed) => tally.borrow_mut().fail(Some(pod), &failed),
        }
    });
    futures::stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>().await;
    tally.into_inner().finish("up", configs.len())
}

/// Creates the sandbox of a pod, and compares it with the kernel. Returns its status, and whether it existed already.
///
/// A ready sandbox of the same pod UID is kept. Other sandboxes of the pod's name are stopped first, but not removed.
async fn one_up(
    client: &Client,
    config: &SandboxConfig,
    given: &Up,
    listed: &[Sandbox],
) -> Result<(SandboxStatus, bool), Report> {
    let pod = config.pod.to_string();
    let what = format!("can't bring up pod {pod}");
    let own = of_pod(listed, &pod);
    let ready = own.iter().find(|of| of.ready && of.uid == config.uid);
    let mut was_up = false;
    let id = match ready {
        Some(sandbox) => {
            was_up = true;
            sandbox.id.clone()
        }
        None => {
            // Like a kubelet, it first stops sandboxes that aren't Ready or belong to an earlier pod of that name.
            for sandbox in &own {
                client.stop(&sandbox.id).await.map_err(|err| report(what.as_str(), &err))?;
            }
            let before = own.iter().filter(|of| of.uid == config.uid).map(|of| of.attempt).max();
            let attempt = before.map_or(0, |attempt| attempt.saturating_add(1));
            let made = client.run(pod_config(config, attempt, &given.cgroup_parent), &given.handler).await;
            made.map_err(|err| {
                report(what.as_str(), &err)
                    .hint(format!("`cnimble cri status`; `cnimble cri down {pod}` removes what is left"))
            })?
        }
    };
    let status = client.sandbox(&id).await.map_err(|err| report(what.as_str(), &err))?;
    match verify(&status) {
        Ok(()) => Ok((status, was_up)),
        Err(why) => Err(Report::because(Exit::Plugin, format!("pod {pod} is not as the runtime says"), why)
            .hint(format!("`cnimble cri inspect {pod}` shows it; `cnimble cri down {pod}` takes it away"))),
    }
}

/// Returns the configuration that a kubelet would send for this pod. `attempt` counts the pod's earlier sandboxes.
fn pod_config(of: &SandboxConfig, attempt: u32, cgroup_parent: &str) -> PodConfig {
    let (name, namespace) = (&of.pod.name, &of.pod.namespace);
    let labels = [("name", name), ("namespace", namespace), ("uid", &of.uid)];
    PodConfig {
        name: name.clone(),
        namespace: namespace.clone(),
        uid: of.uid.clone(),
        attempt,
        hostname: if of.host_network { String::new() } else { of.hostname.clone() },
        log_directory: format!("/var/log/pods/{namespace}_{name}_{}", of.uid),
        dns: of.dns.clone(),
        ports: of.ports.clone(),
        labels: labels.map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.clone())).into(),
        annotations: BTreeMap::clone(&of.annotations),
        cgroup_parent: cgroup_parent.to_owned(),
        host_network: of.host_network,
    }
}

/// Checks that the sandbox is ready, and that its network namespace has the addresses that the runtime reports. A pod
/// on the node's network is not compared.
fn verify(status: &SandboxStatus) -> Result<(), String> {
    if !status.sandbox.ready {
        return Err("the runtime says that the sandbox isn't Ready".to_owned());
    }
    if status.host_network {
        return Ok(());
    }
    let Some(netns) = &status.netns else {
        return Err("the runtime does not report the sandbox's namespace".to_owned());
    };
    if status.ips.is_empty() {
        return Err("the runtime reports no address".to_owned());
    }
    let kernel = addresses(netns).map_err(|err| format!("{}: {err}", netns.display()))?;
    let lost: Vec<IpAddr> = status.ips.iter().copied().filter(|ip| !kernel.contains(ip)).collect();
    match lost.as_slice() {
        [] => Ok(()),
        lost => Err(format!("{} is not in {}", joined(lost), netns.display())),
    }
}

/// Returns the addresses of the links that are up in a network namespace.
fn addresses(netns: &Path) -> netlink::Result<BTreeSet<IpAddr>> {
    let mut inside = Netlink::open_in(&NetNs::open(netns)?)?;
    let mut found = BTreeSet::new();
    for link in inside.links(&netlink::link::Filter::default())?.iter().filter(|link| link.up) {
        found.extend(inside.addrs(link.index)?.into_iter().map(|addr| addr.net.ip()));
    }
    Ok(found)
}

/// Stops and removes the sandboxes of pods. A failed pod doesn't stop the others, and an unknown one is no error.
pub(super) async fn down(session: &Session, client: &Client, given: &Down) -> Result<(), Report> {
    let listed = client.sandboxes().await.map_err(|err| report("can't list the runtime's pods", &err))?;
    let mut tally = Tally::new(session);
    for pod in &given.pods {
        let found = of_pod(&listed, pod);
        if found.is_empty() && listed.iter().any(|of| of.id.starts_with(pod)) {
            let why = "it is too short for the beginning of an ID, or several IDs begin with it";
            let what = format!("can't take down pod {pod}");
            tally.fail(None, &Report::because(Exit::Usage, what, why));
            continue;
        }
        match one_down(client, found, pod).await {
            Ok(sandboxes) => {
                let words = if sandboxes == 0 { "was not up" } else { "is down" };
                tally.done(&format!("{pod} {words}"), &json!({"pod": pod, "sandboxes": sandboxes}));
            }
            Err(failed) => tally.fail(None, &failed),
        }
    }
    tally.finish("down", given.pods.len())
}

/// Stops and removes these sandboxes, and returns their number. It fails if the network namespace of one remains.
async fn one_down(client: &Client, sandboxes: Vec<&Sandbox>, pod: &str) -> Result<usize, Report> {
    let what = format!("can't take down pod {pod}");
    for sandbox in &sandboxes {
        let netns = match client.sandbox(&sandbox.id).await {
            Ok(status) => status.netns.filter(|_| !status.host_network),
            Err(err) if err.is_no_sandbox() => continue,
            Err(err) => return Err(report(what, &err)),
        };
        client.stop(&sandbox.id).await.map_err(|err| report(what.as_str(), &err))?;
        client.remove(&sandbox.id).await.map_err(|err| report(what.as_str(), &err))?;
        if let Some(netns) = netns.filter(|netns| !matches!(NetNs::find(netns), Ok(None))) {
            return Err(Report::because(
                Exit::Plugin,
                what,
                format!("the runtime has removed the sandbox, but {} still exists", netns.display()),
            )
            .hint("`cnimble doctor --cri` shows what is left"));
        }
    }
    Ok(sandboxes.len())
}
