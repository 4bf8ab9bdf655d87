//! A container on a network, in the terms of CNI: the network's configuration, CNI_ARGS and capability arguments.

use std::net::IpAddr;

use serde_json::{Map, Value};

use cnimble_cni::{NetworkList, json, names};
use cnimble_runtime::Attach;

use crate::describe::{Container, Description};
use crate::input::{Call, PortMapping};
use crate::options::{COPY, DEFAULT_ROUTE, NETWORK, Options, PUBLISH, chosen, is_of_first_network};
use crate::rootless;
use crate::wish;
use crate::{Failure, said};

/// The key of CNI_ARGS with the name of podman's network. It marks the attachments of this driver.
pub(crate) const MARK: &str = "PODMAN_NETWORK";

/// The key of CNI_ARGS with the container's name. podman 4 passes it, too, and cnimble finds the attachment by it.
const NAME: &str = "K8S_POD_NAME";

/// The key of CNI_ARGS by which a plugin ignores keys that it does not know.
const IGNORE: &str = "IgnoreUnknown";

/// The keys of CNI_ARGS that this driver gives, and what the user can say instead.
const OWN: &[(&str, &str)] = &[
    (MARK, "the driver gives the network's name"),
    (NAME, "the driver gives the container's name"),
    (IGNORE, "the driver gives it"),
    (wish::IP, "use --ip"),
    (wish::MAC, "use --mac-address"),
];

/// Returns whether podman's network is one of the CNI configuration directory.
pub(crate) fn is_named(call: &Call) -> bool {
    Options::new(call.network.options.as_ref()).get(NETWORK).is_some()
}

/// Returns the CNI network: the copy that `create` made, or the one that podman describes for this container.
pub(crate) fn network(call: &Call) -> Result<NetworkList, Failure> {
    if is_named(call) {
        let copy = Options::new(call.network.options.as_ref()).get(COPY);
        let Some(copy) = copy else {
            return said(format!(
                "network {} has lost its option {COPY}; create it again",
                call.network.name
            ));
        };
        let mut copy = json::parse_object(copy.as_bytes(), "the copy of the CNI network")?;
        if rootless::user().is_some() {
            rootless::place_leases(&mut copy);
        }
        return Ok(NetworkList::from_value(copy)?.complete()?);
    }
    let addresses: &[IpAddr] = call.network_options.static_ips();
    Description::read(&call.network)?.list(&Container {
        addresses,
        has_default_route: has_default_route(call)?,
        publishes: !ports(call)?.is_empty(),
        has_wished_mac: call.network_options.static_mac().is_some(),
    })
}

/// Returns the attachment, without a wish for an address or a MAC.
pub(crate) fn attach(netns: &str, call: &Call, network: &NetworkList) -> Result<Attach, Failure> {
    let wanted = &call.network_options;
    // Both are parts of a record's file name, which is written before the invoker checks them.
    if !names::is_identifier(&call.container_id) {
        return said(format!("invalid container ID \"{}\"", call.container_id.escape_debug()));
    }
    if let Some(problem) = names::interface_problem(&wanted.interface_name) {
        return said(format!("the interface \"{}\": {problem}", wanted.interface_name.escape_debug()));
    }
    let mut attach = Attach::new(call.container_id.as_str(), netns, wanted.interface_name.as_str())
        .arg(IGNORE, "1")
        .arg(NAME, call.container_name.as_str())
        .arg(MARK, call.network.name.as_str());
    if is_named(call) && both_options(call).0.get(DEFAULT_ROUTE).is_some() {
        return said(format!(
            "{DEFAULT_ROUTE} is for networks that podman describes; a CNI network has its own routes"
        ));
    }
    let ports = ports(call)?;
    if !ports.is_empty() {
        must_publish(call, network)?;
        attach = attach.capability("portMappings", ports);
    }
    for (key, value) in wanted.options.iter().flatten() {
        if key == PUBLISH || key == DEFAULT_ROUTE {
            continue;
        }
        attach = pass_on(attach, network, key, value)?;
    }
    Ok(attach)
}

/// Passes an option of the container on to the plugins: `CAPABILITY=VALUE` and `CAPABILITY.KEY=VALUE` as a capability
/// argument, and any other one as a pair of CNI_ARGS.
fn pass_on(mut attach: Attach, network: &NetworkList, key: &str, value: &str) -> Result<Attach, Failure> {
    let (capability, rest) = match key.split_once('.') {
        Some((capability, rest)) => (capability, Some(rest)),
        None => (key, None),
    };
    let Some(rest) = rest else {
        if network.takes(capability) {
            return Ok(attach.capability(capability, value));
        }
        if key.is_empty() || key.contains(['=', ';']) || value.contains(['=', ';']) {
            return said(format!("{key}={value}: neither part of a pair of CNI_ARGS can contain = or ;"));
        }
        if let Some((_, instead)) = OWN.iter().find(|(own, _)| *own == key) {
            return said(format!("{key}={value}: this key of CNI_ARGS is taken: {instead}"));
        }
        return Ok(attach.arg(key, value));
    };
    if !network.takes(capability) {
        return said(format!(
            "{key}={value}: no plugin of network {} takes the capability {capability}",
            network.name
        ));
    }
    let argument = attach.capability_args.entry(capability).or_insert_with(|| Map::new().into());
    let Some(argument) = argument.as_object_mut() else {
        return said(format!("{key}={value}: {capability} was given a value of its own, too"));
    };
    // Numbers, `true` and `false` are what they look like. Everything else is text.
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    argument.insert(rest.to_owned(), value);
    Ok(attach)
}

/// Returns the ports that this network publishes, in the form of the capability `portMappings`.
fn ports(call: &Call) -> Result<Vec<Value>, Failure> {
    let (container, network) = both_options(call);
    let ifname = &call.network_options.interface_name;
    let publishes = chosen(PUBLISH, container, network)?.unwrap_or_else(|| is_of_first_network(ifname));
    let mut ports = Vec::new();
    for mapping in call.port_mappings.iter().flatten().filter(|_| publishes) {
        expand(mapping, &mut ports)?;
    }
    Ok(ports)
}

/// Appends a mapping for each port and protocol of a range.
fn expand(mapping: &PortMapping, ports: &mut Vec<Value>) -> Result<(), Failure> {
    let protocols = if mapping.protocol.is_empty() { "tcp" } else { &mapping.protocol };
    for protocol in protocols.split(',') {
        for offset in 0..mapping.range.max(1) {
            let host = mapping.host_port.checked_add(offset);
            let (Some(host), Some(inside)) = (host, mapping.container_port.checked_add(offset)) else {
                return said(format!(
                    "the range of {} ports from {} on ends beyond 65535",
                    mapping.range, mapping.host_port
                ));
            };
            let mut port = Map::new();
            port.insert("hostPort".into(), host.into());
            port.insert("containerPort".into(), inside.into());
            port.insert("protocol".into(), protocol.into());
            if !mapping.host_ip.is_empty() {
                port.insert("hostIP".into(), mapping.host_ip.as_str().into());
            }
            ports.push(port.into());
        }
    }
    Ok(())
}

/// Fails if the network can't publish the container's ports. Otherwise they would be missing without a word.
fn must_publish(call: &Call, network: &NetworkList) -> Result<(), Failure> {
    if network.takes("portMappings") {
        return Ok(());
    }
    said(format!(
        "network {name} can't publish ports: publish them by another network, and say --network {name}:{PUBLISH}=false",
        name = call.network.name
    ))
}

/// Returns whether the container's default route leads by this described network.
fn has_default_route(call: &Call) -> Result<bool, Failure> {
    let (container, network) = both_options(call);
    let ifname = &call.network_options.interface_name;
    Ok(chosen(DEFAULT_ROUTE, container, network)?.unwrap_or_else(|| is_of_first_network(ifname)))
}

/// Returns the options of the container on its network, and those of the network.
fn both_options(call: &Call) -> (Options<'_>, Options<'_>) {
    let container = Options::new(call.network_options.options.as_ref());
    (container, Options::new(call.network.options.as_ref()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(more: &Value) -> Call {
        let mut call = json!({
            "container_id": "c0ffee",
            "container_name": "one",
            "network": {"name": "web", "subnets": [{"subnet": "10.89.1.0/24", "gateway": "10.89.1.1"}]},
            "network_options": {"interface_name": "eth0", "static_ips": ["10.89.1.7"]},
        });
        for (key, value) in more.as_object().unwrap() {
            match call[key].as_object_mut() {
                Some(object) => object.extend(value.as_object().unwrap().clone()),
                None => call[key] = value.clone(),
            }
        }
        serde_json::from_value(call).unwrap()
    }

    fn attached(call: &Call) -> Result<Attach, Failure> {
        attach("/run/netns/one", call, &network(call)?)
    }

    #[test]
    fn a_range_is_many_ports() {
        let call = call(&json!({"port_mappings": [
            {"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp,udp", "range": 2},
            {"container_port": 53, "host_ip": "127.0.0.1", "host_port": 53, "protocol": "", "range": 0},
        ]}));
        assert_eq!(
            attached(&call).unwrap().capability_args["portMappings"],
            json!([
                {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": 8081, "containerPort": 81, "protocol": "tcp"},
                {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
                {"hostPort": 8081, "containerPort": 81, "protocol": "udp"},
                {"hostPort": 53, "containerPort": 53, "protocol": "tcp", "hostIP": "127.0.0.1"},
            ])
        );
    }

    #[test]
    fn a_range_beyond_the_last_port_is_refused() {
        let mapping =
            json!({"container_port": 80, "host_ip": "", "host_port": 65535, "protocol": "tcp", "range": 2});
        let refused = attached(&call(&json!({ "port_mappings": [mapping] }))).unwrap_err().to_string();
        assert!(refused.contains("65535"), "{refused}");
    }

    #[test]
    fn only_the_first_network_publishes() {
        let ports =
            json!([{"container_port": 80, "host_ip": "", "host_port": 80, "protocol": "tcp", "range": 1}]);
        let second = call(&json!({"port_mappings": ports, "network_options": {"interface_name": "eth1"}}));
        assert!(attached(&second).unwrap().capability_args.is_empty());
        assert_eq!(network(&second).unwrap().plugins[0].document["ipam"]["routes"], json!([]));
        let options = json!({"publish": "true", "default-route": "true"});
        let second = call(
            &json!({"port_mappings": ports, "network_options": {"interface_name": "eth1", "options": options}}),
        );
        assert_eq!(attached(&second).unwrap().capability_args["portMappings"].as_array().unwrap().len(), 1);
        assert_eq!(
            network(&second).unwrap().plugins[0].document["ipam"]["routes"],
            json!([{"dst": "0.0.0.0/0"}])
        );
    }

    #[test]
    fn options_become_capabilities_and_cni_args() {
        let list = json!({"cniVersion": "1.0.0", "name": "n", "plugins": [
            {"type": "bridge", "capabilities": {"bandwidth": true, "mac": true}},
        ]});
        let list = NetworkList::from_value(list).unwrap();
        let start = || Attach::new("c0ffee", "", "eth0");
        let attach = pass_on(start(), &list, "bandwidth.ingressRate", "1000").unwrap();
        let attach = pass_on(attach, &list, "bandwidth.egressRate", "2000").unwrap();
        assert_eq!(attach.capability_args["bandwidth"], json!({"ingressRate": 1000, "egressRate": 2000}));
        assert_eq!(
            pass_on(start(), &list, "mac", "0a:58:00:00:00:01").unwrap().capability_args["mac"],
            "0a:58:00:00:00:01"
        );
        assert_eq!(
            pass_on(start(), &list, "TENANT", "blue").unwrap().args,
            [("TENANT".to_owned(), "blue".to_owned())]
        );
        let refused = pass_on(start(), &list, "dns.servers", "x").unwrap_err().to_string();
        assert!(refused.contains("capability dns"), "{refused}");
        for (key, value) in
            [("TENANT", "a;b=c"), ("TEN=ANT", "a"), ("", "a"), ("IP", "10.1.2.3"), (MARK, "web")]
        {
            assert!(pass_on(start(), &list, key, value).is_err(), "{key}={value}");
        }
    }
}
