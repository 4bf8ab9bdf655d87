//! The record of a device: its state on the host before it was moved, and its new owner.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use cnimble_cni::{Attachment, Owner};
use cnimble_netlink::addr::Addr;
use cnimble_netlink::details::Details;
use cnimble_netlink::link::Mac;

use crate::seen::DeviceProof;

/// The scope RT_SCOPE_LINK of rtnetlink(7).
const SCOPE_LINK: u8 = 253;

/// The content of a record's file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DeviceRecord {
    pub(crate) network: String,
    #[serde(rename = "containerID")]
    pub(crate) container_id: String,
    /// The device's name in the pod.
    pub(crate) ifname: String,
    /// The path of the namespace that the device was moved to.
    pub(crate) netns: String,
    /// The device's name on the host.
    pub(crate) name: String,
    /// The index on the host. A move keeps the index if it is free in the other namespace.
    pub(crate) index: u32,
    /// The link's kind, `veth` for example. Hardware has none.
    pub(crate) kind: String,
    /// The alias before ADD, which DEL restores last.
    pub(crate) alias: String,
    /// Empty if the device has no MAC address.
    pub(crate) mac: String,
    /// The MTU in bytes.
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// The addresses with their prefix lengths, without those that the kernel makes and those that expire.
    pub(crate) addresses: Vec<String>,
    /// `None` in the record of an older version.
    pub(crate) marks: Option<Marks>,
    /// `None` in the record of an older version, and for a device that the Go plugin moved. Then no settings are
    /// restored.
    pub(crate) settings: Option<Settings>,
}

/// The properties that identify the device. A pod can give none of them but `peer` to another link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Marks {
    /// The inode of the device's directory in sysfs, or 0 without a sysfs.
    pub(crate) inode: u64,
    /// The path of the hardware in sysfs. Empty for a virtual device, or without a sysfs.
    pub(crate) bus: String,
    /// The permanent MAC address. Empty if the kernel reports none.
    pub(crate) permanent_mac: Vec<u8>,
    /// The index of a veth's other end, or of the parent of a macvlan, ipvlan or vlan.
    pub(crate) peer: Option<u32>,
}

/// The settings that a pod can change and that the kernel keeps when a link is moved, so that DEL has to restore them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Settings {
    pub(crate) flags: u32,
    /// The settings by their attribute (IFLA_*), as the kernel reports them ([`Details::values`]).
    pub(crate) values: BTreeMap<u16, Vec<u8>>,
    pub(crate) altnames: Vec<String>,
}

impl DeviceRecord {
    /// Makes the record of a device that is about to be moved, without its settings ([`DeviceRecord::with_settings`]).
    /// Leaves out addresses that expire, and those of IPv6 that the kernel makes for each link.
    pub(crate) fn from_device(owner: &Owner, netns: &str, seen: &DeviceProof, addrs: &[Addr]) -> Self {
        let link = &seen.link;
        let marks = Marks {
            inode: seen.device.as_ref().map_or(0, |device| device.inode),
            bus: seen.device.as_ref().map(|device| device.bus.clone()).unwrap_or_default(),
            permanent_mac: seen.details.as_ref().map(|details| details.permanent.clone()).unwrap_or_default(),
            peer: link.peer,
        };
        let kept =
            addrs.iter().filter(|addr| addr.permanent && (addr.net.is_ipv4() || addr.scope != SCOPE_LINK));
        DeviceRecord {
            network: owner.network.clone(),
            container_id: owner.attachment.container_id.clone(),
            ifname: owner.attachment.ifname.clone(),
            netns: netns.to_owned(),
            name: link.name.clone(),
            index: link.index,
            kind: link.kind.clone(),
            alias: link.alias.clone(),
            mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: link.mtu,
            up: link.up,
            addresses: kept.map(|addr| addr.net.to_string()).collect(),
            marks: Some(marks),
            settings: None,
        }
    }

    /// Adds the settings that DEL restores.
    pub(crate) fn with_settings(self, details: Details) -> Self {
        let Details { flags, values, altnames, .. } = details;
        DeviceRecord { settings: Some(Settings { flags, values, altnames }), ..self }
    }

    pub(crate) fn owner(&self) -> Owner {
        let attachment = Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() };
        Owner { network: self.network.clone(), attachment }
    }

    /// Returns the MAC address before ADD, or `None` if there was none.
    pub(crate) fn mac(&self) -> Option<Mac> {
        Mac::parse(&self.mac)
    }

    /// Returns the addresses before ADD. A text that is no address is skipped.
    pub(crate) fn addresses(&self) -> Vec<IpNetwork> {
        self.addresses.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Returns true if the device did not have this alternative name before ADD, so that the pod has given it. False if
    /// the record has no settings.
    pub(crate) fn is_foreign(&self, altname: &String) -> bool {
        self.settings.as_ref().is_some_and(|settings| !settings.altnames.contains(altname))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(id: &str) -> DeviceRecord {
        DeviceRecord {
            network: "net".to_owned(),
            container_id: id.to_owned(),
            ifname: "net1".to_owned(),
            name: "eth7".to_owned(),
            index: 7,
            mac: "02:00:00:00:00:07".to_owned(),
            addresses: vec!["10.0.0.1/24".to_owned()],
            ..DeviceRecord::default()
        }
    }

    /// Of the build 829e098.
    const OLD: &str = r#"{
        "network": "net", "containerID": "one", "ifname": "net1", "netns": "/run/netns/x", "name": "eth7",
        "index": 7, "kind": "", "alias": "", "mac": "02:00:00:00:00:07", "mtu": 1500, "up": true,
        "addresses": ["10.0.0.1/24"]
    }"#;

    #[test]
    fn records_of_the_build_before_are_read_and_their_keys_are_still_written() {
        let old: DeviceRecord = serde_json::from_str(OLD).unwrap();
        assert_eq!((&old.marks, &old.settings, old.mtu), (&None, &None, 1500));
        assert!(!old.is_foreign(&"enp9s0".to_owned()));
        let details =
            Details { flags: 0x1000, values: BTreeMap::from([(13, vec![1, 2])]), ..Details::default() };
        let new = DeviceRecord { marks: Some(Marks::default()), ..old }.with_settings(details);
        let text = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<DeviceRecord>(&text).unwrap(), new);
        // That build reads the fields that it knows, with these types.
        let (written, known): (serde_json::Value, serde_json::Value) =
            (serde_json::from_str(&text).unwrap(), serde_json::from_str(OLD).unwrap());
        for (key, value) in known.as_object().unwrap() {
            assert_eq!(written.get(key), Some(value), "{key}");
        }
    }
}
