//! The kernel's constants by the kernel's names, one file per header.
//!
//! The crate libc has many of them, but not all, and some for glibc only. A test compares every
//! line with the headers of the machine (Debian's package linux-libc-dev).

pub(crate) mod fib_rules;
pub(crate) mod gen_stats;
pub(crate) mod if_bridge;
pub(crate) mod if_link;
pub(crate) mod if_tun;
pub(crate) mod inet_diag;
pub(crate) mod net_namespace;
pub(crate) mod netconf;
pub(crate) mod netlink;
pub(crate) mod nexthop;
pub(crate) mod nf_conntrack;
pub(crate) mod nf_tables;
pub(crate) mod nfnetlink;
pub(crate) mod pkt_cls;
pub(crate) mod pkt_sched;
pub(crate) mod rtnetlink;
pub(crate) mod xfrm;
pub(crate) mod xtables;

#[cfg(test)]
mod tests;
