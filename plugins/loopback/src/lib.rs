//! The CNI plugin `loopback`: brings `lo` up in the container's namespace. It ignores CNI_IFNAME and CNI_ARGS, because
//! runtimes pass various values.

use cnimble_cni::{CniResult, Code, Error, Interface, IpConfig};
use cnimble_netlink::{Netlink, link};
use cnimble_plugin::interface::usable_netlink;
use cnimble_plugin::{Call, Place, Plugin, Role};

const LO: &str = "lo";

pub static PLUGIN: &dyn Plugin = &Loopback;

struct Loopback;

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    // It makes no interface: every namespace has its own loopback.
    fn role(&self) -> Role {
        Role::Helper
    }

    fn read_config(&self, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// Sets lo up. Returns prevResult unchanged if there is one, or else lo with its addresses. Fails with code 102,
    /// before anything is changed, if lo has an address that is no loopback address.
    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let netns = call.open_netns()?;
        let mut netlink = Netlink::open_in(&netns)?;
        let lo = netlink.link(LO)?;
        // This check precedes the first change, so that a failure changes nothing.
        let addrs = netlink.addrs(lo.index)?;
        if let Some(foreign) = addrs.iter().find(|addr| !addr.net.ip().is_loopback()) {
            return Err(Error::new(Code::CONFLICT, "loopback interface found with non-loopback address")
                .details(format!("lo in {} has {}", call.netns, foreign.net)));
        }
        if !lo.up {
            call.step("set lo up", || set(&mut netlink, lo.index, LinkState::Up))?;
            call.undo
                .push("set lo down", move || set(&mut Netlink::open_in(&netns)?, lo.index, LinkState::Down));
        }
        if let Some(prev) = &call.config.prev_result {
            return Ok(prev.clone());
        }
        // The kernel adds the addresses when lo is set up. The result has the first one of each family.
        let addrs = netlink.addrs(lo.index)?;
        let v4 = addrs.iter().find(|addr| addr.net.is_ipv4());
        let v6 = addrs.iter().find(|addr| addr.net.is_ipv6());
        let mut result = CniResult::default();
        result.interfaces.push(Interface::new(LO, "00:00:00:00:00:00", call.netns.as_str()));
        for addr in [v4, v6].into_iter().flatten() {
            let mut ip = IpConfig::new(addr.net, None);
            ip.interface = Some(0);
            result.ips.push(ip);
        }
        Ok(result)
    }

    /// Sets lo down. Does nothing if the namespace is gone.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let Some(netns) = call.find_netns()? else { return Ok(()) };
        let mut netlink = Netlink::open_in(&netns)?;
        match netlink.find_link(LO)? {
            Some(lo) if lo.up => set(&mut netlink, lo.index, LinkState::Down),
            _ => Ok(()),
        }
    }

    fn checks_prev_result(&self) -> bool {
        false
    }

    fn check(&self, call: &Call, _prev: &CniResult) -> Result<(), Error> {
        let mut inside = Netlink::open_in(&call.open_netns()?)?;
        call.wants(
            Place::Pod,
            &mut inside,
            |inside| verify_up(call, inside),
            |inside| {
                let lo = inside.link(LO)?;
                set(inside, lo.index, LinkState::Up)
            },
        )
    }

    fn status(&self, _call: &Call) -> Result<(), Error> {
        usable_netlink().map(drop)
    }
}

/// Fails with code 103 if lo is down.
fn verify_up(call: &Call, inside: &mut Netlink) -> Result<(), Error> {
    if inside.link(LO)?.up {
        return Ok(());
    }
    Err(Error::check("loopback interface is down").details(format!("lo in {}", call.netns)))
}

#[derive(Clone, Copy)]
enum LinkState {
    Up,
    Down,
}

/// Sets the link `index`, which is lo, up or down.
fn set(netlink: &mut Netlink, index: u32, state: LinkState) -> Result<(), Error> {
    let change = link::Change { up: Some(matches!(state, LinkState::Up)), ..link::Change::default() };
    Ok(netlink.execute(link::set(index, LO, &change))?)
}
