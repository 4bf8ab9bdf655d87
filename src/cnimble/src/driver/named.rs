//! A network of the CNI configuration directory (`--opt network=NAME`).

use serde_json::{Map, Value};

use cnimble_netavark::input::Network;
use cnimble_netavark::options::{CONF_DIR, COPY, NETWORK, Options, PLUGIN_DIR, PUBLISH};
use cnimble_netavark::{Failure, rootless, said};
use cnimble_runtime::{ConfDir, Network as Found, inlined_config};

use super::create::{must_be_faultless, must_work_rootless, parse, set_text};
use crate::lint;

/// Checks the CNI network `name`, and puts a copy of it into podman's network. The copy counts from then on, so that a
/// changed file changes no network that containers use.
pub(super) async fn create(
    document: &mut Map<String, Value>,
    network: &Network,
    name: &str,
) -> Result<(), Failure> {
    let given = Options::new(network.options.as_ref());
    let known = [NETWORK, CONF_DIR, PLUGIN_DIR, PUBLISH];
    given.must_be_among(&known, "a network of the CNI configuration directory")?;
    must_describe_nothing(network)?;
    let found = find(&ConfDir::new(given.conf_dir()), name)?;
    let path = found.path.display().to_string();
    let text = std::fs::read_to_string(&found.path)
        .map_err(|err| Failure::Said(format!("reading {path}: {err}")))?;
    must_be_faultless(&path, &lint::by_itself(&parse(&path, text)?))?;
    let invoker = cnimble_netavark::invoker(given);
    invoker.validate(&found.list).await?;
    if rootless::user().is_some() {
        must_work_rootless(&found.list)?;
    } else {
        // From 1.1.0 on the plugins themselves are asked whether they can serve the network. For a user they can only be
        // asked in the namespace of the containers, where `create` does not run.
        invoker.status(&found.list).await?;
    }
    if given.flag(PUBLISH)? == Some(true) && !found.list.takes("portMappings") {
        return said(format!("publish=true: no plugin of {path} takes the capability portMappings"));
    }
    set_text(document, "options", COPY, &inlined_config(&found.list).to_string());
    // The CNI network's own IPAM gives the addresses.
    set_text(document, "ipam_options", "driver", "none");
    Ok(())
}

/// Fails if podman's network has what only the CNI network can say.
fn must_describe_nothing(network: &Network) -> Result<(), Failure> {
    let described = [
        ("--subnet", !network.subnets().is_empty()),
        ("--route", !network.routes().is_empty()),
        ("--interface-name", network.interface().is_some()),
        ("--internal", network.internal),
        ("--ipv6", network.ipv6_enabled),
        ("--ipam-driver", network.ipam_driver().is_some_and(|driver| driver != "none")),
    ];
    match described.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => {
            said(format!("{option} does not go with --opt {NETWORK}: the CNI network's file says this"))
        }
    }
}

/// Returns the network and its file.
fn find(dir: &ConfDir, name: &str) -> Result<Found, Failure> {
    let mut networks = dir.list()?.networks.into_iter();
    match networks.find(|network| network.list.name == name) {
        Some(network) => Ok(network),
        // This error has the names of the other networks, and the files that can't be used.
        None => dir.load(name).map_err(Failure::from).and_then(|_| said(format!("{name} has just come"))),
    }
}
