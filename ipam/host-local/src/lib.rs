//! The CNI IPAM plugin host-local.
mod allocate;
mod range;
