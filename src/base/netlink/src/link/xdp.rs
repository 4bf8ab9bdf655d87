//! XDP programs of links: `ip link show` with `xdp`.

use crate::link::read::family_and_index;
use crate::uapi::if_link::{
    IFLA_XDP, IFLA_XDP_ATTACHED, IFLA_XDP_DRV_PROG_ID, IFLA_XDP_HW_PROG_ID, IFLA_XDP_PROG_ID,
    IFLA_XDP_SKB_PROG_ID, XDP_ATTACHED_NONE,
};
use crate::uapi::rtnetlink::{IFINFOMSG, RTM_NEWLINK};
use crate::wire::{Attributes, Message, Parsed, u32_ne};
use crate::{Netlink, Result};

impl Netlink {
    /// Returns the numbers of the XDP programs on a link, as `bpftool prog show id` takes them. A link has one program
    /// at most in the driver, in the kernel's general code and in hardware.
    ///
    /// # Errors
    /// Fails with ENODEV if there is no such link.
    pub fn xdp_programs(&mut self, index: u32) -> Result<Vec<u32>> {
        self.get_link_at(index, read)
    }
}

fn read(message: &Message<'_>) -> Parsed<Option<Vec<u32>>> {
    if message.kind != RTM_NEWLINK || family_and_index(message).is_none_or(|(family, _)| family != 0) {
        return Ok(None);
    }
    let attributes = Attributes::behind(message.body, IFINFOMSG);
    let Some(xdp) = attributes.find(IFLA_XDP)?.map(Attributes::new) else { return Ok(Some(Vec::new())) };
    if xdp.find_u8(IFLA_XDP_ATTACHED)?.unwrap_or(XDP_ATTACHED_NONE) == XDP_ATTACHED_NONE {
        return Ok(Some(Vec::new()));
    }
    let mut programs = Vec::new();
    for kind in [IFLA_XDP_PROG_ID, IFLA_XDP_DRV_PROG_ID, IFLA_XDP_SKB_PROG_ID, IFLA_XDP_HW_PROG_ID] {
        programs.extend(xdp.find(kind)?.and_then(|value| u32_ne(value, 0)));
    }
    programs.sort_unstable();
    programs.dedup();
    Ok(Some(programs))
}
