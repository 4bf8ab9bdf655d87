//! The texts that both pictures show.

use ipnetwork::IpNetwork;

use cnimble_netlink::route::NewRoute;
use cnimble_rules::objects::pair;

use super::model::{HostLink, Network, Pod, PodGroup, PodInterface};

/// Returns the rows about a pod, each a heading with the lines under it. Empty rows are left out.
pub(super) fn rows(pod: &Pod) -> Vec<(&'static str, Vec<String>)> {
    // A port of a bridge has no addresses or routes here. A link without a bridge is the pod's gateway.
    let host = pod.link.iter().flat_map(|link| {
        let routes = link.routes.iter().map(|route| format!("route {route}"));
        link.addresses.iter().cloned().chain(routes)
    });
    let inside = pod.interface.iter().flat_map(|interface| {
        let on = interface.on.iter().map(|name| format!("{} on {name}", kind(interface)));
        let device = interface.device.iter().map(|name| format!("device {name} of the host"));
        on.chain(interface.port_of.iter().map(|name| format!("port of {name}"))).chain(device)
    });
    let mut rows = vec![
        ("host", host.collect()),
        ("pod", inside.collect()),
        ("address", pod.addresses.clone()),
        ("route", pod.routes.clone()),
        ("rule", pod.rules.iter().map(ToString::to_string).collect()),
        ("problem", pod.problem.iter().cloned().collect()),
    ];
    rows.retain(|(_, lines)| !lines.is_empty());
    rows
}

/// Returns the text on the line to a pod: the host's end of its pair, or an interface on a link of the host. It returns
/// `None` without either.
pub(super) fn end(place: &PodGroup, pod: &Pod) -> Option<String> {
    match (&pod.link, &pod.interface) {
        (Some(end), _) => Some(named(end)),
        (None, Some(interface)) if place.link.is_some() => Some(kind(interface)),
        _ => None,
    }
}

/// Returns the texts on the lines to the pods of a place, and to its other ports.
pub(super) fn ends(place: &PodGroup) -> impl Iterator<Item = String> {
    let of_pods = place.pods.iter().map(|pod| end(place, pod).unwrap_or_default());
    of_pods.chain(place.others.iter().map(named))
}

/// Returns the name of the interface in the pod, and whether it is down. A missing interface has a row `problem`.
pub(super) fn inner(pod: &Pod) -> String {
    match &pod.interface {
        Some(interface) if !interface.up => format!("{} down", pod.ifname),
        _ => pod.ifname.clone(),
    }
}

/// Returns the name of a link with the notes about it.
pub(super) fn named(of: &HostLink) -> String {
    let mut words = vec![of.name.clone()];
    words.extend(link(of));
    words.join(" ")
}

/// Returns the kind of an interface, with its settings if it has some.
fn kind(interface: &PodInterface) -> String {
    interface.settings.clone().unwrap_or_else(|| interface.kind.clone())
}

/// Formats a route as `ip route` prints it, without its link.
pub(super) fn route(route: &NewRoute) -> String {
    let mut text = match route.dst {
        net if net.prefix() == 0 && net.is_ipv6() && route.via.is_none() => "default (IPv6)".to_owned(),
        net if net.prefix() == 0 => "default".to_owned(),
        net => host_or_net(net),
    };
    if let Some(via) = route.via {
        text.push_str(&format!(" via {via}"));
    }
    if let Some(src) = route.src {
        text.push_str(&format!(" src {src}"));
    }
    // IPv6 gives every route a metric.
    if let Some(priority) = route.priority.filter(|priority| *priority != 0 && *priority != 1024) {
        text.push_str(&format!(" metric {priority}"));
    }
    text
}

fn host_or_net(net: IpNetwork) -> String {
    let full = if net.is_ipv4() { 32 } else { 128 };
    if net.prefix() == full { net.ip().to_string() } else { net.to_string() }
}

/// Returns the notes about a network, besides its name.
pub(super) fn network(network: &Network) -> String {
    let pods: usize = network.places.iter().map(|place| place.pods.len()).sum();
    let mut words = Vec::new();
    if let Some(version) = &network.cni_version {
        words.push(format!("CNI {version}"));
    }
    if !network.plugins.is_empty() {
        words.push(network.plugins.join(" "));
    }
    words.push(count(pods, "pod"));
    words.join(", ")
}

/// Returns the text in place of a bridge.
pub(super) fn without_bridge(place: &PodGroup) -> &'static str {
    if place.pods.iter().any(|pod| pod.link.is_some()) {
        "on no bridge"
    } else {
        "without a known link on the host"
    }
}

/// Returns the notes about a link, besides its name and addresses.
pub(super) fn link(link: &HostLink) -> Vec<String> {
    let mut words = Vec::new();
    if link.kind != pair::KIND && !link.kind.is_empty() {
        words.push(link.kind.clone());
    }
    if !link.up {
        words.push("down".to_owned());
    }
    if let Some(port) = link.port {
        for (on, word) in [(port.hairpin, "hairpin"), (port.isolated, "isolated")] {
            if on {
                words.push(word.to_owned());
            }
        }
    }
    words
}

/// Returns a number with a noun, such as `1 pod` or `2 pods`.
pub(super) fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
