//! Attaches a network namespace to a network, shows its addresses, and detaches it again:
//!
//! ```text
//! ip netns add blue
//! cargo run --example attach -- mynet /run/netns/blue
//! ```
//!
//! Plugins are looked for in CNI_PATH, networks in NETCONFPATH, as by the command.

use std::error::Error;
use std::time::Duration;

use cnimble_runtime::{Attach, ConfDir, Invoker, Stderr};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(name), Some(netns)) = (args.next(), args.next()) else {
        return Err("usage: attach NETWORK NETNS".into());
    };
    let variable = |name, or: &str| std::env::var(name).unwrap_or_else(|_| or.to_owned());
    let network = ConfDir::new(variable("NETCONFPATH", "/etc/cni/net.d")).load(&name)?;
    let path = variable("CNI_PATH", "/opt/cni/bin");
    let invoker = Invoker::new(std::env::split_paths(&path))
        // Plugins hang: a lock that is held, a DHCP server that is away.
        .with_time_limit(Duration::from_secs(60))
        // A failing plugin's last words become part of the error.
        .with_stderr(Stderr::Capture);

    // Would it work? Nothing is touched yet.
    let capabilities = invoker.validate(&network).await?;
    println!("{name}: CNI {}, takes {capabilities:?}", network.version);
    invoker.status(&network).await?;

    let attach = Attach::new("example", netns, "eth0").arg("IgnoreUnknown", "1");
    let added = invoker.add(&network, &attach).await?;
    for ip in added.result.ips {
        println!("  {}", ip.address);
    }

    // A DEL that fails may be repeated: what worked the first time is done already.
    invoker.del(&network, &attach).await?;
    Ok(())
}
