//! Versions 0.3.0, 0.3.1 and 0.4.0: lists as today, with the family of each address spelt out.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Serialize;

use super::{CniResult, Dns, Route};
use crate::{Version, fields};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Form<'a> {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<InterfaceForm<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<IpForm>,
    #[serde(skip_serializing_if = "<[Route]>::is_empty")]
    routes: &'a [Route],
    dns: &'a Dns,
}

#[derive(Serialize)]
struct InterfaceForm<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
}

#[derive(Serialize)]
struct IpForm {
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<u32>,
    #[serde(serialize_with = "fields::display")]
    address: IpNetwork,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

pub(super) fn form(result: &CniResult, version: Version) -> Form<'_> {
    let interfaces = result.interfaces.iter().map(|link| InterfaceForm {
        name: &link.name,
        mac: &link.mac,
        sandbox: &link.sandbox,
    });
    let ips = result.ips.iter().map(|ip| IpForm {
        version: if ip.address.is_ipv4() { "4" } else { "6" },
        interface: ip.interface,
        address: ip.address,
        gateway: ip.gateway,
    });
    Form {
        cni_version: version.as_str(),
        interfaces: interfaces.collect(),
        ips: ips.collect(),
        routes: &result.routes,
        dns: &result.dns,
    }
}
