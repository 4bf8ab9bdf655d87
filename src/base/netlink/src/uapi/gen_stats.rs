//! linux/gen_stats.h: what qdiscs count.

pub(crate) const TCA_STATS_QUEUE: u16 = 3;
/// `offsetof(struct gnet_stats_queue, drops)`
pub(crate) const GNET_STATS_QUEUE_DROPS: usize = 8;
