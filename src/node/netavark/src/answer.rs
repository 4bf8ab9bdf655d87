//! The answer of `setup`, a status block of netavark's. It has the container's interface alone: with another one podman
//! would not know which of them it reloads.

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};

use cnimble_cni::CniResult;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_runtime::Attach;

use crate::Failure;

/// Returns the MAC of the container's interface. If the result has none, the kernel is asked.
pub(crate) fn mac(result: &CniResult, attach: &Attach) -> Result<String, Failure> {
    let mut inside = result.interfaces.iter().filter(|of| !of.sandbox.is_empty() && of.name == attach.ifname);
    if let Some(interface) = inside.next().filter(|of| !of.mac.is_empty()) {
        return Ok(interface.mac.clone());
    }
    let ns = NetNs::open(Path::new(&attach.netns))?;
    let link = Netlink::open_in(&ns)?.find_link(&attach.ifname)?;
    let mac = link.and_then(|link| link.mac);
    // podman requires a MAC. A device that the kernel does not know has none.
    Ok(mac.map_or_else(|| "00:00:00:00:00:00".to_owned(), |mac| mac.to_string()))
}

/// Returns the status block.
pub(crate) fn answer(result: &CniResult, attach: &Attach, mac: &str) -> Value {
    let of_interface = result.ips.iter().filter(|ip| {
        let interface = ip.interface.and_then(|index| result.interfaces.get(index as usize));
        interface.is_none_or(|of| of.name == attach.ifname)
    });
    let subnets: Vec<Value> = of_interface
        .map(|ip| match ip.gateway {
            Some(gateway) => json!({"ipnet": ip.address.to_string(), "gateway": gateway}),
            None => json!({"ipnet": ip.address.to_string()}),
        })
        .collect();
    let mut answer = json!({"interfaces": {&attach.ifname: {"mac_address": mac, "subnets": subnets}}});
    // Name servers in the answer replace the user's `--dns`, of which this driver does not know.
    let servers: Vec<IpAddr> = result.dns.nameservers.iter().filter_map(|ip| ip.parse().ok()).collect();
    if let (Some(object), false) = (answer.as_object_mut(), servers.is_empty()) {
        object.insert("dns_server_ips".into(), json!(servers));
        object.insert("dns_search_domains".into(), json!(result.dns.search));
    }
    answer
}

#[cfg(test)]
mod tests {
    use cnimble_cni::Version;

    use super::*;

    fn result(value: &Value) -> CniResult {
        CniResult::from_value(value, Version::V1_0_0, "").unwrap()
    }

    #[test]
    fn only_the_containers_interface_is_told() {
        let result = result(&json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                {"name": "br-web", "mac": "0a:00:00:00:00:01"},
                {"name": "eth0", "mac": "0a:00:00:00:00:02", "sandbox": "/run/netns/one"},
                {"name": "eth9", "mac": "0a:00:00:00:00:03", "sandbox": "/run/netns/one"},
            ],
            "ips": [
                {"address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 1},
                {"address": "10.9.0.3/24", "interface": 2},
                {"address": "fd00::3/64"},
            ],
        }));
        let attach = Attach::new("c0ffee", "/run/netns/one", "eth0");
        let mac = mac(&result, &attach).unwrap();
        assert_eq!(
            answer(&result, &attach, &mac),
            json!({"interfaces": {"eth0": {
                "mac_address": "0a:00:00:00:00:02",
                "subnets": [{"ipnet": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"ipnet": "fd00::3/64"}],
            }}})
        );
    }

    #[test]
    fn name_servers_are_told_if_there_are_some() {
        let result = result(&json!({
            "cniVersion": "1.0.0",
            "dns": {"nameservers": ["192.0.2.53", "no address"], "search": ["example.org"]},
        }));
        let answer = answer(&result, &Attach::new("c0ffee", "", "eth0"), "0a:00:00:00:00:02");
        assert_eq!(answer["dns_server_ips"], json!(["192.0.2.53"]));
        assert_eq!(answer["dns_search_domains"], json!(["example.org"]));
    }
}
