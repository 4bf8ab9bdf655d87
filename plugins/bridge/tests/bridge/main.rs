//! Tests of the plugin bridge.
#![cfg(test)]

mod filters;
mod gc_status;
mod ipam;
mod killed;
mod life;
mod masquerade;
mod neighbours;
mod options;
mod spoof;
mod state;
mod unused;
mod uplink;
mod vlan;
