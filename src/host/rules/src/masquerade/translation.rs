//! Exceptions of masquerading. They are part of a set's name, as in `masq-10.1.0.0/16_10.0.0.0/8_to-192.0.2.9`. So the
//! name alone says what the rule over the set does.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::fields::RequestedIp;
use cnimble_cni::{Error, cidr};

use crate::nat::Traffic;
use crate::packet::{network_name, network_named};

/// The exceptions of masquerading, of both families: prefixes that are not translated (`ipMasqExclude`), and the source
/// address instead of that of the outgoing link (`ipMasqAddress`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Translation {
    /// The destinations that are not translated.
    pub(super) exclude: Vec<IpNetwork>,
    /// The source addresses that replace the pod's, at most one of each family.
    addresses: Vec<IpAddr>,
}

/// The maximum length of the exceptions of a family in a set's name, for IPv4 (true) and IPv6. A name has at most 255
/// bytes (`NFT_NAME_MAXLEN`), which must also hold the longest network and a hash.
const LIMITS: [(bool, usize); 2] = [(true, 215), (false, 190)];

/// No exceptions.
pub(super) const PLAIN: &Translation = &Translation { exclude: Vec::new(), addresses: Vec::new() };

impl Translation {
    /// Reads both keys. A prefix inside another one is left out.
    ///
    /// # Errors
    /// Fails with code 7 for an address that can't be a source, and for two addresses of a family. Also fails so for
    /// prefixes that are too long together.
    pub fn read(exclude: &[RequestedIp], addresses: Vec<IpAddr>) -> Result<Self, Error> {
        // Each prefix length is valid by now, because a `RequestedIp` is read by `cidr::parse_ip_or_cidr`. So none is
        // left out here.
        let nets = exclude.iter().filter_map(|of| {
            of.prefix.map_or(Some(of.ip.into()), |prefix| IpNetwork::new(of.ip, prefix).ok())
        });
        let mut exclude: Vec<IpNetwork> = nets.map(cidr::network_of).collect();
        exclude.sort_unstable();
        exclude.dedup_by(|later, kept| kept.contains(later.ip()));
        for (at, ip) in addresses.iter().enumerate() {
            if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
                return Err(Error::config(format!("ipMasqAddress: {ip} can't be the source of packets")));
            }
            if addresses.iter().take(at).any(|other| other.is_ipv4() == ip.is_ipv4()) {
                return Err(Error::config(format!("ipMasqAddress: {ip} is the second of its family")));
            }
        }
        let translation = Translation { exclude, addresses };
        for (v4, limit) in LIMITS {
            let length = translation.suffix(v4).len();
            if length > limit {
                let what = format!("ipMasqExclude: the prefixes of a family take {length} bytes of {limit}");
                return Err(Error::config(what).details("they are part of the name of an nf_tables set"));
            }
        }
        Ok(translation)
    }

    /// Returns whether there are no exceptions.
    pub(super) fn is_plain(&self) -> bool {
        self == PLAIN
    }

    /// Returns the excluded prefixes of one family.
    pub(super) fn excluded(&self, v4: bool) -> impl Iterator<Item = &IpNetwork> {
        self.exclude.iter().filter(move |net| net.is_ipv4() == v4)
    }

    /// Returns whether packets to `to` are not translated.
    pub fn excludes(&self, to: IpAddr) -> bool {
        self.exclude.iter().any(|net| net.contains(to))
    }

    /// Returns the source address for one family. `None` means that of the outgoing link.
    pub fn address(&self, v4: bool) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|ip| ip.is_ipv4() == v4)
    }

    /// Returns the exceptions of one family as they stand in a set's name. [`named`](Self::named) reads them.
    pub(super) fn suffix(&self, v4: bool) -> String {
        let nets = self.excluded(v4).map(|net| format!("_{}", network_name(net)));
        let to = self.address(v4).map(|ip| format!("_to-{ip}").replace(':', "-"));
        nets.chain(to).collect()
    }

    /// Reads the exceptions from the parts of a set's name behind the network, which `_` separates. `None` if one is no
    /// exception.
    pub(super) fn named<'p>(parts: impl Iterator<Item = &'p str>) -> Option<Self> {
        let mut read = Translation::default();
        for part in parts {
            match part.strip_prefix("to-") {
                Some(ip) => read.addresses.push(ip.replace('-', ":").parse().ok()?),
                None => read.exclude.push(network_named(part)?),
            }
        }
        Some(read)
    }

    /// Adds the exceptions of another family.
    pub(crate) fn join(mut self, other: Translation) -> Self {
        self.exclude.extend(other.exclude);
        self.addresses.extend(other.addresses);
        self
    }
}

/// The addresses of a pod, with the prefix length of their network, and the exceptions of their masquerading.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    pub addrs: &'a [IpNetwork],
    pub translation: &'a Translation,
}

impl Sources<'_> {
    /// Returns the packets that are masqueraded, for a look at rules of others.
    pub(crate) fn traffic(&self) -> Vec<Traffic> {
        let traffic = self.addrs.iter().map(|addr| {
            let mut spared = vec![cidr::network_of(*addr)];
            spared.extend(self.translation.excluded(addr.is_ipv4()));
            Traffic::Leaving { source: addr.ip(), spared }
        });
        traffic.collect()
    }
}

impl<'a, T: AsRef<[IpNetwork]> + ?Sized> From<&'a T> for Sources<'a> {
    fn from(addrs: &'a T) -> Self {
        Sources { addrs: addrs.as_ref(), translation: PLAIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(exclude: &[&str], addresses: &[&str]) -> Result<Translation, Error> {
        let exclude: Vec<RequestedIp> =
            exclude.iter().map(|text| serde_json::from_value((*text).into()).unwrap()).collect();
        Translation::read(&exclude, addresses.iter().map(|ip| ip.parse().unwrap()).collect())
    }

    #[test]
    fn the_name_of_a_set_has_all() {
        let exclude = ["10.1.2.3/8", "192.0.2.7", "10.9.0.0/16", "2001:db8::/32"];
        let all = read(&exclude, &["198.51.100.9", "2001:db8:1::9"]).unwrap();
        assert_eq!(all.suffix(true), "_10.0.0.0/8_192.0.2.7/32_to-198.51.100.9");
        assert_eq!(all.suffix(false), "_2001-db8--/32_to-2001-db8-1--9");
        for v4 in [true, false] {
            let name = all.suffix(v4);
            let back = Translation::named(name.split('_').skip(1)).unwrap();
            assert!(
                back.excluded(v4).eq(all.excluded(v4)) && back.address(v4) == all.address(v4),
                "{back:?}"
            );
            assert_eq!(back.suffix(!v4), "");
        }
        assert_eq!(Translation::named(["10.0.0.0/8", "else"].into_iter()), None);
        assert!(Translation::named([].into_iter()).unwrap().is_plain());
    }

    #[test]
    fn wrong_values_are_one_error() {
        let many: Vec<String> = (0..16).map(|n| format!("172.16.{n}.128/25")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (exclude, addresses, why) in [
            (&[][..], &["0.0.0.0"][..], "ipMasqAddress: 0.0.0.0 can't be the source of packets"),
            (&[], &["192.0.2.1", "192.0.2.2"], "ipMasqAddress: 192.0.2.2 is the second of its family"),
            (&many, &[], "ipMasqExclude: the prefixes of a family take 262 bytes of 215"),
        ] {
            let err = read(exclude, addresses).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, why));
        }
    }
}
