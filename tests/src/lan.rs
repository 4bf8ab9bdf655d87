//! A network outside: what one of a host's interfaces leads to.

use std::ops::Deref;

use crate::{Attachment, Host, Network, Ns, Pod, Snapshot};

/// A namespace behind a host's interface, with the addresses `10.7.0.1/24` and `fd00:7::1/64`.
pub struct Lan(Ns);

impl Lan {
    /// Behind the interface `uplink` of `host`, which is made and has no addresses.
    pub fn behind(host: &Host, uplink: &str) -> Self {
        let lan = Ns::new();
        lan.set_sysctl("ipv6/conf/default/accept_dad", "0");
        host.cable(uplink, &lan, "lan0");
        lan.ip("address add 10.7.0.1/24 dev lan0");
        lan.ip("address add fd00:7::1/64 dev lan0 nodad");
        Lan(lan)
    }
}

impl Lan {
    /// Asserts that ADD fails and leaves nothing in the pod while the network's interface `link` has the address that
    /// IPAM gives first (10.7.0.10 with `arpProbe`, else fd00:7::10), and that ADD succeeds afterwards, with an address that
    /// is known to be free.
    ///
    /// # Panics
    /// If that isn't so.
    #[track_caller]
    pub fn assert_asked(&self, link: &str, network: &Network<'_>, attachment: &Attachment, pod: &Pod) {
        let (ip, net) = if network.config["arpProbe"] == true {
            ("10.7.0.10", "10.7.0.10/24")
        } else {
            ("fd00:7::10", "fd00:7::10/64")
        };
        self.ip(&format!("address add {net} dev {link} nodad"));
        let before = Snapshot::of_ns(pod);
        let err = network.add(attachment).error();
        let told = format!("another host on the network has {ip}");
        assert!(err.code == 102 && err.all().contains(&told), "{err:?}");
        before.assert_same(&Snapshot::of_ns(pod), "after the duplicate");
        let leases = crate::leases(&network.host.data_dir());
        assert!(!leases.iter().any(|lease| lease.contains("\\r\\n")), "{leases:?}");
        self.ip(&format!("address del {net} dev {link}"));
        let result = network.added(attachment);
        let tentative = pod.ip(&format!("-6 address show dev {} tentative", attachment.ifname));
        assert_eq!(tentative, "", "ADD returns when the addresses can be used");
        network.check(attachment, &result).success();
        network.deleted(attachment, Some(&result));
    }
}

impl Deref for Lan {
    type Target = Ns;

    fn deref(&self) -> &Ns {
        &self.0
    }
}
