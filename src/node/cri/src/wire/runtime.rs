//! Messages about the runtime itself.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

/// The request of Version. Its field 1, the version of an obsolete API, is not sent.
#[derive(Clone, PartialEq, Message)]
pub struct VersionRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct VersionResponse {
    /// The version of an obsolete API.
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    #[prost(string, tag = "4")]
    pub runtime_api_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RuntimeStatus>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<RuntimeCondition>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(bool, tag = "2")]
    pub status: bool,
    #[prost(string, tag = "3")]
    pub reason: String,
    #[prost(string, tag = "4")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdateRuntimeConfigRequest {
    #[prost(message, optional, tag = "1")]
    pub runtime_config: Option<RuntimeConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeConfig {
    #[prost(message, optional, tag = "1")]
    pub network_config: Option<NetworkConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NetworkConfig {
    #[prost(string, tag = "1")]
    pub pod_cidr: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub linux: Option<LinuxRuntimeConfiguration>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxRuntimeConfiguration {
    #[prost(int32, tag = "1")]
    pub cgroup_driver: i32,
}

/// The number of `CGROUPFS` in the enum `CgroupDriver`.
pub const CGROUPFS: i32 = 1;

/// The answer to a list call. The items are not decoded.
#[derive(Clone, PartialEq, Message)]
pub struct Items {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub items: Vec<Bytes>,
}

/// A message without fields that we use.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}
