//! The keys in etcd. Addresses are hexadecimal numbers of one width, so that etcd sorts them.

use std::net::IpAddr;

use cnimble_leases::cluster::config::{Cluster, Etcd};
use cnimble_leases::cluster::share::Owned;
use cnimble_leases::cluster::{address, number};

use crate::record::text;

/// Makes the keys of one network.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    base: String,
    host_bits: u32,
}

/// Returns the address at the end of a key. It returns `None` if there is none.
pub(super) fn ip(key: &str) -> Option<IpAddr> {
    let last = key.rsplit('/').next()?;
    let (family, digits) = last.split_once('-')?;
    let number = u128::from_str_radix(digits, 16).ok()?;
    let like: IpAddr = match family {
        "4" => std::net::Ipv4Addr::UNSPECIFIED.into(),
        "6" => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    Some(address(number, like))
}

impl Keys {
    /// Returns the keys of the cluster's network. They all have etcd's prefix and the network's name in front.
    pub(super) fn of(cluster: &Cluster, etcd: &Etcd) -> Self {
        Keys { base: format!("{}/{}", etcd.prefix, cluster.network), host_bits: cluster.host_bits }
    }

    /// Returns the key of the fence.
    pub(super) fn fence(&self) -> String {
        format!("{}/fence", self.base)
    }

    /// Returns the key of the record of a node's latest boot.
    pub(super) fn node(&self, name: &str) -> String {
        format!("{}/nodes/{name}", self.base)
    }

    /// Returns the prefixes of all records: of the latest boots, and of the other boots.
    pub(super) fn records(&self) -> [String; 2] {
        [format!("{}/nodes/", self.base), format!("{}/boots/", self.base)]
    }

    /// Returns the prefix of the records of a node's other boots.
    pub(super) fn boots(&self, name: &str) -> String {
        format!("{}/boots/{name}/", self.base)
    }

    /// Returns the key of the record of another boot of a node.
    pub(super) fn boot(&self, name: &str, instance: &str) -> String {
        format!("{}/boots/{name}/{instance}", self.base)
    }

    /// Returns the prefix of the addresses of all nodes.
    pub(super) fn hosts(&self) -> String {
        format!("{}/hosts/", self.base)
    }

    /// Returns the key of a node's addresses.
    pub(super) fn host(&self, name: &str) -> String {
        format!("{}/hosts/{name}", self.base)
    }

    /// Returns the prefix of the owners of all blocks.
    pub(super) fn blocks(&self) -> String {
        format!("{}/blocks/", self.base)
    }

    /// Returns the key of the owner of the block that begins with this address.
    pub(super) fn block(&self, ip: IpAddr) -> String {
        format!("{}/blocks/{}", self.base, text(ip))
    }

    /// Returns the key of the owner of a block or single address.
    pub(super) fn of_owned(&self, owned: &Owned) -> String {
        if owned.is_single() { self.single(owned.first) } else { self.block(owned.first) }
    }

    /// Returns the key of the owner of a block or single address in a node's list, which has only the first address.
    /// One that begins a block is a block's.
    pub(super) fn of_listed(&self, first: IpAddr) -> String {
        if address(number(first) >> self.host_bits << self.host_bits, first) == first {
            self.block(first)
        } else {
            self.single(first)
        }
    }

    /// Returns the prefix of the owners of all single addresses.
    pub(super) fn singles(&self) -> String {
        format!("{}/singles/", self.base)
    }

    /// Returns the key of the owner of this single address.
    pub(super) fn single(&self, ip: IpAddr) -> String {
        format!("{}/singles/{}", self.base, text(ip))
    }

    /// Returns the prefix of a node's list of its blocks and single addresses. The values are the instances.
    pub(super) fn owned_by(&self, name: &str) -> String {
        format!("{}/owned/{name}/", self.base)
    }

    /// Returns the key of a block or single address in a node's list.
    pub(super) fn owned(&self, name: &str, ip: IpAddr) -> String {
        format!("{}/owned/{name}/{}", self.base, text(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_again_in_its_key() {
        for text in ["10.0.0.64", "255.255.255.255", "fd00::40", "::"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(ip(&format!("/a/b-c/{}", super::text(address))), Some(address));
        }
        assert_eq!(ip("/a/4-xyz"), None);
        assert!(super::text("9.0.0.0".parse().unwrap()) < super::text("10.0.0.0".parse().unwrap()));
    }
}
