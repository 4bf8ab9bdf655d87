//! The effects of raw frames from a pod, with any addresses and contents.

mod frames;
mod places;
mod ptp;
mod reserved;
mod vlan_in_vm;
