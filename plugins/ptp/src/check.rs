//! CHECK: host, pod and rules are as ADD left them.

use cnimble_cni::{CniResult, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::Call;
use cnimble_plugin::interface::check;
use cnimble_rules::masquerade;

use crate::config::Config;
use crate::{path, pod};

/// Checks everything but the lease, which IPAM checks.
pub(crate) fn attachment(call: &Call, config: &Config, prev: &CniResult) -> Result<(), Error> {
    let prev = check::of_this_interface(call, prev);
    let mut of_ours = prev.clone();
    let paths = path::paths(&mut of_ours, &config.ipam).map_err(|err| err.context("prevResult"))?;
    let netns = call.open_netns()?;
    let mut host = Netlink::open()?;
    let mut inside = Netlink::open_in(&netns)?;

    let pod = check::pod(call, &mut inside, &prev, "veth", true)?;
    check::addresses(&mut inside, &pod, &prev)?;
    check::routes(&mut inside, &pod, &pod::routes(&prev, &paths, pod.index), "in the pod")?;

    let end = check::host_end(&mut host, &pod)?;
    check::host_state(&end, &prev)?;
    let present = host.addrs(end.index)?;
    for wanted in path::host_addresses(&paths) {
        if !present.iter().any(|addr| addr.net == wanted) {
            return Err(Error::check(format!("{} lacks the gateway address {wanted}", end.name)));
        }
    }
    check::routes(&mut host, &end, &path::to_pod(&paths, end.index), "on the host")?;

    if config.ip_masq {
        let addrs = config.ip_masq_families.of(paths.iter().map(|path| path.address));
        masquerade::check(&mut Nft::new(), &call.owner(), &addrs)?;
    }
    Ok(())
}
