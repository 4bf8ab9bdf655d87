//! Measures a podman container with a published port, started and removed. It uses our plugins, other plugins,
//! netavark, or no network, which gives podman's own time.

use std::fs::File;

use cnimble_tests::{Node, PAUSE, Podman};

use crate::args::Args;
use crate::process::{self, Run};
use crate::report::{Report, Row};
use crate::{Contender, Result, announce, netavark, progress};

/// The default network of podman's package.
const NETWORK: &str = include_str!("../../runtimes/conflists/87-podman-bridge.conflist");

/// The name of the rows with podman's own time.
pub(crate) const ALONE: &str = "no network";

/// The process 1 of a node, which reaps.
pub(crate) const INIT: [&str; 2] = ["tini", "--"];

/// The network implementation of a node.
enum Server<'a> {
    Plugins(&'a Contender),
    Netavark(&'a std::path::Path),
    Nothing,
}

impl<'a> Server<'a> {
    fn all(args: &'a Args) -> Vec<Self> {
        let mut all: Vec<Self> = args.plugins().map(Server::Plugins).collect();
        all.extend(args.netavark.as_deref().map(Server::Netavark));
        all.push(Server::Nothing);
        all
    }

    fn name(&self) -> &str {
        match self {
            Server::Plugins(contender) => &contender.name,
            Server::Netavark(_) => netavark::NAME,
            Server::Nothing => ALONE,
        }
    }

    fn node(&self) -> Node {
        match self {
            Server::Plugins(contender) => Node::under(&INIT, &contender.dir),
            _ => Node::under(&INIT, cnimble_tests::plugin_dir()),
        }
    }

    fn podman<'n>(&self, node: &'n Node) -> Result<Podman<'n>> {
        if let Server::Netavark(program) = self {
            return Ok(Podman::with_netavark(node, program.parent().ok_or("netavark is in no directory")?));
        }
        let file = node.file("87-podman-bridge.conflist", NETWORK);
        node.sh(&format!("cp {} /etc/cni/net.d/", file.display()));
        Ok(Podman::new(node, "/etc/cni/net.d", "podman"))
    }
}

/// Runs podman. The error contains its stderr.
fn call(server: &Server<'_>, node: &Node, podman: &Podman<'_>, words: &[&str]) -> Result<Run> {
    let errors = node.dir().join("errors");
    let mut command = podman.command();
    command.args(words);
    let (_, run) = process::timed_alone(command, b"", File::create(&errors)?).map_err(|err| {
        let said = std::fs::read_to_string(&errors).unwrap_or_default();
        format!("{}: podman {}: {err} {said}", server.name(), words.join(" "))
    })?;
    Ok(run)
}

/// Starts and removes a container.
fn life(server: &Server<'_>, node: &Node, podman: &Podman<'_>, number: usize) -> Result<(Run, Run)> {
    let (name, port) = (format!("c{number}"), format!("{}:80", 10_000 + number));
    let network = match server {
        Server::Nothing => ["--network", "none"],
        _ => ["--publish", &port],
    };
    let words =
        [&["run", "--detach", "--name", &name], &network[..], &["localhost/busybox", "sh", "-c", PAUSE]];
    let run = call(server, node, podman, &words.concat())?;
    if number == 0 {
        let address = podman.call(&format!("inspect --format {{{{.NetworkSettings.IPAddress}}}} {name}"));
        if address.is_empty() != matches!(server, Server::Nothing) {
            return Err(format!("{}: the address of a container is \"{address}\"", server.name()).into());
        }
    }
    let rm = call(server, node, podman, &["rm", "--force", &name])?;
    // conmon starts another podman to clean up, which may still run.
    node.sh("while grep -lqsx -e podman -e conmon /proc/[0-9]*/comm; do sleep 0.01; done");
    Ok((run, rm))
}

pub(crate) fn measure(args: &Args, report: &mut Report) -> Result<()> {
    let rounds = (args.samples / 2).max(5);
    announce("podman");
    // Processes that podman leaves belong to its node, not to this process.
    nix::sys::prctl::set_child_subreaper(false)?;
    let servers = Server::all(args);
    let nodes: Vec<Node> = servers.iter().map(Server::node).collect();
    let podmans = servers.iter().zip(&nodes).map(|(server, node)| server.podman(node));
    let podmans = podmans.collect::<Result<Vec<_>>>()?;
    let mut rows: Vec<[Row; 2]> = servers
        .iter()
        .map(|server| {
            ["podman run --detach --publish", "podman rm --force"]
                .map(|what| Row::new("runtime", what.to_owned(), server.name()))
        })
        .collect();
    for round in 0..=rounds {
        progress(&format!("podman: round {round} of {rounds}"));
        let mut turns: Vec<_> = servers.iter().zip(&nodes).zip(&podmans).zip(&mut rows).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (((server, node), podman), [runs, rms]) in turns {
            let (run, rm) = life(server, node, podman, round)?;
            // The first run creates the bridge.
            if round > 0 {
                runs.push(&run);
                rms.push(&rm);
            }
        }
    }
    report.rows.extend(rows.into_iter().flatten());
    process::inherit()
}
