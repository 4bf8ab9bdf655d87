//! The CNI IPAM plugin host-local.
