//! Finds unused routing tables, and the rules of an interface. A table with a rule or a route is in use.
//!
//! A lock on the namespace itself (flock(2)) guards the choice. The Go plugin takes the same one. The kernel releases
//! it at the end of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use cnimble_cni::{Code, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;
use cnimble_netlink::rule::Rule;
use cnimble_plugin::{Call, signal};

/// The first table that is chosen, as in the Go plugin.
pub(crate) const FIRST: u32 = 100;

/// The tables default, main and local (rtnetlink(7)).
const KERNELS: std::ops::RangeInclusive<u32> = 253..=255;

/// The protocol of this plugin's rules (`proto` in `ip rule`). Those of the Go plugin have none (0).
pub(crate) const PROTOCOL: u8 = 201;

/// The longest wait for the lock. Earlier ADDs hold it for a moment, but a process in the pod can hold it for ever.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the lock of the namespace in CNI_NETNS. Fails with code 11 after [`PATIENCE`], and with code 5 if the kernel
/// refuses the lock. A termination signal ends the wait.
pub(crate) fn lock(call: &Call) -> Result<Flock<File>, Error> {
    let mut file = File::open(&call.netns).map_err(|err| lock_failed(call, &err.to_string()))?;
    let end = Instant::now() + PATIENCE;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
            Err((_, errno)) => return Err(lock_failed(call, errno.desc())),
        };
        signal::check()?;
        if Instant::now() > end {
            let what = format!("{} is locked by another process", call.netns);
            return Err(Error::new(Code::TRY_AGAIN_LATER, what)
                .details(format!("for {} s (flock(2)); hint: `lslocks` shows which", PATIENCE.as_secs())));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns the error for a lock that the kernel refuses, with code 5.
fn lock_failed(call: &Call, why: &str) -> Error {
    Error::new(Code::IO, format!("can't lock {}", call.netns)).details(why)
}

/// The routing rules of a namespace, and the tables that have routes.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) rules: Vec<Rule>,
    /// The indexes of the links with routes, for each table.
    with_routes: BTreeMap<u32, BTreeSet<u32>>,
}

impl Tables {
    /// Lists the rules and tables of the namespace.
    pub(crate) fn read(inside: &mut Netlink) -> Result<Self, Error> {
        Ok(Tables { rules: inside.rules()?, with_routes: inside.tables()? })
    }

    /// Returns the tables from [`FIRST`] on that have neither rules nor routes.
    pub(crate) fn free(&self) -> impl Iterator<Item = u32> {
        let ruled: BTreeSet<u32> = self.rules.iter().map(|rule| rule.table).collect();
        (FIRST..u32::MAX).filter(move |table| {
            !KERNELS.contains(table) && !ruled.contains(table) && !self.with_routes.contains_key(table)
        })
    }

    /// Returns true if a table has routes of this link, and of no other.
    pub(crate) fn is_of(&self, table: u32, link: &Link) -> bool {
        self.with_routes.get(&table).is_some_and(|links| links.len() == 1 && links.contains(&link.index))
    }

    /// Returns true if this plugin or the Go plugin has made the rule for the interface `link` with the addresses
    /// `addrs`. `user` is the table in the configuration.
    ///
    /// A rule of this plugin belongs to the link whose routes are in its table. Without routes, or in the `user`'s
    /// table, its address decides. A rule of the Go plugin looks like an administrator's. So its address has to match,
    /// and its table has to be the `user`'s, or else a chosen one with routes of this link alone.
    pub(crate) fn is_ours(
        &self,
        rule: &Rule,
        link: Option<&Link>,
        addrs: &[IpAddr],
        user: Option<u32>,
    ) -> bool {
        let Some(from) = rule.from else { return false };
        let by_address = addrs.contains(&from);
        match (rule.protocol, user) {
            // The routes in the user's table may be by any link, so they prove nothing.
            (PROTOCOL, Some(user)) if rule.table == user => by_address,
            (PROTOCOL, _) => match self.with_routes.get(&rule.table) {
                Some(links) => link.is_some_and(|link| links.contains(&link.index)),
                None => by_address,
            },
            // The Go plugin's rules have no protocol, like those of an administrator.
            (0, Some(user)) => by_address && rule.table == user,
            (0, None) => {
                by_address && rule.table >= FIRST && !KERNELS.contains(&rule.table) && self.serves(rule, link)
            }
            _ => false,
        }
    }

    /// Returns true if the rule's table has routes of this link only, or, for a removed link (`None`), no routes.
    fn serves(&self, rule: &Rule, link: Option<&Link>) -> bool {
        match link {
            Some(link) => self.is_of(rule.table, link),
            None => !self.with_routes.contains_key(&rule.table),
        }
    }

    /// Returns true if a rule has outlived its interface. This plugin has made it, its address is not `present` in the
    /// namespace, and its table is empty. If the configuration names a table, the rule has to lead there instead.
    pub(crate) fn is_stale(&self, rule: &Rule, present: &BTreeSet<IpAddr>, user: Option<u32>) -> bool {
        rule.protocol == PROTOCOL
            && rule.from.is_some_and(|from| !present.contains(&from))
            && match user {
                Some(user) => rule.table == user,
                None => !self.with_routes.contains_key(&rule.table),
            }
    }
}

/// Returns the addresses of all links in the namespace.
pub(crate) fn all_addresses(inside: &mut Netlink) -> Result<BTreeSet<IpAddr>, Error> {
    let mut found = BTreeSet::new();
    for link in inside.links(&cnimble_netlink::link::Filter { master: None, kind: None })? {
        found.extend(inside.addrs(link.index)?.iter().map(|addr| addr.net.ip()));
    }
    Ok(found)
}
