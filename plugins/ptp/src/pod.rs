//! The pod's end of the veth pair: addresses and routes.

use cnimble_cni::reach::Gateways;
use cnimble_cni::{CniResult, Error};
use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::Call;
use cnimble_plugin::interface::pair::Pair;
use cnimble_plugin::interface::pod::{self, Detection, Start};

use crate::path::{self, Path};

/// Adds the addresses and routes in the pod and sets its end up. Enters the namespace once, and sends one batch of
/// requests there. Returns the socket in the pod.
///
/// The kernel's own routes are replaced last. Until then, the result's routes can use any next hop in the subnet, as
/// with the Go plugin.
pub(crate) fn configure(
    call: &Call,
    netns: &NetNs,
    pair: &Pair,
    paths: &[Path],
    result: &CniResult,
) -> Result<Netlink, Error> {
    let mut inside = netns.enter(|| {
        pod::switches(call, &pair.pod_name, pair.host.peer_netnsid, result, Detection::Off)?;
        Ok::<_, Error>(Netlink::open()?)
    })??;
    let (index, name) = (pair.pod_index, pair.pod_name.as_str());
    let subnets = path::subnets(paths, index);
    let mut requests = pod::up(index, name, result, &Start { announced: true, ..Start::default() });
    for wanted in path::gateways(paths, index).iter().chain(&of_result(result, paths, index)) {
        // The pod may have interfaces and default routes of other networks. `prepend` accepts those.
        requests.push(route::prepend(wanted, name));
    }
    for subnet in &subnets {
        requests.push(route::del(&path::of_kernel(subnet), name));
        requests.push(route::prepend(subnet, name));
    }
    inside.execute_all(requests).map_err(|err| pod::explained(result, Gateways::All, err))?;
    Ok(inside)
}

/// Returns the routes of the result, without those to the subnets that [`path::subnets`] has.
fn of_result(result: &CniResult, paths: &[Path], index: u32) -> Vec<NewRoute> {
    let mut subnets = path::subnets(paths, index);
    for subnet in &mut subnets {
        subnet.src = None;
    }
    let mut routes = pod::routes(index, result);
    // Every gateway has its own route, so no next hop needs `onlink`.
    routes.iter_mut().for_each(|route| route.onlink = false);
    routes.retain(|route| !subnets.contains(route));
    routes
}

/// Returns all routes that the pod has after ADD, for CHECK. Some may be in the list twice.
pub(crate) fn routes(result: &CniResult, paths: &[Path], index: u32) -> Vec<NewRoute> {
    let mut routes = path::gateways(paths, index);
    routes.extend(path::subnets(paths, index));
    routes.extend(pod::routes(index, result));
    routes
}
