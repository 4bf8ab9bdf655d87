//! Tests of the plugin bridge. They check the state of host and pod after ADD, every option, GC and
//! STATUS. They also check masquerading, the MAC check and vlans.
#![cfg(test)]

mod filters;
mod gc_status;
mod ipam;
mod life;
mod masquerade;
mod neighbours;
mod options;
mod spoof;
mod state;
mod unused;
mod vlan;
