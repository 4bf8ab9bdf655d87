//! The content of objects. Keys that cnimble doesn't know stay as they are.

use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use cnimble_cni::{Code, Error};
use cnimble_leases::cluster::share::Identity;

use super::Kind;
use crate::Result;
use crate::record::{Fence, Owner, text, unix_now};

/// The finalizer that keeps a deleted object until its boot's addresses are returned.
const FINALIZER: &str = "ipam.cnimble.dev/in-use";
/// The label with the name of the pool.
pub(super) const POOL: &str = "ipam.cnimble.dev/pool";
/// The label with the name of the node.
pub(super) const NODE: &str = "ipam.cnimble.dev/node";

/// The `spec` of a NodeClaim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Claim {
    #[serde(flatten)]
    pub(super) identity: Identity,
    pub(super) pool: String,
    /// The node's addresses that others have routes to.
    #[serde(default)]
    pub(super) addresses: Vec<IpAddr>,
    /// The order of the node's boots. That of a later boot is larger.
    pub(super) sequence: u64,
}

/// The `spec` of a Block.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Block {
    #[serde(flatten)]
    pub(super) owner: Owner,
    pub(super) pool: String,
    pub(super) first: IpAddr,
    pub(super) last: IpAddr,
    /// The time at which its owner claimed it, in milliseconds since 1970.
    pub(super) claimed: u64,
}

/// The `spec` of an IPPool.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pool {
    block_size: u32,
}

/// Parses the `spec` of an object.
pub(super) fn spec<T: DeserializeOwned>(object: &Value) -> Result<T> {
    parse(object, "spec")
}

fn parse<T: DeserializeOwned>(object: &Value, part: &str) -> Result<T> {
    T::deserialize(object.get(part).unwrap_or(&Value::Null)).map_err(|err| {
        let why = format!("{part} of {} {}: {err}", string(object, "/kind"), name(object));
        Error::new(Code::NOT_AVAILABLE, why).into()
    })
}

/// Reads the fence from an IPPool.
pub(super) fn fence(pool: &Value) -> Result<Fence> {
    let size = spec::<Pool>(pool)?.block_size;
    let fence: Fence = match pool.get("status") {
        Some(_) => parse(pool, "status")?,
        None => Fence::default(),
    };
    Ok(Fence { host_bits: 32_u32.saturating_sub(size), ..fence })
}

/// Writes the fence into the status of an IPPool, with its condition.
pub(super) fn set_fence(pool: &mut Value, fence: &Fence) {
    let (status, message) = match &fence.suspect {
        None => ("True", ""),
        Some(why) => ("False", why.as_str()),
    };
    let reason = if fence.suspect.is_some() { "Restored" } else { "Consistent" };
    let condition = condition(pool, status, reason, message);
    let mut status = json!({"epoch": fence.epoch, "offline": fence.offline, "conditions": [condition]});
    if let Some(why) = &fence.suspect {
        set(&mut status, "suspect", json!(why));
    }
    set(pool, "status", status);
}

/// Sets a key of an object. Does nothing if the value is no object.
pub(super) fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// Sets a key of the object's `spec`. Does nothing without a `spec`.
pub(super) fn set_spec(object: &mut Value, key: &str, value: Value) {
    if let Some(spec) = object.get_mut("spec") {
        set(spec, key, value);
    }
}

/// Returns the condition `Ready`. Its time of transition stays unless the status has changed.
fn condition(object: &Value, status: &str, reason: &str, message: &str) -> Value {
    let since = if string(object, "/status/conditions/0/status") == status {
        string(object, "/status/conditions/0/lastTransitionTime").to_owned()
    } else {
        time(unix_now())
    };
    json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
}

fn time(unix: u64) -> String {
    let time = i64::try_from(unix).ok().and_then(|unix| jiff::Timestamp::from_millisecond(unix).ok());
    time.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the time of the object's deletion, in milliseconds since 1970. It returns `None` if nobody has deleted it. A
/// deleted object exists until its finalizer is removed. A time that cannot be parsed counts as now.
pub(super) fn deleted(object: &Value) -> Option<u64> {
    let text = object.pointer("/metadata/deletionTimestamp")?.as_str()?;
    let time = text.parse::<jiff::Timestamp>().ok();
    Some(time.and_then(|time| u64::try_from(time.as_millisecond()).ok()).unwrap_or_else(unix_now))
}

/// Removes our finalizer from the object, so that a deletion completes.
pub(super) fn release_finalizer(object: &mut Value) {
    if let Some(all) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        all.retain(|finalizer| finalizer != FINALIZER);
    }
}

/// Returns a new object for a node, with labels and the finalizer.
pub(super) fn new(kind: Kind, name: &str, pool: &str, node: &str, spec: &impl Serialize) -> Value {
    let labels = json!({POOL: pool, NODE: node});
    let metadata = json!({"name": name, "labels": labels, "finalizers": [FINALIZER]});
    json!({"apiVersion": "ipam.cnimble.dev/v1alpha1", "kind": kind.name(), "metadata": metadata, "spec": spec})
}

/// Returns the name of the object of the block that begins with this address.
pub(super) fn block_name(pool: &str, first: IpAddr) -> String {
    format!("{pool}-{}", text(first))
}

/// Returns the name of a boot's NodeClaim.
pub(super) fn claim_name(pool: &str, identity: &Identity) -> String {
    let digits = identity.instance.get(..13).unwrap_or(&identity.instance);
    format!("{pool}-{}-{digits}", identity.name)
}

/// Returns a text in the object, or an empty one.
fn string<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the name of an object, or an empty text.
pub(super) fn name(object: &Value) -> &str {
    string(object, "/metadata/name")
}

/// Returns the body of a deletion that fails if the object has another UID or version.
pub(super) fn preconditions(object: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {
        "uid": string(object, "/metadata/uid"), "resourceVersion": string(object, "/metadata/resourceVersion")}})
}

/// Returns the revision of the object's last change, or `None` if its version is no number.
pub(super) fn revision(object: &Value) -> Option<i64> {
    string(object, "/metadata/resourceVersion").parse().ok()
}
