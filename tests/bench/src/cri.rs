//! Measures sixty concurrent pods, up and down, by a containerd that gets the requests of a kubelet. They use our
//! plugins, other plugins, and the node's network, which gives containerd's own time.

use std::sync::Arc;
use std::time::Instant;

use cnimble_cri::{Client, CriError, PodConfig, PortMapping, Protocol};
use cnimble_tests::{Cri, Node};
use tokio::task::JoinSet;

use crate::args::Args;
use crate::podman::INIT;
use crate::report::{Report, Row};
use crate::{Contender, Result, announce, progress};

/// The number of concurrent pods.
const PODS: usize = 60;
const ROUNDS: usize = 5;

/// The configuration that containerd's script `install-cni` writes.
const NETWORK: &str = include_str!("../../runtimes/conflists/10-containerd-net.conflist");

/// A node with containerd.
struct Site<'n> {
    cri: Cri<'n>,
    host_network: bool,
}

impl Site<'_> {
    fn config(&self, number: usize, attempt: u32) -> PodConfig {
        let host_port = 20_000 + u16::try_from(number).unwrap_or_default();
        let port = PortMapping { protocol: Protocol::Tcp, host_port, container_port: 80, host_ip: None };
        PodConfig {
            name: format!("pod{number}"),
            namespace: "bench".to_owned(),
            uid: format!("uid-{number}"),
            attempt,
            hostname: if self.host_network { String::new() } else { format!("pod{number}") },
            ports: if self.host_network { Vec::new() } else { vec![port] },
            cgroup_parent: self.cri.cgroup(),
            host_network: self.host_network,
            ..PodConfig::default()
        }
    }

    /// Starts all pods and then stops all. Returns the milliseconds of both.
    fn life(&self, attempt: u32) -> Result<(f64, f64)> {
        let configs: Vec<PodConfig> = (0..PODS).map(|number| self.config(number, attempt)).collect();
        let begun = Instant::now();
        let ids = self.at_once(configs, |client, config| async move { client.run(config, "").await })?;
        let up = begun.elapsed();
        let begun = Instant::now();
        self.at_once(ids, |client, id| async move {
            client.stop(&id).await?;
            client.remove(&id).await
        })?;
        Ok((up.as_secs_f64() * 1e3, begun.elapsed().as_secs_f64() * 1e3))
    }

    /// Sends all requests concurrently.
    fn at_once<Q, A, F>(&self, questions: Vec<Q>, ask: impl Fn(Arc<Client>, Q) -> F + Send) -> Result<Vec<A>>
    where
        Q: Send,
        A: Send + 'static,
        F: Future<Output = Result<A, CriError>> + Send + 'static,
    {
        let answers = self.cri.ask(|client| async move {
            let client = Arc::new(client);
            let mut asked: JoinSet<_> =
                questions.into_iter().map(|question| ask(Arc::clone(&client), question)).collect();
            let mut answers = Vec::new();
            while let Some(answer) = asked.join_next().await {
                answers.push(answer);
            }
            Ok(answers)
        })?;
        answers.into_iter().map(|answer| Ok(answer??)).collect()
    }
}

pub(crate) fn measure(args: &Args, report: &mut Report) -> Result<()> {
    announce(&format!("{PODS} pods of containerd"));
    nix::sys::prctl::set_child_subreaper(false)?;
    let ours = args.plugins().last().ok_or("no plugins")?;
    let mut all: Vec<(&str, &Contender)> = args.plugins().map(|one| (one.name.as_str(), one)).collect();
    all.push(("the node's network", ours));
    let nodes: Vec<Node> = all.iter().map(|(_, plugins)| Node::under(&INIT, &plugins.dir)).collect();
    let sites: Vec<Site<'_>> = nodes
        .iter()
        .enumerate()
        .map(|(number, node)| {
            let cri = Cri::start(node, &format!("bench{number}"), NETWORK, "/opt/cni/bin");
            Site { cri, host_network: number + 1 == all.len() }
        })
        .collect();
    let mut rows: Vec<[Row; 2]> = all
        .iter()
        .map(|(name, _)| {
            ["up", "down"].map(|way| Row::new("runtime", format!("{PODS} pods {way} by CRI"), name))
        })
        .collect();
    // containerd learns about images by an event, and about networks by a notification. The first pod also creates the
    // bridge.
    for site in &sites {
        let (id, _) = site.cri.run("first", &[], &[]);
        site.cri.stop_and_remove(&id);
    }
    for round in 0..ROUNDS {
        let mut turns: Vec<_> = sites.iter().zip(&mut rows).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (site, [ups, downs]) in turns {
            progress(&format!("{PODS} pods of containerd: round {round} of {ROUNDS}, {}", ups.contender));
            let (up, down) = site.life(u32::try_from(round)?)?;
            ups.samples.push(up);
            downs.samples.push(down);
        }
    }
    report.rows.extend(rows.into_iter().flatten());
    crate::process::inherit()
}
