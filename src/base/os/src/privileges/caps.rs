//! Sets of capabilities (capabilities(7)).

/// A set of capabilities(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caps(u64);

impl Caps {
    /// The empty set.
    pub const NONE: Caps = Caps(0);
    /// Permits access to files and directories of other users.
    pub const DAC_OVERRIDE: Caps = Caps(1 << 1);
    /// Permits ports below 1024.
    pub const NET_BIND_SERVICE: Caps = Caps(1 << 10);
    /// Permits changes of links, addresses, routes and rules, and of a namespace's sysctls.
    pub const NET_ADMIN: Caps = Caps(1 << 12);
    /// Permits packet sockets (packet(7)).
    pub const NET_RAW: Caps = Caps(1 << 13);
    /// Permits reading links of other users' processes in /proc, including network namespaces.
    pub const SYS_PTRACE: Caps = Caps(1 << 19);
    /// Permits setns(2) and mounts.
    pub const SYS_ADMIN: Caps = Caps(1 << 21);

    /// The union of both sets.
    #[must_use]
    pub const fn and(self, other: Caps) -> Caps {
        Caps(self.0 | other.0)
    }

    /// Whether this set contains all of `other`.
    pub const fn has(self, other: Caps) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the set with one bit for each capability, by its number (linux/capability.h).
    pub const fn bits(self) -> u64 {
        self.0
    }
}
