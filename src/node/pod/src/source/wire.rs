//! The fields of an API server's pod that are used. Others take no memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, Pod, PodDNSConfig, PodDNSConfigOption, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::PodId;
use crate::manifest::MAX_MEMBERS;

/// A pod, or a Status or a bookmark in its place.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Object {
    pub(super) metadata: Meta,
    spec: Option<Spec>,
    status: Option<Value>,
}

/// The metadata of an object.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    pub(super) resource_version: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
}

/// The key `status`. A pod's is an object, that of a Status a word.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Pod { phase: Option<String> },
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    host_network: Option<bool>,
    hostname: Option<String>,
    containers: Option<Few<Member>>,
    init_containers: Option<Few<Member>>,
    dns_policy: Option<String>,
    dns_config: Option<Dns>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Member {
    name: String,
    restart_policy: Option<String>,
    ports: Option<Few<ContainerPort>>,
}

/// A list with at most as many items as a pod may have, because a few bytes of text may take a hundred times as many.
struct Few<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Taker<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Taker<T> {
            type Value = Few<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T>, A::Error> {
                let mut few = Vec::new();
                while let Some(one) = list.next_element()? {
                    if few.len() >= MAX_MEMBERS {
                        return Err(A::Error::custom(format_args!("there are more than {MAX_MEMBERS}")));
                    }
                    few.push(one);
                }
                Ok(Few(few))
            }
        }
        from.deserialize_seq(Taker(PhantomData))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Dns {
    nameservers: Option<Few<String>>,
    searches: Option<Few<String>>,
    options: Option<Few<PodDNSConfigOption>>,
}

impl From<Member> for Container {
    fn from(member: Member) -> Container {
        let Member { name, restart_policy, ports } = member;
        Container { name, restart_policy, ports: ports.map(|few| few.0), ..Container::default() }
    }
}

impl Object {
    pub(super) fn id(&self) -> Option<PodId> {
        id(self.metadata.namespace.as_deref(), self.metadata.name.as_deref())
    }

    pub(super) fn node(&self) -> Option<&str> {
        self.spec.as_ref()?.node_name.as_deref()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        Some(self.metadata.annotations.as_ref()?.get(key)?.as_str())
    }

    /// Removes the annotations that are not `wanted`.
    pub(super) fn keep_annotations(&mut self, wanted: impl Fn(&str) -> bool) {
        self.metadata.annotations.iter_mut().for_each(|all| all.retain(|key, _| wanted(key)));
    }

    /// Converts the fields into a Pod.
    pub(super) fn pod(self) -> Pod {
        let Meta {
            name, namespace, uid, annotations, deletion_timestamp, deletion_grace_period_seconds, ..
        } = self.metadata;
        let spec = self.spec.map(|spec| PodSpec {
            host_network: spec.host_network,
            hostname: spec.hostname,
            containers: convert_containers(spec.containers).unwrap_or_default(),
            init_containers: convert_containers(spec.init_containers),
            dns_policy: spec.dns_policy,
            dns_config: spec.dns_config.map(|dns| PodDNSConfig {
                nameservers: dns.nameservers.map(|few| few.0),
                searches: dns.searches.map(|few| few.0),
                options: dns.options.map(|few| few.0),
            }),
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            ..PodSpec::default()
        });
        let phase = match self.status {
            Some(Value::Pod { phase }) => phase,
            _ => None,
        };
        Pod {
            metadata: ObjectMeta {
                name,
                namespace,
                uid,
                annotations,
                deletion_timestamp,
                deletion_grace_period_seconds,
                ..ObjectMeta::default()
            },
            spec,
            status: Some(PodStatus { phase, ..PodStatus::default() }),
        }
    }
}

fn convert_containers(members: Option<Few<Member>>) -> Option<Vec<Container>> {
    members.map(|members| members.0.into_iter().map(Container::from).collect())
}

/// The names of an object, which are readable even if the rest is invalid.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NamedObject<'a> {
    #[serde(borrow)]
    pub(super) metadata: NamedMeta<'a>,
}

/// The names of an object, borrowed from its text.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NamedMeta<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) resource_version: Option<Cow<'a, str>>,
}

impl NamedObject<'_> {
    pub(super) fn id(&self) -> Option<PodId> {
        id(self.metadata.namespace.as_deref(), self.metadata.name.as_deref())
    }
}

/// Returns the ID, or `None` without a name. A missing namespace is `default`.
fn id(namespace: Option<&str>, name: Option<&str>) -> Option<PodId> {
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    Some(PodId::new(namespace.unwrap_or("default"), name.filter(|name| !name.is_empty())?))
}
