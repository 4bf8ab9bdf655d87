//! Makes the tap device in the pod.

use std::process::{Command, Stdio};

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::Link;
use cnimble_netlink::tap::Tap;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::Call;
use cnimble_plugin::interface::{alone, pair};

use super::ANY;
use super::config::Config;

/// Makes the tap, down, with its owner in its alias and with its undo. Returns it with a netlink socket in the pod.
/// Fails with code 102 if the pod has an interface with that name.
///
/// Until the alias is written, the tap is not persistent, so the kernel removes it if this process ends. With an
/// SELinux context the command `ip` makes it, persistent from the beginning. The kernel labels a tap by its maker, and
/// a process changes its context only by executing a program.
pub(crate) fn create(call: &Call, netns: &NetNs, config: &Config) -> Result<(Link, Netlink), Error> {
    let mut inside = Netlink::open_in(netns)?;
    let home = call.open_netns()?;
    let tap = match &config.selinux_context {
        None => {
            let made = netns.enter(|| Tap::make(&call.ifname, config.tap))?;
            Some(made.or_else(|err| match err.errno {
                // The kernel answers so if the pod has an interface with that name, be it a tap or another kind.
                Errno::EBUSY | Errno::EINVAL if inside.find_link(&call.ifname)?.is_some() => {
                    Err(pair::pod_name_taken(call))
                }
                _ => Err(err.into()),
            })?)
        }
        Some(context) => {
            if inside.find_link(&call.ifname)?.is_some() {
                return Err(pair::pod_name_taken(call));
            }
            let (unmarked, name) = (call.open_netns()?, call.ifname.clone());
            call.undo.push(format!("remove tap {name} from the pod"), move || {
                alone::remove_unfinished(&mut Netlink::open_in(&unmarked)?, &name, ANY)
            });
            netns.enter(|| by_command(call, config, context))??;
            None
        }
    };
    let link = inside.link(&call.ifname)?;
    alone::claim(call, home, &mut inside, &link, None)?;
    if let Some(tap) = tap {
        tap.keep()?;
    }
    Ok((link, inside))
}

/// The SELinux context of the next program that this thread executes (proc_pid_attr(5)).
const NEXT_CONTEXT: &str = "/proc/thread-self/attr/exec";

/// Runs `ip tuntap add` in this thread's namespace with this SELinux context. Fails with code 100.
fn by_command(call: &Call, config: &Config, context: &str) -> Result<(), Error> {
    std::fs::write(NEXT_CONTEXT, context).map_err(|err| {
        Error::new(Code::KERNEL, format!("selinuxContext: can't set the context \"{context}\""))
            .details(format!("{NEXT_CONTEXT}: {err}"))
    })?;
    let mut command = Command::new("ip");
    command.args(["tuntap", "add", "mode", "tap", "name", &call.ifname]);
    for (word, id) in [("user", config.tap.owner), ("group", config.tap.group)] {
        if let Some(id) = id {
            command.args([word.to_owned(), id.to_string()]);
        }
    }
    if config.tap.multi_queue {
        command.arg("multi_queue");
    }
    let output = command.stdin(Stdio::null()).output();
    // The context must not apply to later programs. A child that executes one resets only its own copy.
    let _ = std::fs::write(NEXT_CONTEXT, "");
    let output = output.map_err(|err| {
        command_failed(&format!("{err}; hint: install iproute2, or leave selinuxContext out"))
    })?;
    if output.status.success() {
        Ok(())
    } else {
        Err(command_failed(String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Returns the error for the command that makes a tap, with code 100.
fn command_failed(why: &str) -> Error {
    Error::new(Code::KERNEL, "the command ip tuntap add has failed").details(why)
}
