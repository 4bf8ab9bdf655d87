//! Versions 0.1.0 and 0.2.0: no interfaces, at most one address per family, and routes below it.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CniResult, Dns, IpConfig, Route};
use crate::{Code, Error, Version, fields, json};

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResultV02 {
    ip4: Option<Family>,
    ip6: Option<Family>,
    dns: Dns,
}

#[derive(Deserialize)]
struct Family {
    #[serde(deserialize_with = "fields::cidr")]
    ip: IpNetwork,
    #[serde(default, deserialize_with = "fields::ip_opt")]
    gateway: Option<IpAddr>,
    #[serde(default)]
    routes: Vec<Route>,
}

pub(super) fn read(value: &Value, path: &str) -> Result<CniResult, Error> {
    let form: ResultV02 = json::from_value(value, path)?;
    let mut result = CniResult { dns: form.dns, ..CniResult::default() };
    for family in [form.ip4, form.ip6].into_iter().flatten() {
        result.ips.push(IpConfig { interface: None, address: family.ip, gateway: family.gateway });
        result.routes.extend(family.routes);
    }
    Ok(result)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Form<'a> {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<FamilyForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<FamilyForm>,
    dns: &'a Dns,
}

#[derive(Serialize)]
struct FamilyForm {
    #[serde(serialize_with = "fields::display")]
    ip: IpNetwork,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteForm>,
}

#[derive(Serialize)]
struct RouteForm {
    #[serde(serialize_with = "fields::display")]
    dst: IpNetwork,
    #[serde(skip_serializing_if = "Option::is_none")]
    gw: Option<IpAddr>,
}

pub(super) fn form(result: &CniResult, version: Version) -> Result<Form<'_>, Error> {
    let (ip4, ip6) = (form_of_family(result, true), form_of_family(result, false));
    if ip4.is_none() && ip6.is_none() {
        return Err(Error::new(Code::INCOMPATIBLE_VERSION, "cannot convert: no valid IP addresses").details(
            format!(
                "a result of CNI version {version} needs an address; use 0.3.0 or later for a network without"
            ),
        ));
    }
    Ok(Form { cni_version: version.as_str(), ip4, ip6, dns: &result.dns })
}

/// Returns the first address of a family and the routes of the family, or `None` without an address.
fn form_of_family(result: &CniResult, v4: bool) -> Option<FamilyForm> {
    let first = result.ips.iter().find(|ip| ip.address.is_ipv4() == v4)?;
    let routes = result.routes.iter().filter(|route| route.dst.is_ipv4() == v4);
    Some(FamilyForm {
        ip: first.address,
        gateway: first.gateway,
        routes: routes.map(|route| RouteForm { dst: route.dst, gw: route.gw }).collect(),
    })
}
