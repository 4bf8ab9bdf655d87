//! The plugin bridge: what host and pod have when ADD returns, every option, GC and STATUS,
//! masquerading, the MAC check, vlans.
#![cfg(test)]

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
