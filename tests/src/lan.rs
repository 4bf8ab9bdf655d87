//! A network outside: what one of a host's interfaces leads to.

use std::ops::Deref;

use crate::{Host, Ns};

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

impl Deref for Lan {
    type Target = Ns;

    fn deref(&self) -> &Ns {
        &self.0
    }
}
