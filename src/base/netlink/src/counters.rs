//! Counters of links and queues: `ip -s link`, `tc -s qdisc`.

use super::uapi::gen_stats::{GNET_STATS_QUEUE_DROPS, TCA_STATS_QUEUE};
use super::uapi::if_link::{FILTER_LINK_64, IF_STATS_MSG, IFLA_STATS_LINK_64};
use super::uapi::pkt_sched::TC_H_ROOT;
use super::uapi::rtnetlink::{
    RTM_GETQDISC, RTM_GETSTATS, RTM_NEWQDISC, RTM_NEWSTATS, TCA_KIND, TCA_STATS2, TCM_IFINDEX, TCM_PARENT,
    TCMSG,
};
use super::wire::{self, Attributes, Malformed, Message, Parsed, u32_ne};
use super::{Netlink, Result};

/// The counters of a link since it was made (`struct rtnl_link_stats64`), from its own point of view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named as in the structure
pub struct Counters {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

impl Counters {
    /// Returns the counters as the other end of the cable would count.
    #[must_use]
    pub fn of_the_other_end(self) -> Self {
        Counters {
            rx_packets: self.tx_packets,
            tx_packets: self.rx_packets,
            rx_bytes: self.tx_bytes,
            tx_bytes: self.rx_bytes,
            rx_errors: self.tx_errors,
            tx_errors: self.rx_errors,
            rx_dropped: self.tx_dropped,
            tx_dropped: self.rx_dropped,
        }
    }
}

impl Netlink {
    /// The counters of all links, with their indexes. Since Linux 4.7.
    pub fn counters(&mut self) -> Result<Vec<(u32, Counters)>> {
        let mut header = [0; IF_STATS_MSG];
        if let Some(mask) = header.last_chunk_mut() {
            *mask = FILTER_LINK_64.to_ne_bytes();
        }
        let message = wire::list(RTM_GETSTATS, &header);
        self.dump_raw("list the counters of links", &message, read)
    }

    /// Returns the number of packets that the limits at links' roots (tbf, htb) have dropped, with the links' indexes.
    pub fn limit_drops(&mut self) -> Result<Vec<(u32, u64)>> {
        let message = wire::list(RTM_GETQDISC, &[0; TCMSG]);
        self.dump_raw("list the drops of limits", &message, read_drops)
    }
}

pub(super) fn read(message: &Message<'_>) -> Parsed<Option<(u32, Counters)>> {
    const SHORT: Malformed = Malformed("a message of counters is too short");
    if message.kind != RTM_NEWSTATS {
        return Ok(None);
    }
    let index = u32_ne(message.body, 4).ok_or(SHORT)?;
    let Some(value) = Attributes::behind(message.body, IF_STATS_MSG).find(IFLA_STATS_LINK_64)? else {
        return Ok(None);
    };
    let (fields, _) = value.as_chunks();
    let [rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped] =
        fields.first_chunk().ok_or(SHORT)?.map(u64::from_ne_bytes);
    Ok(Some((
        index,
        Counters { rx_packets, tx_packets, rx_bytes, tx_bytes, rx_errors, tx_errors, rx_dropped, tx_dropped },
    )))
}

pub(super) fn read_drops(message: &Message<'_>) -> Parsed<Option<(u32, u64)>> {
    if message.kind != RTM_NEWQDISC || u32_ne(message.body, TCM_PARENT) != Some(TC_H_ROOT) {
        return Ok(None);
    }
    let Some(index) = u32_ne(message.body, TCM_IFINDEX) else { return Ok(None) };
    let attributes = Attributes::behind(message.body, TCMSG);
    if !attributes.text(TCA_KIND).is_some_and(|kind| ["tbf", "htb"].contains(&kind.as_str())) {
        return Ok(None);
    }
    let Some(stats) = attributes.find(TCA_STATS2)? else { return Ok(None) };
    let queue = Attributes::new(stats).find(TCA_STATS_QUEUE)?;
    Ok(queue.and_then(|queue| u32_ne(queue, GNET_STATS_QUEUE_DROPS)).map(|drops| (index, drops.into())))
}
