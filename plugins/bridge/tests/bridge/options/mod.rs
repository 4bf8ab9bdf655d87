//! Every option of bridge.

mod exceptions;
mod existing;
mod gateway;
mod ip_masq;
mod pod;
mod port;

use serde_json::Value;

/// In a result of 0.3.0 or later.
fn veth(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().expect("a veth").to_owned()
}
