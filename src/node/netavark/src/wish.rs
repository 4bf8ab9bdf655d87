//! The addresses and the MAC that podman asks for: those of `--ip` and `--mac-address`, or at a reload those from before.

use std::net::IpAddr;

use serde_json::Value;

use cnimble_cni::{CniResult, NetworkList};
use cnimble_netlink::link::Mac;
use cnimble_runtime::Attach;

use crate::attach::is_named;
use crate::input::Call;
use crate::reload::Note;

/// The key of CNI_ARGS with one address.
pub(crate) const IP: &str = "IP";

/// The key of CNI_ARGS with the MAC.
pub(crate) const MAC: &str = "MAC";

/// The addresses and the MAC that the container is to have.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Addresses that a plugin has to be asked for. A described network has them in its configuration.
    ips: Vec<IpAddr>,
    mac: Option<String>,
    /// Whether a network that can't fulfil the wish is an error. It is none at a reload: the user has not asked.
    pub(crate) is_required: bool,
}

impl Wish {
    /// Returns the wish of a call. `before` is what the container had on this network before a reload.
    pub(crate) fn from_call(call: &Call, before: Option<&Note>) -> Self {
        let wanted = &call.network_options;
        let ips = if is_named(call) { wanted.static_ips().to_vec() } else { Vec::new() };
        let mac = wanted.static_mac().map(str::to_owned);
        let is_required = !before.is_some_and(|note| note.had(&ips, mac.as_deref()));
        Wish { ips, mac, is_required }
    }

    /// Returns whether nothing is wished.
    pub(crate) fn is_empty(&self) -> bool {
        self.ips.is_empty() && self.mac.is_none()
    }

    /// Adds the wish to an attachment, as podman 4 does: one address and the MAC by CNI_ARGS, several addresses by the
    /// capability `ips`.
    pub(crate) fn asked(&self, mut attach: Attach, network: &NetworkList) -> Attach {
        match self.ips.as_slice() {
            [] => {}
            [ip] => attach = attach.arg(IP, ip.to_string()),
            several => {
                let several: Vec<Value> = several.iter().map(|ip| ip.to_string().into()).collect();
                attach = attach.capability("ips", several);
            }
        }
        if let Some(mac) = &self.mac {
            attach = attach.arg(MAC, mac.as_str());
            if network.takes("mac") {
                attach = attach.capability("mac", mac.as_str());
            }
        }
        attach
    }

    /// Returns which part of the wish the result of ADD does not fulfil. `mac` is that of the container's interface.
    pub(crate) fn unmet(&self, result: &CniResult, mac: &str) -> Option<String> {
        if let Some(ip) = self.ips.iter().find(|ip| !result.ips.iter().any(|got| got.address.ip() == **ip)) {
            return Some(format!("the address {ip}"));
        }
        let wished = self.mac.as_deref()?;
        let is_met = Mac::parse(wished).is_some_and(|wished| Mac::parse(mac) == Some(wished));
        (!is_met).then(|| format!("the MAC {wished}"))
    }
}
