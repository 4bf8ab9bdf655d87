//! Versions 1.0.0 and 1.1.0: the types as they are. Results of 0.3.0 to 0.4.0 are read so, too.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CniResult, Dns, Interface, IpConfig, Route};
use crate::{Error, Version, json};

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResultV10 {
    interfaces: Vec<Interface>,
    ips: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: Dns,
}

pub(super) fn read(value: &Value, path: &str) -> Result<CniResult, Error> {
    let form: ResultV10 = json::from_value(value, path)?;
    Ok(CniResult { interfaces: form.interfaces, ips: form.ips, routes: form.routes, dns: form.dns })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Form<'a> {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    interfaces: &'a [Interface],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    ips: &'a [IpConfig],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    routes: &'a [Route],
    #[serde(skip_serializing_if = "Dns::is_empty")]
    dns: &'a Dns,
}

pub(super) fn form(result: &CniResult, version: Version) -> Form<'_> {
    Form {
        cni_version: version.as_str(),
        interfaces: &result.interfaces,
        ips: &result.ips,
        routes: &result.routes,
        dns: &result.dns,
    }
}
