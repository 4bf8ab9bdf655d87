//! Configures the pod's end: addresses, state and routes.

use cnimble_cni::{CniResult, Error};
use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::Call;
use cnimble_plugin::interface::pair::Pair;
use cnimble_plugin::interface::pod::{self, Detection, Start};

use crate::path::{self, Path};

/// Configures the interface. Enters the namespace once, and sends one message to the kernel there.
/// Returns the socket in the pod.
///
/// The kernel's own routes to the subnets are replaced last. Until then, routes of the result can use
/// any next hop in the subnet, as with the Go plugin.
pub(crate) fn configure(
    call: &Call,
    netns: &NetNs,
    pair: &Pair,
    paths: &[Path],
    result: &CniResult,
) -> Result<Netlink, Error> {
    let mut inside = netns.enter(|| {
        pod::switches(call, &pair.pod_name, pair.host.far, result, Detection::Off)?;
        Ok::<_, Error>(Netlink::open()?)
    })??;
    let (index, name) = (pair.pod_index, pair.pod_name.as_str());
    let subnets = path::subnets(paths, index);
    let mut requests = pod::up(index, name, result, &Start { announced: true, ..Start::default() });
    for wanted in path::gateways(paths, index).iter().chain(&of_result(result, paths, index)) {
        // The pod may have interfaces and default routes of other networks.
        requests.push(route::prepend(wanted, name));
    }
    for subnet in &subnets {
        requests.push(route::del(&path::of_kernel(subnet), name));
        requests.push(route::prepend(subnet, name));
    }
    inside.execute_all(requests)?;
    Ok(inside)
}

/// Returns the result's routes, except those that the pod has already.
fn of_result(result: &CniResult, paths: &[Path], index: u32) -> Vec<NewRoute> {
    let mut subnets = path::subnets(paths, index);
    for subnet in &mut subnets {
        subnet.src = None;
    }
    let mut routes = pod::routes(index, result);
    routes.retain(|route| !subnets.contains(route));
    routes
}

/// Returns all routes of the pod's interface.
pub(crate) fn routes(result: &CniResult, paths: &[Path], index: u32) -> Vec<NewRoute> {
    let mut routes = path::gateways(paths, index);
    routes.extend(path::subnets(paths, index));
    routes.extend(pod::routes(index, result));
    routes
}
