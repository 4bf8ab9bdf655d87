//! The CNI IPAM plugin `static`: hands out the addresses in the configuration, or those that a runtime asks for
//! (`config` has the sources). It keeps no state, so the author of the configuration makes sure that an address is
//! free.

mod config;

use std::net::IpAddr;

use cnimble_cni::{CniResult, Error};
use cnimble_plugin::{Call, Caps, Plugin, Role};

use config::Config;

pub static PLUGIN: &dyn Plugin = &Static;

struct Static;

impl Plugin for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn role(&self) -> Role {
        Role::Helper
    }

    fn needs(&self) -> Caps {
        Caps::NONE
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config, &call.args()?).map(drop)
    }

    /// Returns the addresses. As in the Go plugin, none is a valid answer, and the calling plugin decides about it.
    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config, &call.args()?)?;
        Ok(CniResult::ipam(config.ips, config.routes, config.dns))
    }

    fn del(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// Fails with code 103 unless prevResult has every address and each configured gateway. A gateway that is not
    /// configured is not compared.
    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config, &call.args()?)?;
        for wanted in &config.ips {
            let Some(found) = prev.ips.iter().find(|ip| ip.address == wanted.address) else {
                return Err(Error::check(format!(
                    "static: prevResult lacks the address {} of {}",
                    wanted.address, call.ifname
                )));
            };
            if wanted.gateway.is_some() && found.gateway != wanted.gateway {
                return Err(Error::check(format!(
                    "static: Failed to match addr {} on interface {}",
                    wanted.address, call.ifname
                ))
                .details(format!(
                    "its gateway is {} in prevResult, and {} in the configuration",
                    gateway_text(found.gateway),
                    gateway_text(wanted.gateway)
                )));
            }
        }
        Ok(())
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config, &call.args()?).map(drop)
    }
}

/// Returns the gateway for an error text, or `none`.
fn gateway_text(gateway: Option<IpAddr>) -> String {
    gateway.map_or_else(|| "none".to_owned(), |gateway| gateway.to_string())
}
