//! Compares cluster-local with host-local, in turns: while etcd answers, answers slowly, and is unreachable.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::Background;
use cnimble_tests::proxy::proxy;

use crate::args::Args;
use crate::report::{Report, Row};
use crate::sandbox::{Namespace, Sandbox};
use crate::{Contender, Result, announce, process, progress};

/// The delay of each request to the slow etcd, and of each answer.
const DELAY: Duration = Duration::from_millis(50);
/// The seconds until etcd must listen.
const PATIENCE: f32 = 60.0;
const ETCD: &str = "127.0.0.1:2379";
const SLOW: &str = "127.0.0.2:2379";
const AWAY: &str = "127.0.0.3:2379";

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let host = Namespace::new("cluster-host")?;
    let pod = Namespace::new("cluster-pod")?;
    host.enter()?;
    Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    let data = sandbox.state_dir().join("cluster");
    let etcd = start_etcd(&data.join("etcd"))?;
    let (slow, server): (SocketAddr, SocketAddr) = (SLOW.parse()?, ETCD.parse()?);
    proxy(slow, server, |_, _| {
        std::thread::sleep(DELAY);
        true
    });
    for contender in args.plugins().filter(|one| one.dir.join("cluster-local").exists()) {
        announce(&format!("{}: cluster-local beside host-local", contender.name));
        let nodes = Nodes { contender, data: data.join(&contender.name), pod: pod.path() };
        nodes.measure(args.samples, report)?;
    }
    drop(etcd);
    Ok(())
}

/// Starts etcd on the machine's own disk.
fn start_etcd(dir: &Path) -> Result<Background> {
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir).args(["--listen-client-urls", &format!("http://{ETCD}")]);
    command.args(["--advertise-client-urls", &format!("http://{ETCD}")]);
    let etcd = Background::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    if cnimble_tests::wait_until(PATIENCE, || std::net::TcpStream::connect(ETCD).is_ok()) {
        Ok(etcd)
    } else {
        Err("etcd doesn't listen".into())
    }
}

/// The nodes of a cluster, which differ in how they reach etcd.
struct Nodes<'a> {
    contender: &'a Contender,
    data: PathBuf,
    pod: &'a Path,
}

impl Nodes<'_> {
    fn measure(&self, samples: usize, report: &mut Report) -> Result<()> {
        self.set_up()?;
        let name = &self.contender.name;
        let ways = [("etcd answers", ETCD), ("etcd answers slowly", SLOW), ("etcd is away", AWAY)];
        let mut rows = vec![Row::new("cluster", "host-local ADD".to_owned(), name)];
        rows.extend(
            ways.iter().map(|(way, _)| Row::new("cluster", format!("cluster-local ADD, {way}"), name)),
        );
        for (node, _) in ways {
            self.add("cluster-local", node, ETCD, "first", "")?;
        }
        for round in 0..=samples {
            progress(&format!("{name}: cluster-local, round {round} of {samples}"));
            let id = format!("round{round}");
            let mut times = vec![self.add("host-local", "alone", ETCD, &id, "")?];
            for (node, at) in ways {
                times.push(self.add("cluster-local", node, at, &id, "")?);
            }
            keep(&mut rows, round, times);
        }
        let mut claims: Vec<Row> = ways
            .iter()
            .take(2)
            .map(|(way, _)| Row::new("cluster", format!("… that claims a block, {way}"), name))
            .collect();
        // Each round uses a block of 64 addresses that no node has.
        for round in 0..=samples.min(100) {
            progress(&format!("{name}: cluster-local claims, round {round} of {samples}"));
            let mut times = Vec::new();
            for (which, (node, at)) in ways.iter().take(2).enumerate() {
                let args = format!("IP=10.{}.{round}.5", 200 + which);
                times.push(self.add("cluster-local", node, at, &format!("claim{round}"), &args)?);
            }
            keep(&mut claims, round, times);
        }
        report.rows.append(&mut rows);
        report.rows.append(&mut claims);
        Ok(())
    }

    /// Sets up the cluster as an operator does.
    fn set_up(&self) -> Result<()> {
        // A contender may be an earlier build, which has only the former name.
        let names = ["cluster-local-store", "cluster-local-etcd"].map(|name| self.contender.dir.join(name));
        let program = names.iter().find(|path| path.exists()).ok_or("cluster-local-store is missing")?;
        let mut command = Command::new(program);
        command.args(["init", "new"]);
        let config = self.config("cluster-local", "operator", ETCD);
        process::timed_alone(command, config.to_string().as_bytes(), Stdio::null())
            .map_err(|err| format!("setting up: {err}"))?;
        Ok(())
    }

    fn config(&self, plugin: &str, node: &str, at: &str) -> Value {
        let node = node.replace(' ', "-");
        json!({
            "cniVersion": "1.0.0", "name": format!("bench-{}", self.contender.name), "type": "ptp",
            "ipam": {
                "type": plugin, "ranges": [[{"subnet": "10.0.0.0/8"}]], "dataDir": self.data.join(&node),
                "nodeName": node, "etcd": {"endpoints": [format!("http://{at}")]},
            },
        })
    }

    /// Calls ADD, and DEL, which isn't measured. Returns the milliseconds of the ADD.
    fn add(&self, plugin: &str, node: &str, at: &str, id: &str, args: &str) -> Result<f64> {
        let mut taken = 0.0;
        for verb in ["ADD", "DEL"] {
            let mut command = Command::new(self.contender.dir.join(plugin));
            command
                .env("CNI_COMMAND", verb)
                .env("CNI_CONTAINERID", id)
                .env("CNI_NETNS", self.pod)
                .env("CNI_IFNAME", "eth0")
                .env("CNI_ARGS", args)
                .env("CNI_PATH", &self.contender.dir);
            let config = self.config(plugin, node, at).to_string();
            let (_, run) = process::timed_alone(command, config.as_bytes(), Stdio::null())
                .map_err(|err| format!("{plugin} {verb}, {node}: {err}"))?;
            if verb == "ADD" {
                taken = run.wall.as_secs_f64() * 1e3;
            }
        }
        Ok(taken)
    }
}

/// Keeps the times, except for the first round, which has cold kernel caches.
fn keep(rows: &mut [Row], round: usize, times: Vec<f64>) {
    for (row, time) in rows.iter_mut().zip(times).filter(|_| round > 0) {
        row.samples.push(time);
    }
}
