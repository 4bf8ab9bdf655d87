//! The token bucket filter, a limit for all packets of a link: `tc qdisc add … tbf`. `struct tc_tbf_qopt` of
//! linux/pkt_sched.h.

use cnimble_cni::mtu;

use super::{Handle, header, struct_of, write_kind};
use crate::Request;
use crate::request::Mode;
use crate::uapi::pkt_sched::{
    TC_TBF_QOPT_BUFFER, TC_TBF_QOPT_LIMIT, TC_TBF_QOPT_RATE, TCA_TBF_PARMS, TCA_TBF_RATE64,
};
use crate::uapi::rtnetlink::RTM_NEWQDISC;
use crate::wire::{Attributes, Malformed, u32_ne};

/// A token bucket filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tbf {
    /// The rate in bytes per second.
    pub rate: u64,
    /// The maximum number of bytes that wait for tokens.
    pub limit: u32,
    /// The size of the bucket: the time that it takes to fill it, in ticks of 64 ns.
    pub buffer: u32,
}

impl Tbf {
    /// Returns a bucket for `burst` bytes that is refilled with `rate` bytes per second. Packets that would wait longer
    /// than `latency_ms` are dropped. Too large numbers become the largest that the kernel's 32-bit fields hold: a
    /// bucket holds at most 274 seconds of traffic.
    pub fn new(rate: u64, burst: u64, latency_ms: u32) -> Self {
        let ticks = mtu::ticks(rate, burst);
        let limit = u128::from(rate) * u128::from(latency_ms) / 1000 + u128::from(burst);
        let [limit, buffer] = [limit, ticks].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        Tbf { rate, limit, buffer }
    }

    /// Returns the size of the bucket in bytes.
    pub fn burst(&self) -> u64 {
        mtu::bytes(self.rate, self.buffer.into())
    }

    /// Returns a `struct tc_tbf_qopt`. It begins with two `struct tc_ratespec`, of which only the first has a rate.
    /// Limit, buffer and an unused field follow. A rate of more than 32 bits is the largest here, and TCA_TBF_RATE64
    /// has the true one.
    fn parameters(&self) -> Vec<u8> {
        let rate = u32::try_from(self.rate).unwrap_or(u32::MAX);
        struct_of(&[0, 0, rate, 0, 0, 0, self.limit, self.buffer, 0])
    }

    /// Reads TCA_OPTIONS of a qdisc `tbf`. Without TCA_TBF_PARMS all numbers are 0.
    pub(super) fn read(options: Attributes<'_>) -> Result<Self, Malformed> {
        const SHORT: Malformed = Malformed("the options of a token bucket are too short");
        let mut tbf = Tbf { rate: 0, limit: 0, buffer: 0 };
        let mut long_rate = None;
        for attribute in options {
            let (kind, value) = attribute?;
            match kind {
                TCA_TBF_PARMS => {
                    tbf.rate = u32_ne(value, TC_TBF_QOPT_RATE).ok_or(SHORT)?.into();
                    tbf.limit = u32_ne(value, TC_TBF_QOPT_LIMIT).ok_or(SHORT)?;
                    tbf.buffer = u32_ne(value, TC_TBF_QOPT_BUFFER).ok_or(SHORT)?;
                }
                TCA_TBF_RATE64 => {
                    long_rate = Some(u64::from_ne_bytes(value.try_into().map_err(|_| SHORT)?));
                }
                _ => {}
            }
        }
        tbf.rate = long_rate.unwrap_or(tbf.rate);
        Ok(tbf)
    }
}

/// `tc qdisc add dev LINK root handle 1: tbf …`. The kernel refuses it with EEXIST if the link already has a root qdisc
/// other than the default one. `name` is the link's name, for messages.
pub fn add(index: u32, name: &str, tbf: &Tbf) -> Request {
    let what = format!("add qdisc tbf of {} bytes per second to {name}", tbf.rate);
    let header = header(index, Handle::AT_ROOT, Handle::ROOT);
    Request::written(what, Mode::Create, RTM_NEWQDISC, &header, |w| {
        write_kind(w, "tbf", |w| {
            w.bytes(TCA_TBF_PARMS, &tbf.parameters());
            if tbf.rate > u64::from(u32::MAX) {
                w.u64_ne(TCA_TBF_RATE64, tbf.rate);
            }
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_bucket() {
        // 8 Mbit/s, 100 kB: 0.1 s, and 25 ms of the rate beside the burst.
        assert_eq!(
            Tbf::new(1_000_000, 100_000, 25),
            Tbf { rate: 1_000_000, limit: 125_000, buffer: 1_562_500 }
        );
        assert_eq!(Tbf::new(1_000_000, 100_000, 25).burst(), 100_000);
        // Whole microseconds: 333 of 333.3.
        assert_eq!(Tbf::new(3_000_000, 1000, 25).buffer, 333 * 125 / 8);
        let huge = Tbf::new(1000, u64::from(u32::MAX), 25);
        assert_eq!((huge.limit, huge.buffer), (u32::MAX, u32::MAX));
        assert_eq!(Tbf::new(0, 1, 25).buffer, 0);
        assert_eq!(Tbf::new(u64::MAX, u64::MAX, u32::MAX).limit, u32::MAX);
    }

    #[test]
    fn broken_options() {
        for options in [&[8, 0, 1, 0, 0, 0, 0, 0][..], &[8, 0, 4, 0, 0, 0, 0, 0], &[9, 0, 1, 0]] {
            assert!(Tbf::read(Attributes::new(options)).is_err(), "{options:?}");
        }
    }
}
