//! Hardware addresses of links.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// A hardware address of six bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads `aa:bb:cc:dd:ee:ff`, in any case; also with `-`, as `aabb.ccdd.eeff`, and as twelve digits. `None` for any
    /// other text.
    pub fn parse(text: &str) -> Option<Mac> {
        let (separator, digits) = match text.bytes().find(|byte| !byte.is_ascii_hexdigit()) {
            None => ("", 12),
            Some(b'.') => (".", 4),
            Some(b'-') => ("-", 2),
            Some(_) => (":", 2),
        };
        let groups: Vec<&str> =
            if separator.is_empty() { vec![text] } else { text.split(separator).collect() };
        if groups.len() * digits != 12 || groups.iter().any(|group| group.len() != digits) {
            return None;
        }
        // from_str_radix would take a sign.
        if !groups.iter().all(|group| group.bytes().all(|digit| digit.is_ascii_hexdigit())) {
            return None;
        }
        let number = u64::from_str_radix(&groups.concat(), 16).ok()?;
        let [_, _, bytes @ ..] = number.to_be_bytes();
        Some(Mac(bytes))
    }

    /// Returns a random, locally administered unicast address (getrandom(2)).
    pub fn random() -> Mac {
        let mut bytes = [0_u8; 6];
        // SAFETY: the pointer and the length are those of a live, writable array.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if usize::try_from(got) != Ok(bytes.len()) {
            // No getrandom (a seccomp filter): the standard library finds another source.
            let [a, b, c, d, e, f, ..] = RandomState::new().hash_one(0).to_ne_bytes();
            bytes = [a, b, c, d, e, f];
        }
        let [first, ..] = &mut bytes;
        *first = *first & !0x01 | 0x02;
        Mac(bytes)
    }

    /// Returns a random MAC for a port of a bridge: `fe:…`. A bridge without a MAC of its own takes the lowest
    /// of its ports', which this is not.
    pub fn random_port() -> Mac {
        let mut mac = Mac::random();
        let [first, ..] = &mut mac.0;
        *first = 0xfe;
        mac
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Returns the hardware address for an IP address. It is locally administered and unicast: `0a:58` and an IPv4
    /// address, or `0e` and five bytes of a hash of an IPv6 address. So a neighbour entry of an address's former owner
    /// is right for the next one.
    pub fn of_address(ip: IpAddr) -> Mac {
        match ip {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                Mac([0x0a, 0x58, a, b, c, d])
            }
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, ..] = cnimble_cni::hash::sha512(ip.octets());
                Mac([0x0e, a, b, c, d, e])
            }
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::Mac;

    #[test]
    fn reads_what_users_write() {
        let mac = Mac([0x02, 0xab, 0, 1, 0xff, 0x10]);
        for text in ["02:ab:00:01:ff:10", "02-AB-00-01-FF-10", "02ab.0001.FF10", "02ab0001ff10"] {
            assert_eq!(Mac::parse(text), Some(mac), "{text}");
        }
        assert_eq!(mac.to_string(), "02:ab:00:01:ff:10");
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "",
            "02:ab:00:01:ff",
            "02:ab:00:01:ff:10:11",
            "02:ab-00:01:ff:10",
            "2:ab:0:1:ff:10",
            "+2:ab:00:01:ff:10",
            "0g:ab:00:01:ff:10",
            "02:ab:00:01:ff:10 ",
            "02ab0001ff1",
            "02ab0001ff1011",
            "02ab-0001-ff10",
            "02ab.0001.ff1",
            "02ab.0001.ff10.",
            "02ab.0001",
            "02ab.0001:ff10",
            ".",
            "é:ab:00:01:ff:10",
        ] {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_address_has_one_mac() {
        let of = |text: &str| Mac::of_address(text.parse().unwrap());
        assert_eq!(of("10.1.2.3").to_string(), "0a:58:0a:01:02:03");
        assert_eq!(of("fd00::2"), of("fd00::2"));
        assert_ne!(of("fd00::2"), of("fd01::2"));
        assert_eq!(of("fd00::2").0[0], 0x0e);
    }

    #[test]
    fn random_addresses_are_local_and_unicast() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let mac = Mac::random();
            assert_eq!(mac.0[0] & 0x03, 0x02, "{mac}");
            seen.insert(mac);
        }
        assert!(seen.len() > 990, "only {} differ", seen.len());
    }
}
