//! What does not go through an interface of a certain MTU. `cnimble validate --strict` asks the same functions as ADD.

/// The least MTU of IPv6, in bytes (RFC 8200, section 5).
pub const IPV6_MTU: u32 = 1280;

/// The length of an Ethernet header, in bytes (ETH_HLEN in linux/if_ether.h).
const HEADER: u64 = 14;

/// The reason that an interface with this MTU cannot have IPv6 addresses, or `None` if it can. The kernel ends IPv6 on
/// such an interface.
pub fn ipv6_problem(mtu: u32) -> Option<String> {
    (mtu < IPV6_MTU).then(|| format!("{mtu} is too small for IPv6, which needs {IPV6_MTU} bytes"))
}

/// Nanoseconds of a tick, the kernel's unit for the time that a token bucket takes to fill: PSCHED_TICKS2NS() has been
/// this since Linux 2.6.31, and /proc/net/psched is the same everywhere.
const TICK: u128 = 64;

/// The ticks that a token bucket of `burst` bytes takes to fill with `rate` bytes per second. The time is cut to whole
/// microseconds, as in the Go plugin bandwidth.
pub fn ticks(rate: u64, burst: u64) -> u128 {
    let micros = (u128::from(burst) * 1_000_000).checked_div(u128::from(rate)).unwrap_or(0);
    micros * 1000 / TICK
}

/// The bytes that a token bucket holds after so many `ticks`.
pub fn bytes(rate: u64, ticks: u128) -> u64 {
    u64::try_from(ticks * TICK * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// The least burst in bytes with which the bucket holds so many `bytes`.
fn burst_for(rate: u64, bytes: u64) -> u128 {
    let (rate, bytes) = (u128::from(rate.max(1)), u128::from(bytes));
    let ticks = (bytes * 1_000_000_000).div_ceil(TICK * rate);
    let micros = (ticks * TICK).div_ceil(1000);
    (micros * rate).div_ceil(1_000_000)
}

/// The reason that a token bucket that holds so many bytes drops the largest packets of an interface with this MTU, or
/// `None` if it passes them. The bucket never holds enough tokens for a packet that is larger than itself. `rate` is in
/// bytes per second.
pub fn burst_problem(rate: u64, held: u64, mtu: u32) -> Option<String> {
    let packet = u64::from(mtu) + HEADER;
    (held < packet).then(|| {
        format!(
            "the bucket holds {held} bytes, and a packet of {packet} bytes (MTU {mtu}) never passes; that takes {} bits",
            burst_for(rate, packet) * 8
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_values_pass() {
        assert!(ipv6_problem(1280).is_none() && ipv6_problem(1279).is_some());
        assert!(burst_problem(1_000_000, 1514, 1500).is_none());
        let why = burst_problem(1_000_000, 1513, 1500).unwrap();
        assert!(why.ends_with("takes 12120 bits"), "{why}");
    }

    #[test]
    fn the_least_burst_for_a_packet_is_the_least() {
        for rate in [1, 1000, 1_000_000, 12_345_678, 1_250_000_000] {
            let least = u64::try_from(burst_for(rate, 1514)).unwrap();
            let held = |burst| bytes(rate, ticks(rate, burst));
            assert!(held(least) >= 1514 && held(least - 1) < 1514, "{rate}: {least}");
        }
    }
}
