//! Messages about existing sandboxes.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<PodSandboxFilter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxFilter {
    /// The ID, or its beginning.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub state: Option<PodSandboxStateValue>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStateValue {
    #[prost(int32, tag = "1")]
    pub state: i32,
}

/// The number of `SANDBOX_READY` in the enum `PodSandboxState`.
pub const READY: i32 = 0;
/// The number of `SANDBOX_NOTREADY`.
pub const NOT_READY: i32 = 1;

/// The answer to ListPodSandbox. The items are not decoded, so that they are counted before each of them takes memory.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodSandboxResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// The time of creation in nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<PodSandboxStatus>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatus {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(message, optional, tag = "5")]
    pub network: Option<PodSandboxNetworkStatus>,
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxPodSandboxStatus>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    pub ip: String,
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodIp {
    #[prost(string, tag = "1")]
    pub ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxStatus {
    #[prost(message, optional, tag = "1")]
    pub namespaces: Option<Namespace>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Namespace {
    #[prost(message, optional, tag = "2")]
    pub options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub network: i32,
    #[prost(int32, tag = "2")]
    pub pid: i32,
    #[prost(int32, tag = "3")]
    pub ipc: i32,
    #[prost(message, optional, tag = "5")]
    pub userns_options: Option<UserNamespace>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UserNamespace {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// The number of `POD` in the enum `NamespaceMode`: a namespace of the pod.
pub const POD: i32 = 0;
/// The number of `CONTAINER`: a namespace for each container.
pub const CONTAINER: i32 = 1;
/// The number of `NODE`: the namespace of the node.
pub const NODE: i32 = 2;
