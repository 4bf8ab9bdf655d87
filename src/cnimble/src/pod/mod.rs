//! `cnimble pod`: manages single pods from the command line.

mod exec;
mod report;
mod show;
pub(super) mod tally;
mod up;

use std::time::{Duration, SystemTime};

use cnimble_pod::PodId;
use cnimble_pod::network::{NetworkOptions, NetworkPlugin};
use cnimble_pod::sandbox::{DnsOptions, PauseCommand, Sandbox, SandboxOptions, Sandboxes};

use super::Session;
use super::args::pod::{Pod, PodCommand, PodOptions};
use super::report::{Exit, Report, usage};

/// Runs a subcommand of `pod`.
pub(super) async fn pod(session: &Session, given: &Pod) -> Result<(), Report> {
    if matches!(given.command, PodCommand::Pause) {
        return pause();
    }
    let sandboxes = given.options.open(session, &[]).await?;
    match &given.command {
        PodCommand::Up(up) => up::up(session, &sandboxes, &given.options.dns(), up).await,
        PodCommand::Down(down) => up::down(session, &sandboxes, down).await,
        PodCommand::Ls => show::ls(session, &sandboxes).await,
        PodCommand::Status(named) => show::status(session, &sandboxes, &named.pod).await,
        PodCommand::Exec(given) => exec::exec(&sandboxes, given),
        PodCommand::Pause => Ok(()),
    }
}

impl PodOptions {
    /// Returns the options for the pods' resolv.conf.
    pub(crate) fn dns(&self) -> DnsOptions {
        let defaults = DnsOptions::default();
        DnsOptions {
            cluster_dns: self.cluster_dns.clone(),
            cluster_domain: self.cluster_domain.clone(),
            resolv_conf: self.resolv_conf.clone().unwrap_or(defaults.resolv_conf),
        }
    }

    /// Opens the directories for pods. The plugins of `own_networks` clean up after unknown pods, so no other runtime
    /// may add pods to them.
    ///
    /// # Errors
    /// Fails if the directories can't be used.
    pub(crate) async fn open(&self, session: &Session, own_networks: &[String]) -> Result<Sandboxes, Report> {
        let mut invoker = session.invoker.clone();
        if !session.own_cache {
            invoker = invoker.with_cache_dir(self.state_dir.join("cni"));
        }
        let mut options = NetworkOptions::new(session.conf.dir(), invoker);
        options.pod_cidrs.clone_from(&self.pod_cidr);
        options.own_networks = own_networks.to_vec();
        if session.timeout > Duration::ZERO {
            options.operation_limit = session.timeout;
            options.gc_limit = options.gc_limit.min(session.timeout);
        }
        let network = NetworkPlugin::open(options).await;
        let mut options = SandboxOptions::new(&self.state_dir, &self.run_dir);
        options.cgroup_root.clone_from(&self.cgroup_root);
        if self.pause {
            let program = std::env::current_exe()
                .map_err(|err| Report::because(Exit::Files, "can't find this program's own file", err))?;
            options.pause = Some(PauseCommand { program, args: vec!["pod".into(), "pause".into()] });
        }
        Sandboxes::open(options, network).await.map_err(|err| {
            Report::because(Exit::Files, "can't use the directories for pods", err)
                .hint("run it as root, or name others with --state-dir and --run-dir")
        })
    }
}

/// Sleeps until a signal ends the process, as none has a handler here.
fn pause() -> Result<(), Report> {
    loop {
        nix::unistd::pause();
    }
}

/// Parses `NAME` in the namespace `default`, or `NAMESPACE/NAME`.
pub(super) fn pod_id(text: &str) -> Result<PodId, Report> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(usage(format!("\"{text}\" is no name of a pod: expected NAME or NAMESPACE/NAME")));
    }
    Ok(PodId::new(namespace, name))
}

/// Returns an age in one unit, from seconds to days. `created` is in seconds since 1970.
pub(super) fn age_of(created: u64) -> String {
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(created);
    match created.elapsed().unwrap_or_default().as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Returns the sandbox of the pod with this name, or fails if there is none.
fn find_sandbox(sandboxes: &Sandboxes, text: &str, what: &str) -> Result<Sandbox, Report> {
    let id = pod_id(text)?;
    let found = sandboxes.find(&id).map_err(|err| report::report_error(what, &err))?;
    found.ok_or_else(|| {
        Report::because(Exit::Usage, what, format!("there is no pod {id}"))
            .hint("`cnimble pod ls` lists the pods; `cnimble pod up FILE` makes one")
    })
}
