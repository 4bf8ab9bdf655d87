use cnimble_netlink::link::{Change, Link, Mac};

/// `None` leaves a setting unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) mac: Option<Mac>,
    pub(crate) promisc: Option<bool>,
    pub(crate) mtu: Option<u32>,
    pub(crate) allmulti: Option<bool>,
    /// The queue's length in packets.
    pub(crate) txqlen: Option<u32>,
}

impl Settings {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// Each change with its inverse, of one setting: an error names it.
    pub(crate) fn changes(&self, now: &Link) -> Vec<(Change<'static>, Change<'static>)> {
        let one = Change::default;
        let mut changes = Vec::new();
        if self.mac.is_some() && self.mac != now.mac {
            changes.push((Change { mac: self.mac, ..one() }, Change { mac: now.mac, ..one() }));
        }
        if let Some(promisc) = self.promisc.filter(|promisc| *promisc != now.promisc) {
            let to = |promisc| Change { promisc: Some(promisc), ..one() };
            changes.push((to(promisc), to(now.promisc)));
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != now.mtu) {
            let to = |mtu| Change { mtu: Some(mtu), ..one() };
            changes.push((to(mtu), to(now.mtu)));
        }
        if let Some(allmulti) = self.allmulti.filter(|allmulti| *allmulti != now.allmulti) {
            let to = |allmulti| Change { allmulti: Some(allmulti), ..one() };
            changes.push((to(allmulti), to(now.allmulti)));
        }
        if let Some(txqlen) = self.txqlen.filter(|txqlen| *txqlen != now.txqlen) {
            let to = |txqlen| Change { txqlen: Some(txqlen), ..one() };
            changes.push((to(txqlen), to(now.txqlen)));
        }
        changes
    }

    pub(crate) fn differing(&self, now: &Link) -> Vec<String> {
        let on = |on: bool| if on { "on" } else { "off" };
        let mut found = Vec::new();
        if let Some(mac) = self.mac.filter(|mac| Some(*mac) != now.mac) {
            let now = now.mac.map(|mac| mac.to_string()).unwrap_or_default();
            found.push(format!("MAC {now}, expected {mac}"));
        }
        if let Some(promisc) = self.promisc.filter(|promisc| *promisc != now.promisc) {
            found.push(format!("promiscuous mode {}, expected {}", on(now.promisc), on(promisc)));
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != now.mtu) {
            found.push(format!("MTU {}, expected {mtu}", now.mtu));
        }
        if let Some(allmulti) = self.allmulti.filter(|allmulti| *allmulti != now.allmulti) {
            found.push(format!("all-multicast {}, expected {}", on(now.allmulti), on(allmulti)));
        }
        if let Some(txqlen) = self.txqlen.filter(|txqlen| *txqlen != now.txqlen) {
            found.push(format!("queue length {}, expected {txqlen}", now.txqlen));
        }
        found
    }
}
