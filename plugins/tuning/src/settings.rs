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
        let mut found = Vec::new();
        if let Some(mac) = self.mac.filter(|mac| Some(*mac) != now.mac) {
            let before = now.mac.map(|mac| mac.to_string()).unwrap_or_default();
            found.push(Difference {
                change: Change { mac: Some(mac), ..Change::default() },
                inverse: Change { mac: now.mac, ..Change::default() },
                words: format!("MAC {before}, expected {mac}"),
            });
        }
        if let Some(promisc) = self.promisc.filter(|promisc| *promisc != now.promisc) {
            found.push(Difference {
                change: Change { promisc: Some(promisc), ..Change::default() },
                inverse: Change { promisc: Some(now.promisc), ..Change::default() },
                words: format!(
                    "promiscuous mode {}, expected {}",
                    on_or_off(now.promisc),
                    on_or_off(promisc)
                ),
            });
        }
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != now.mtu) {
            found.push(Difference {
                change: Change { mtu: Some(mtu), ..Change::default() },
                inverse: Change { mtu: Some(now.mtu), ..Change::default() },
                words: format!("MTU {}, expected {mtu}", now.mtu),
            });
        }
        if let Some(allmulti) = self.allmulti.filter(|allmulti| *allmulti != now.allmulti) {
            found.push(Difference {
                change: Change { allmulti: Some(allmulti), ..Change::default() },
                inverse: Change { allmulti: Some(now.allmulti), ..Change::default() },
                words: format!("all-multicast {}, expected {}", on_or_off(now.allmulti), on_or_off(allmulti)),
            });
        }
        if let Some(txqlen) = self.txqlen.filter(|txqlen| *txqlen != now.txqlen) {
            found.push(Difference {
                change: Change { txqlen: Some(txqlen), ..Change::default() },
                inverse: Change { txqlen: Some(now.txqlen), ..Change::default() },
                words: format!("queue length {}, expected {txqlen}", now.txqlen),
            });
        }
        found
    }
}

/// Returns the word for the state of a flag.
fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
