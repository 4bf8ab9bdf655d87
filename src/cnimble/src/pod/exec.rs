//! `cnimble pod exec`: runs a command in a pod's namespace.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use cnimble_netlink::NetNs;
use cnimble_pod::sandbox::Sandboxes;

use super::super::report::{Exit, Report};
use super::find_sandbox;
use crate::args::pod::Exec;

/// Replaces this process by the command, and returns only if that fails. If the pod's resolv.conf can't be mounted, the
/// command runs with the node's.
pub(super) fn exec(sandboxes: &Sandboxes, given: &Exec) -> Result<(), Report> {
    let what = format!("can't run a command in pod {}", given.named.pod);
    let failed = |why: String| Report::because(Exit::Execution, &what, why);
    let sandbox = find_sandbox(sandboxes, &given.named.pod, &what)?;
    if let Some(fault) = sandboxes.fault(&sandbox) {
        return Err(failed(fault.to_string()).hint("`cnimble pod up FILE` sets it up again"));
    }
    let Some((program, args)) = given.command.split_first() else {
        return Err(failed("no command was given".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(args);
    let netns = match &sandbox.netns {
        Some(path) => NetNs::open(path),
        None => NetNs::current(),
    };
    let netns = netns.map_err(|err| failed(err.to_string()))?;
    if let Some(path) = &sandbox.resolv_conf
        && let Err(err) = resolve_with(path)
    {
        log::warn!("{} is not used: {err}", path.display());
    }
    let outcome = netns.enter(|| command.exec());
    let why = match outcome {
        Ok(err) => format!("{}: {err}", program.display()),
        Err(err) => err.to_string(),
    };
    Err(failed(why))
}

/// Mounts the pod's resolv.conf over the node's, for this process and the command, like ip-netns(8).
fn resolve_with(path: &Path) -> io::Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Later mounts on the node still appear here, but mounts here don't propagate to the node.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    mount(Some(path), "/etc/resolv.conf", none, MsFlags::MS_BIND, none)?;
    Ok(())
}
