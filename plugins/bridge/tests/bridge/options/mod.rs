//! Tests of every option of bridge that this kernel supports.

mod existing;
mod gateway;
mod ip_masq;
mod pod;
mod port;

use serde_json::Value;

/// Returns the name of the host's end in a result of 0.3.0 or later.
fn veth(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().expect("a veth").to_owned()
}
