//! The attributes of a link that the plugin sets.

use cnimble_netlink::link::{Change, Link, Mac};

/// The wanted attributes of a link. `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) mac: Option<Mac>,
    pub(crate) promisc: Option<bool>,
    /// The MTU in bytes.
    pub(crate) mtu: Option<u32>,
    pub(crate) allmulti: Option<bool>,
    /// The length of the transmit queue in packets.
    pub(crate) txqlen: Option<u32>,
}

/// A setting of a link that is not the wanted one.
pub(crate) struct Difference {
    /// Makes it the wanted one.
    pub(crate) change: Change<'static>,
    /// Restores the present one.
    pub(crate) inverse: Change<'static>,
    /// The present and the wanted value, for the error of CHECK.
    pub(crate) words: String,
}

impl Settings {
    /// Returns true if no setting is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// Returns the differences of the link `now`, one for each setting, so that an error names the setting.
    pub(crate) fn differences(&self, now: &Link) -> Vec<Difference> {
        let one = Change::default;
        let on = |on: bool| if on { "on" } else { "off" };
        let mut found = Vec::new();
        let mut add = |change, inverse, words| found.push(Difference { change, inverse, words });
        if let Some(mac) = self.mac.filter(|mac| Some(*mac) != now.mac) {
            let (to, before) = (|mac| Change { mac, ..one() }, now.mac.map(|mac| mac.to_string()));
            let words = format!("MAC {}, expected {mac}", before.unwrap_or_default());
            add(to(Some(mac)), to(now.mac), words);
        }
        if let Some(promisc) = self.promisc.filter(|promisc| *promisc != now.promisc) {
            let to = |promisc| Change { promisc: Some(promisc), ..one() };
            let words = format!("promiscuous mode {}, expected {}", on(now.promisc), on(promisc));
            add(to(promisc), to(now.promisc), words);
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != now.mtu) {
            let to = |mtu| Change { mtu: Some(mtu), ..one() };
            add(to(mtu), to(now.mtu), format!("MTU {}, expected {mtu}", now.mtu));
        }
        if let Some(allmulti) = self.allmulti.filter(|allmulti| *allmulti != now.allmulti) {
            let to = |allmulti| Change { allmulti: Some(allmulti), ..one() };
            let words = format!("all-multicast {}, expected {}", on(now.allmulti), on(allmulti));
            add(to(allmulti), to(now.allmulti), words);
        }
        if let Some(txqlen) = self.txqlen.filter(|txqlen| *txqlen != now.txqlen) {
            let to = |txqlen| Change { txqlen: Some(txqlen), ..one() };
            add(to(txqlen), to(now.txqlen), format!("queue length {}, expected {txqlen}", now.txqlen));
        }
        found
    }
}
