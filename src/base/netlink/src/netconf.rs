//! Network configuration by netlink: `ip netconf`. Below /proc/sys/net the kernel would walk past a directory of each
//! namespace on the host.

use super::uapi::netconf::{NETCONFA_FORWARDING, NETCONFA_IFINDEX, NETCONFA_IFINDEX_ALL, NETCONFMSG};
use super::uapi::netlink::NLM_F_REQUEST;
use super::uapi::rtnetlink::{RTM_GETNETCONF, RTM_NEWNETCONF};
use super::wire::{self, Attributes, Message, Parsed, u32_ne};
use super::{Netlink, Result, socket};

impl Netlink {
    /// `ip netconf show dev all`: whether packets are forwarded between links, for IPv4 if `v4`, else for IPv6.
    ///
    /// # Errors
    /// Fails with EOPNOTSUPP if the kernel lacks the family.
    pub fn forwards(&mut self, v4: bool) -> Result<bool> {
        let (family, name) = if v4 { (libc::AF_INET, "IPv4") } else { (libc::AF_INET6, "IPv6") };
        let what = format!("ask whether {name} is forwarded");
        // `struct netconfmsg` is one byte, the family.
        let header = [u8::try_from(family).unwrap_or_default()];
        let message = wire::message(RTM_GETNETCONF, NLM_F_REQUEST, &header, |w| {
            w.u32_ne(NETCONFA_IFINDEX, NETCONFA_IFINDEX_ALL.cast_unsigned());
        });
        self.get(&what, message, read)?.ok_or_else(|| socket::broken(&what, "it doesn't say"))
    }
}

/// Whether packets are forwarded, from RTM_NEWNETCONF.
pub(super) fn read(message: &Message<'_>) -> Parsed<Option<bool>> {
    let mut forwarding = None;
    for attribute in Attributes::behind(message.body, NETCONFMSG) {
        let (kind, value) = attribute?;
        if message.kind == RTM_NEWNETCONF && kind == NETCONFA_FORWARDING {
            forwarding = u32_ne(value, 0).map(|on| on != 0);
        }
    }
    Ok(forwarding)
}

#[cfg(test)]
mod tests {
    use crate::testing::in_netns;
    use crate::{Netlink, sysctl};

    #[test]
    fn it_is_what_the_sysctl_says() {
        in_netns("it_is_what_the_sysctl_says", || {
            let mut netlink = Netlink::open().unwrap();
            for value in ["1", "0", "1"] {
                for (v4, key) in [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")] {
                    sysctl::write(key, value).unwrap();
                    assert_eq!(netlink.forwards(v4).unwrap(), value == "1", "{key}");
                }
                assert_eq!(netlink.link("lo").unwrap().forwards, Some(value == "1"));
            }
            sysctl::write("net/ipv4/conf/lo/forwarding", "0").unwrap();
            assert_eq!(
                (netlink.forwards(true), netlink.link("lo").unwrap().forwards),
                (Ok(true), Some(false))
            );
        });
    }
}
