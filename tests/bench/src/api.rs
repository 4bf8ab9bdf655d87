//! Measures the CPU time and memory of `cnimble run` with thousands of pods of an API server.
//!
//! The server is a stand-in that speaks the real protocol over TLS. The pods use the host's network, so that the
//! plugins are not measured. Records are in memory, so that the disk is not measured.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use cnimble_tests::http::ApiServer;
use cnimble_tests::tls::{Authority, door};

use crate::args::Args;
use crate::report::{Report, Row};
use crate::sandbox::Sandbox;
use crate::{Result, announce, progress};

/// The number of pods, and of changes that do not affect the network.
const PODS: usize = 5000;
const PATCHES: usize = 200;
/// A time limit that no run reaches.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let Some(command) = &args.cnimble else { return Err("the section api needs --cnimble".into()) };
    announce(&format!("{PODS} pods of an API server"));
    // In a new network namespace, lo is down.
    Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    let authority = Authority::new();
    let server = ApiServer::start();
    server.page(PODS);
    let address = door(server.address(), &authority.issue("IP:127.0.0.1"), None);
    let kubeconfig = sandbox.state_dir().join("kubeconfig");
    let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": format!("https://{address}"),
            "certificate-authority": authority.certificate()}}],
        "users": [{"name": "u", "user": {"token": "t"}}]});
    std::fs::write(&kubeconfig, config.to_string())?;
    let mut row = |what: &str, of: &str, value: f64| {
        progress(&format!("{what}: {value:.1} {of}"));
        let (unit, of) = of.split_once(' ').unwrap_or((of, ""));
        let mut row = Row::new("api", what.to_owned(), of.trim_start_matches("of "));
        row.unit = if unit == "MB" { "MB" } else { "ms" };
        row.samples.push(value);
        report.rows.push(row);
    };

    // A directory that only this process sees (see Sandbox).
    let dir = Path::new("/run/api");
    let run = Run::start(command, &kubeconfig, dir, "events")?;
    run.wait_for(0)?;
    let before = run.cpu()?;
    server.put_all((0..PODS).map(|number| pod(number, "Pending")));
    run.wait_for(PODS)?;
    row(&format!("{PODS} pods by events, each"), "ms of CPU", (run.cpu()? - before) / PODS as f64);
    row(&format!("{PODS} pods by events"), "MB resident at most", run.peak()?);
    let before = run.cpu()?;
    server.put_all((0..PATCHES).map(|number| pod(number, "Running")));
    server.put_all([pod(PODS, "Running")]);
    run.wait_for(PODS + 1)?;
    row(&format!("{PATCHES} changes with nothing to do, and a pod"), "ms of CPU", run.cpu()? - before);
    let before = run.cpu()?;
    std::thread::sleep(Duration::from_secs(10));
    row("10 s with nothing to do at all", "ms of CPU", run.cpu()? - before);
    let before = run.cpu()?;
    for number in 0..=PODS {
        server.delete(&format!("default/pod-{number}"));
    }
    run.wait_for(0)?;
    row(&format!("{PODS} pods deleted, each"), "ms of CPU", (run.cpu()? - before) / PODS as f64);
    drop(run);

    server.put_all((0..PODS).map(|number| pod(number, "Running")));
    let run = Run::start(command, &kubeconfig, dir, "list")?;
    run.wait_for(PODS)?;
    row(&format!("{PODS} pods by a list, each"), "ms of CPU", run.cpu()? / PODS as f64);
    row(&format!("{PODS} pods by a list"), "MB resident at most", run.peak()?);
    Ok(())
}

/// Returns a typical pod: 4 kB, of which 3 kB are an annotation.
fn pod(number: usize, phase: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{number}"), "labels": {"app": "bench"},
            "annotations": {"example.com/notes": "n".repeat(3000)},
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}]},
        "spec": {"nodeName": "bench", "hostNetwork": true,
            "containers": [{"name": "main", "image": "example.com/main:1", "env": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"memory": "64Mi"}}, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// A `cnimble run` process, which is ended on drop.
struct Run {
    child: Child,
    socket: PathBuf,
}

impl Run {
    fn start(command: &Path, kubeconfig: &Path, dir: &Path, name: &str) -> Result<Run> {
        let dir = dir.join(name);
        std::fs::create_dir_all(dir.join("net.d"))?;
        let child = Command::new(command)
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--node-name", "bench", "--conf-dir"])
            .arg(dir.join("net.d"))
            .arg("--cache-dir")
            .arg(dir.join("cache"))
            .arg("--state-dir")
            .arg(dir.join("state"))
            .arg("--run-dir")
            .arg(dir.join("run"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.join("log"))?)
            .spawn()?;
        Ok(Run { child, socket: dir.join("run/cnimble.sock") })
    }

    /// Waits until `pods` pods are ready and there are no others.
    fn wait_for(&self, pods: usize) -> Result<()> {
        let begun = Instant::now();
        let is = |phase: &str, count: usize, page: &str| {
            page.contains(&format!("cnimble_pods{{phase=\"{phase}\"}} {count}\n"))
        };
        let mut last = String::new();
        while begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(200));
            last = self.metrics().unwrap_or_default();
            let rest = ["Pending", "Failed", "Terminating"].iter().all(|phase| is(phase, 0, &last));
            if is("Ready", pods, &last) && rest {
                return Ok(());
            }
        }
        let state: Vec<&str> = last.lines().filter(|line| line.starts_with("cnimble_pods")).collect();
        Err(format!("there should be {pods} pods: {state:?}").into())
    }

    fn metrics(&self) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn proc(&self, file: &str) -> Result<String> {
        Ok(std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id()))?)
    }

    /// Returns the CPU time in ms. It is from the process's clock, as /proc counts in ticks.
    fn cpu(&self) -> Result<f64> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        let time = nix::time::clock_gettime(nix::time::clock_getcpuclockid(pid)?)?;
        Ok(Duration::from(time).as_secs_f64() * 1e3)
    }

    /// Returns the peak resident memory in MB.
    fn peak(&self) -> Result<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        Ok(line.trim_end_matches("kB").trim().parse::<f64>()? * 1024.0 / 1e6)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
