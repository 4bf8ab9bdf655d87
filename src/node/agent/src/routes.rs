//! The agent's routes in the kernel.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{Netlink, Request};

use crate::Report;
use crate::plan::{Hop, PROTOCOL};

/// How many requests are sent together.
const AT_ONCE: usize = 64;

/// Returns the requests that lead from `current` to `wanted`. Only routes of [`PROTOCOL`] are removed. A new route is
/// added before the old one to the same network is removed.
pub(crate) fn difference(current: &[(NewRoute, u8)], wanted: &BTreeMap<IpNetwork, Hop>) -> Vec<Request> {
    let mut ours: BTreeMap<IpNetwork, Vec<&NewRoute>> = BTreeMap::new();
    for (route, _) in current.iter().filter(|(_, by)| *by == PROTOCOL) {
        ours.entry(route.dst).or_default().push(route);
    }
    let mut requests = Vec::new();
    for (dst, hop) in wanted {
        let existing = ours.remove(dst).unwrap_or_default();
        if !existing.iter().any(|route| leads_to(route, hop)) {
            let new = NewRoute { via: hop.via, ..NewRoute::to(*dst, hop.index) };
            // A route of another program may have appeared. The kernel must then refuse the new one, so it is added
            // exclusively.
            let make = if existing.is_empty() { route::add_of } else { route::append_of };
            requests.push(make(&new, &name_link(hop.index), PROTOCOL));
        }
        requests.extend(existing.into_iter().filter(|route| !leads_to(route, hop)).map(deletion));
    }
    requests.extend(ours.into_values().flatten().map(deletion));
    requests
}

fn leads_to(route: &NewRoute, hop: &Hop) -> bool {
    route.via == hop.via && route.index == hop.index
}

/// Returns the text that stands for the name of a link in errors.
fn name_link(index: u32) -> String {
    format!("number {index}")
}

fn deletion(route: &NewRoute) -> Request {
    let old = NewRoute { priority: route.priority, via: route.via, ..NewRoute::to(route.dst, route.index) };
    route::del_of(&old, &name_link(route.index), PROTOCOL)
}

/// Changes the agent's routes to `wanted`. Goes on past failures, which are added to the report.
pub(crate) fn apply(
    netlink: &mut Netlink,
    current: &[(NewRoute, u8)],
    wanted: &BTreeMap<IpNetwork, Hop>,
    report: &mut Report,
) {
    let requests = difference(current, wanted);
    report.writes += requests.len();
    let mut requests = requests.into_iter().peekable();
    while requests.peek().is_some() {
        let some: Vec<Request> = requests.by_ref().take(AT_ONCE).collect();
        match netlink.execute_all(some) {
            // The kernel removes the routes of a link that goes, so an old route may be gone (ESRCH).
            Ok(()) => {}
            Err(err) if err.is(Errno::ESRCH) => {}
            Err(err) => report.failures.push(err.to_string()),
        }
    }
}
