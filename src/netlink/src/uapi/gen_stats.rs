//! linux/gen_stats.h: what qdiscs count.

pub(crate) const TCA_STATS_QUEUE: u16 = 3;
/// The offset of `drops` in `struct gnet_stats_queue`, in bytes.
pub(crate) const GNET_STATS_QUEUE_DROPS: usize = 8;
