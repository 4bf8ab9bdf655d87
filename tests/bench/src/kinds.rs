//! Measures every plugin that this kernel supports, with a sample that enables all options. The figures are for ADD,
//! CHECK, DEL and their memory.
//!
//! For a chained plugin, the plugin before it is ours for every contender. A plugin that needs a DHCP server gets one,
//! and its daemon starts before the measurement.

use std::fs::File;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use cnimble_tests::{Background, Host, PATIENCE, Place, Sample, wait_until};

use crate::args::Args;
use crate::process::{self, Footprint, Server};
use crate::report::{Report, Row};
use crate::{Contender, Result, announce, progress};

/// A way to run a plugin (see [`crate::process`]).
type Runner<T> = fn(Command, &[u8]) -> Result<(Vec<u8>, T)>;

/// The host of one contender, with the plugin of a sample.
struct Node<'a> {
    contender: &'a Contender,
    sample: &'a Sample,
    host: &'a Host,
    /// Kept until the end, so that the kernel doesn't remove namespaces during a measurement.
    places: Vec<Place<'a>>,
}

impl<'a> Node<'a> {
    fn new(contender: &'a Contender, sample: &'a Sample, host: &'a Host) -> Self {
        Node { contender, sample, host, places: Vec::new() }
    }

    /// Calls ADD for another pod. The first pod stays, with a separate value for what the sample counts.
    fn add<T>(&mut self, runner: Runner<T>) -> Result<(Value, T)> {
        let number = self.places.len();
        let place = self.sample.place(self.host, &format!("c{number}"), u64::from(number > 0));
        let prev = place.prev.clone();
        self.places.push(place);
        self.call(runner, "ADD", prev.as_ref())
    }

    /// Calls ADD, CHECK and DEL for another pod. A CHECK that fails has no figure.
    fn live<T>(&mut self, runner: Runner<T>) -> Result<(T, Option<T>, T)> {
        let (result, add) = self.add(runner)?;
        let check = self.call(runner, "CHECK", Some(&result));
        if let Err(err) = &check {
            announce(&format!("{}: {err}", self.contender.name));
        }
        let (_, del) = self.call(runner, "DEL", Some(&result))?;
        if let Some(place) = self.places.last() {
            place.clear();
        }
        Ok((add, check.ok().map(|(_, figure)| figure), del))
    }

    fn call<T>(&self, runner: Runner<T>, verb: &str, prev: Option<&Value>) -> Result<(Value, T)> {
        let place = self.places.last().ok_or("no pod")?;
        let mut config = place.net.config.clone();
        if let (Some(prev), Some(config)) = (prev, config.as_object_mut()) {
            config.insert("prevResult".into(), prev.clone());
        }
        let mut command = Command::new(self.contender.dir.join(&self.sample.plugin));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &place.att.id)
            .env("CNI_NETNS", &place.att.netns)
            .env("CNI_IFNAME", &place.att.ifname)
            .env("CNI_ARGS", &place.att.args)
            .env("CNI_PATH", &self.contender.dir);
        setns(File::open(self.host.path())?, CloneFlags::CLONE_NEWNET)?;
        let (output, figure) = runner(command, config.to_string().as_bytes())
            .map_err(|err| format!("{} {verb}: {err}", self.sample.plugin))?;
        let result = if output.is_empty() { Value::Null } else { serde_json::from_slice(&output)? };
        Ok((result, figure))
    }
}

pub(crate) fn measure(args: &Args, report: &mut Report) -> Result<()> {
    for sample in args.samples_of_plugins() {
        if let Some(why) = sample.missing().filter(|_| !sample.is_served()) {
            announce(&format!("{} is left out: {why}", sample.plugin));
            continue;
        }
        announce(&sample.plugin);
        let hosts: Vec<(&Contender, Host)> = args.plugins().map(|one| (one, Host::hasty())).collect();
        let mut nodes = Vec::new();
        let mut servers = Vec::new();
        for (contender, host) in &hosts {
            if let Some(server) = sample.serve(host) {
                let server = Server::new(server)?;
                servers.extend([server, Server::new(daemon(contender, host)?)?]);
            }
            let mut node = Node::new(contender, sample, host);
            // One pod stays and another is added and deleted. Not every contender can do that with all options.
            match node.add(process::timed).and_then(|_| node.live(process::timed)) {
                Ok(_) => nodes.push(node),
                Err(err) => announce(&format!("{} is left out: {err}", contender.name)),
            }
        }
        rounds((args.samples / 2).max(5), sample, nodes, report)?;
    }
    Ok(())
}

/// Starts the contender's own DHCP daemon, at the socket that the sample names.
fn daemon(contender: &Contender, host: &Host) -> Result<Background> {
    let socket = host.dir().join("dhcp.sock");
    let mut daemon = host.command(contender.dir.join("dhcp"));
    daemon.arg("daemon").arg("-socketpath").arg(&socket).stdin(Stdio::null()).stderr(Stdio::null());
    let started = Background::start(&mut daemon);
    if wait_until(PATIENCE, || socket.exists()) {
        Ok(started)
    } else {
        Err(format!("{}'s DHCP daemon doesn't listen", contender.name).into())
    }
}

fn rounds(rounds: usize, sample: &Sample, mut nodes: Vec<Node<'_>>, report: &mut Report) -> Result<()> {
    let names =
        [add_name(&sample.plugin), verb_name("CHECK", &sample.plugin), verb_name("DEL", &sample.plugin)];
    let row = |what: &String, node: &Node<'_>| Row::new("kinds", what.clone(), &node.contender.name);
    let mut rows: Vec<[Row; 3]> =
        nodes.iter().map(|node| names.each_ref().map(|what| row(what, node))).collect();
    for round in 0..rounds {
        progress(&format!("{}: round {round} of {rounds}", sample.plugin));
        let mut turns: Vec<_> = nodes.iter_mut().zip(&mut rows).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (node, [adds, checks, dels]) in turns {
            let (add, check, del) = node.live(process::timed)?;
            adds.push(&add);
            if let Some(check) = check {
                checks.push(&check);
            }
            dels.push(&del);
        }
    }
    for (node, rows) in nodes.iter_mut().zip(rows) {
        let (add, check, del) = node.live(process::traced)?;
        let mut memory = Row::new("kinds", format!("memory of {}", sample.plugin), &node.contender.name);
        memory.unit = "KiB";
        let runs: [Option<Footprint>; 3] = [Some(add), check, Some(del)];
        memory.samples.push(runs.iter().flatten().map(|run| run.peak_kib).max().unwrap_or(0) as f64);
        report.rows.extend(rows.into_iter().chain([memory]).filter(|row| !row.samples.is_empty()));
    }
    Ok(())
}

pub(crate) fn add_name(plugin: &str) -> String {
    verb_name("ADD", plugin)
}

fn verb_name(verb: &str, plugin: &str) -> String {
    format!("{verb} of {plugin}")
}
