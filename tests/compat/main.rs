//! Compatibility with the Go plugins and with runtimes: a switch of plugins while pods are running, the remains of the
//! Go plugins, and calls of real runtimes.
#![cfg(test)]

mod go_leftovers;
mod interop;
mod mtu_auto;
mod pod_switches;
mod routers;
mod shapes;
mod table;
