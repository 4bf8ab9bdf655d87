//! The CNI plugin loopback.
