//! The CNI plugin bridge.
