//! The parameters, the owner and the host's socket that all steps of ADD, CHECK and a repair share.

use cnimble_cni::{Error, Owner};
use cnimble_netlink::Netlink;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::Call;
use cnimble_plugin::interface::pair_mtu::Mtu;
use cnimble_rules::filters::{self, PodRules};

use crate::config::Config;

pub(crate) struct Context<'a> {
    pub(crate) call: &'a Call,
    pub(crate) config: &'a Config,
    pub(crate) owner: Owner,
    pub(crate) host: Netlink,
    /// The MTU of a new bridge or port, in bytes. `None` leaves it to the kernel. ADD sets it for `mtuAuto`, after
    /// [`Context::open`].
    pub(crate) mtu: Option<u32>,
}

impl<'a> Context<'a> {
    /// Opens the host's socket and takes a fixed `mtu` from the configuration. With `mtuAuto` the MTU is `None` here.
    pub(crate) fn open(call: &'a Call, config: &'a Config) -> Result<Self, Error> {
        let mtu = match config.mtu {
            Mtu::Fixed(mtu) => mtu,
            // A repair leaves the MTU of a new bridge to the kernel, which takes the smallest MTU of the ports.
            Mtu::Auto(_) => None,
        };
        Ok(Context { call, config, owner: call.owner(), host: Netlink::open()?, mtu })
    }

    /// Adds the packet rules of `wanted`, and pushes their removal on the undo stack.
    pub(crate) fn filter(&self, nft: &mut Nft, wanted: &PodRules<'_>) -> Result<(), Error> {
        let undo = filters::add(nft, &self.owner, wanted)?;
        self.call.undo.push("remove packet rules", move || undo.run());
        Ok(())
    }
}
