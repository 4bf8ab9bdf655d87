//! A runtime: runs a command in a network namespace of its own, attached to a network.
//!
//! ```text
//! cargo run --example run -- mynet ip address
//! ```
//!
//! Networks are looked for in NETCONFPATH, plugins in CNI_PATH. The command gets its container ID in CONTAINER.

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Duration;

use cnimble_netlink::NetNs;
use cnimble_runtime::cni::NetworkList;
use cnimble_runtime::{Attach, ConfDir, Invoker, Stderr};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [network, program, args @ ..] = args.as_slice() else {
        return Err("usage: run NETWORK COMMAND [ARGUMENT]...".into());
    };
    let network = ConfDir::new(read_variable("NETCONFPATH", "/etc/cni/net.d")).load(network)?;
    let path = read_variable("CNI_PATH", "/opt/cni/bin");
    let invoker = Invoker::new(std::env::split_paths(&path))
        // Plugins hang: a lock that is held, a DHCP server that is away.
        .with_time_limit(Duration::from_secs(60))
        // A failing plugin's last words become part of the error.
        .with_stderr(Stderr::Capture);
    // Nothing is touched by these.
    invoker.validate(&network).await?;
    invoker.status(&network).await?;

    let netns = NetNs::create()?;
    let container = format!("run-{}", std::process::id());
    let attach = Attach::new(container.as_str(), netns.path(), "eth0").arg("IgnoreUnknown", "1");
    // A failed ADD has been undone when it returns.
    let added = invoker.add(&network, &attach).await?;
    for ip in &added.result.ips {
        eprintln!("{container} has {}", ip.address);
    }
    let mut command = Command::new(program);
    command.args(args).env("CONTAINER", &container);
    // A child begins in the namespace of the thread that starts it.
    let outcome = netns.enter(|| command.spawn())?.and_then(|mut child| child.wait());
    detach(&invoker, &network, &attach).await?;
    Ok(if outcome?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the value of an environment variable, or `or` if it is unset or no UTF-8.
fn read_variable(name: &str, or: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| or.to_owned())
}

/// A DEL that fails may be repeated: what worked the first time is done already.
async fn detach(invoker: &Invoker, network: &NetworkList, attach: &Attach) -> Result<(), Box<dyn Error>> {
    if let Err(err) = invoker.del(network, attach).await {
        eprintln!("once more: {err}");
        invoker.del(network, attach).await?;
    }
    Ok(())
}
