//! A lease of DHCPv6. Times are as in [`v4::lease`](crate::v4::lease).
//!
//! It is only an address, because router advertisements tell a pod on-link prefixes and routers. So the prefix has 128
//! bits (RFC 5942, section 4).

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv6Network};
use serde::{Deserialize, Serialize};

use cnimble_cni::Dns;

use super::FOR_EVER;
use super::message::{Given, ServerMessage};

/// The shortest lifetime that counts, because a server must not make the client send without a pause.
const SHORTEST_SECONDS: u32 = 2;

/// A lease, as it is in answers and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) address: Ipv6Addr,
    /// The DUID of the server.
    pub(crate) server_id: Vec<u8>,
    pub(crate) dns: Dns,
    /// T1, the time at which the client begins to renew.
    pub(crate) renew: u64,
    /// T2, the time at which the client begins to rebind.
    pub(crate) rebind: u64,
    /// The time until which new connections use the address.
    pub(crate) preferred: u64,
    /// The end of the lease. It is `u64::MAX` for an endless lease.
    pub(crate) expires: u64,
}

impl Lease {
    /// Returns the lease in `answer`, which came at `now`, or the reason why there is no usable one. Of several
    /// addresses, that of `before` is taken, or else the first usable one. A renewal may omit the DNS settings, which
    /// are then those of `before`.
    pub(crate) fn from_answer(
        answer: &ServerMessage,
        now: u64,
        before: Option<&Lease>,
    ) -> Result<Lease, &'static str> {
        let ia = answer.ia.as_ref().ok_or("it has no IA_NA")?;
        let mut usable = ia.addresses.iter().filter(|given| given.valid > 0 && is_usable(given.address));
        let same = before.and_then(|before| usable.clone().find(|given| given.address == before.address));
        let given = same.or_else(|| usable.next()).ok_or("it has no usable address")?;
        let times = Times::from_address(given, ia.times)?;
        Ok(Lease {
            address: given.address,
            server_id: answer.server.clone(),
            dns: dns(answer).or_else(|| before.map(|before| before.dns.clone())).unwrap_or_default(),
            renew: after(now, times.renew),
            rebind: after(now, times.rebind),
            preferred: after(now, given.preferred),
            expires: after(now, times.valid),
        })
    }

    /// Returns the address with a prefix length of 128.
    pub(crate) fn net(&self) -> IpNetwork {
        IpNetwork::V6(Ipv6Network::from(self.address))
    }

    /// Returns the remaining preferred and valid lifetime for the kernel, in seconds.
    pub(crate) fn lifetimes(&self, now: u64) -> (u32, u32) {
        // The kernel refuses a valid lifetime of 0.
        (remaining(now, self.preferred), remaining(now, self.expires).max(1))
    }
}

/// Returns the time that is `seconds` after `now`, in milliseconds. It is `u64::MAX` for [`FOR_EVER`].
fn after(now: u64, seconds: u32) -> u64 {
    match seconds {
        FOR_EVER => u64::MAX,
        _ => now.saturating_add(u64::from(seconds) * 1000),
    }
}

/// Returns the whole seconds from `now` to `end`, or [`FOR_EVER`] for `u64::MAX`.
fn remaining(now: u64, end: u64) -> u32 {
    match end {
        u64::MAX => FOR_EVER,
        _ => u32::try_from(end.saturating_sub(now) / 1000).unwrap_or(FOR_EVER - 1),
    }
}

/// T1, T2 and the end, in seconds from the answer.
struct Times {
    renew: u32,
    rebind: u32,
    valid: u32,
}

impl Times {
    /// Returns the times of an address. If the server leaves T1 and T2 to the client, they are half and four fifths of
    /// the preferred lifetime (RFC 8415, sections 14.2 and 21.4). Without one, the valid lifetime counts. Fails if T1
    /// is after T2.
    fn from_address(given: &Given, (renew, rebind): (u32, u32)) -> Result<Times, &'static str> {
        // Section 21.4 of RFC 8415 makes such an IA invalid.
        if renew > 0 && rebind > 0 && renew > rebind {
            return Err("its T1 is after its T2");
        }
        let valid = given.valid.max(SHORTEST_SECONDS);
        let whole = if given.preferred > 0 { given.preferred } else { valid };
        let rebind = if rebind > 0 { rebind } else { tenths_of(whole, 8).max(renew) };
        let renew = if renew > 0 { renew } else { tenths_of(whole, 5).min(rebind) };
        // Times that are inconsistent with the lifetime are replaced by parts of it.
        if renew >= 1 && renew <= rebind && rebind <= valid {
            Ok(Times { renew, rebind, valid })
        } else {
            let eighth = valid / 8;
            Ok(Times { renew: (valid / 2).max(1), rebind: valid - eighth, valid })
        }
    }
}

/// Returns so many tenths of a duration. [`FOR_EVER`] stays what it is.
fn tenths_of(whole: u32, tenths: u64) -> u32 {
    match whole {
        FOR_EVER => FOR_EVER,
        _ => u32::try_from(u64::from(whole) * tenths / 10).unwrap_or(whole),
    }
}

/// Returns true if a server may give a host this address: no special, IPv4-mapped or link-local one.
pub(crate) fn is_usable(address: Ipv6Addr) -> bool {
    let mapped = address.to_ipv4_mapped().is_some();
    let special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    !special && !mapped && !address.is_unicast_link_local()
}

/// Returns the DNS settings of an answer, or `None` if the server gives none.
fn dns(answer: &ServerMessage) -> Option<Dns> {
    let servers =
        answer.name_servers.iter().filter(|server| !server.is_unspecified() && !server.is_multicast());
    let nameservers: Vec<String> = servers.map(|server| IpAddr::V6(*server).to_string()).collect();
    let said = !nameservers.is_empty() || !answer.domains.is_empty();
    said.then(|| {
        let mut dns = Dns::default();
        dns.nameservers = nameservers;
        dns.search.clone_from(&answer.domains);
        dns
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v6::message::tests::{ADDRESS, DUID, IAID, SERVER, ia_address, ia_na, message, with};
    use crate::v6::message::{Type, code};

    const ANOTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x60);

    fn read(options: &[Vec<u8>], before: Option<&Lease>) -> Result<Lease, &'static str> {
        let answer = ServerMessage::parse(&message(Type::Reply, 1, SERVER, options), DUID, IAID).unwrap();
        Lease::from_answer(&answer, 1000, before)
    }

    fn given(
        address: Ipv6Addr,
        preferred: u32,
        valid: u32,
        times: (u32, u32),
    ) -> Result<Lease, &'static str> {
        read(&[ia_na(IAID, times.0, times.1, &ia_address(address, preferred, valid))], None)
    }

    #[test]
    fn a_lease_has_address_times_and_dns() {
        let dns = with(code::NAME_SERVERS, &[ADDRESS.octets(), [0; 16]].concat());
        let ia = ia_na(IAID, 10, 20, &ia_address(ADDRESS, 30, 40));
        let lease = read(&[ia, dns, with(code::DOMAINS, b"\x01a\x00")], None).unwrap();
        assert_eq!(lease.net().to_string(), "fd00::50/128");
        assert_eq!((lease.renew, lease.rebind), (11_000, 21_000));
        assert_eq!((lease.preferred, lease.expires), (31_000, 41_000));
        assert_eq!(lease.lifetimes(2000), (29, 39));
        assert_eq!(lease.lifetimes(90_000), (0, 1));
        assert_eq!(
            (lease.dns.nameservers.join(" "), lease.dns.search.join(" ")),
            ("fd00::50".into(), "a".into())
        );
        let text = serde_json::to_string(&lease).unwrap();
        assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease);
        // Omitted settings stay. Of two addresses, the client keeps its own.
        let both = [ia_address(ANOTHER, 30, 40), ia_address(ADDRESS, 30, 40)].concat();
        let renewed = read(&[ia_na(IAID, 0, 0, &both)], Some(&lease)).unwrap();
        assert_eq!((renewed.address, &renewed.dns), (ADDRESS, &lease.dns));
    }

    #[test]
    fn unusable_addresses_are_refused() {
        for address in ["::", "::1", "ff02::1", "fe80::1", "febf::1", "::ffff:10.1.2.3"] {
            assert!(given(address.parse().unwrap(), 30, 40, (0, 0)).is_err(), "{address}");
        }
        assert!(given(ADDRESS, 0, 0, (0, 0)).is_err(), "taken back");
        assert!(read(&[ia_na(IAID + 1, 0, 0, &ia_address(ADDRESS, 30, 40))], None).is_err(), "another IA's");
        assert!(read(&[], None).is_err());
        let both = [ia_address(ADDRESS, 0, 0), ia_address(ANOTHER, 30, 40)].concat();
        assert_eq!(read(&[ia_na(IAID, 0, 0, &both)], None).unwrap().address, ANOTHER);
    }

    #[test]
    fn inconsistent_times_are_replaced() {
        let times = |preferred: u32, valid: u32, times: (u32, u32)| {
            let lease = given(ADDRESS, preferred, valid, times).unwrap();
            (lease.renew, lease.rebind, lease.expires)
        };
        assert_eq!(times(80, 100, (10, 20)), (11_000, 21_000, 101_000));
        assert_eq!(times(80, 100, (0, 0)), (41_000, 65_000, 101_000));
        assert_eq!(times(80, 100, (70, 0)), (71_000, 71_000, 101_000));
        assert_eq!(times(80, 100, (0, 30)), (31_000, 31_000, 101_000));
        assert_eq!(times(0, 100, (0, 0)), (51_000, 81_000, 101_000));
        assert_eq!(times(80, 100, (10, 101)), (51_000, 89_000, 101_000));
        assert_eq!(times(1, 1, (0, 0)), (2_000, 3_000, 3_000));
        assert_eq!(times(u32::MAX, u32::MAX, (0, 0)), (u64::MAX, u64::MAX, u64::MAX));
        assert_eq!(times(u32::MAX, u32::MAX, (5, 9)), (6_000, 10_000, u64::MAX));
        assert_eq!(given(ADDRESS, 80, 100, (20, 10)), Err("its T1 is after its T2"));
    }
}
