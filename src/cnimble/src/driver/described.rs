//! A network that podman describes.

use serde_json::{Map, Value, json};

use cnimble_netavark::describe::{Container, Description, sample_address};
use cnimble_netavark::input::Network;
use cnimble_netavark::options::{DEFAULT_ROUTE, Options};
use cnimble_netavark::{Failure, rootless, said};

use super::create::{must_be_faultless, must_work_rootless, parse, set_text};
use super::subnets;
use crate::lint;

/// Checks the description, and chooses the subnets that are missing.
pub(super) async fn create(document: &mut Map<String, Value>, mut network: Network) -> Result<(), Failure> {
    Description::read(&network)?;
    if let Some(driver) = network.ipam_driver().filter(|driver| *driver != "host-local") {
        return said(format!(
            "--ipam-driver {driver}: write a CNI network with such addresses, and name it with --opt network=NAME"
        ));
    }
    subnets::choose(document, &mut network)?;
    let given = Options::new(network.options.as_ref());
    given.flag(DEFAULT_ROUTE)?;
    let mut addresses = Vec::new();
    for subnet in network.subnets() {
        match sample_address(subnet.subnet) {
            Some(ip) => addresses.push(ip),
            None => return said(format!("the subnet {} has no address for a container", subnet.subnet)),
        }
    }
    let description = Description::read(&network)?;
    let container =
        Container { addresses: &addresses, has_default_route: true, publishes: true, has_wished_mac: false };
    let list = description.list(&container)?;
    let what = format!("network {}", network.name);
    must_be_faultless(&what, &lint::by_itself(&parse("-", list.document.to_string())?))?;
    if rootless::user().is_some() {
        must_work_rootless(&list)?;
    }
    cnimble_netavark::invoker(given).validate(&list).await?;
    // podman's IPAM gives the addresses. Without this it would take an `--ip` outside the subnets for none.
    set_text(document, "ipam_options", "driver", "host-local");
    if !network.subnets().is_empty() {
        document.insert("ipv6_enabled".into(), json!(network.subnets().iter().any(|of| of.subnet.is_ipv6())));
    }
    Ok(())
}
