//! What a program in a pod reaches with raw frames, whatever their addresses and contents.

mod frames;
mod places;
mod ptp;
mod reserved;
mod vlan_in_vm;
