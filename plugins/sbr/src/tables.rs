//! Finds unused tables, and the interface of a rule. A table with a rule or a route is in use. A lock on the namespace
//! itself (flock(2)), also the Go plugin's, guards the choice. The kernel releases it at the end of the process.

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

/// default, main and local (rtnetlink(7)).
const KERNELS: std::ops::RangeInclusive<u32> = 253..=255;

/// `ip rule`'s `proto`. The Go plugin's rules have none.
pub(crate) const PROTOCOL: u8 = 201;

/// The time to wait for the lock, which earlier ADDs may hold. A process in the pod can hold it, too, so the wait is
/// bounded.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Fails with code 11 after the time limit, or if the kernel refuses the lock.
pub(crate) fn lock(call: &Call) -> Result<Flock<File>, Error> {
    let failed = |why: String| Error::new(Code::IO, format!("can't lock {}", call.netns)).details(why);
    let mut file = File::open(&call.netns).map_err(|err| failed(err.to_string()))?;
    let end = Instant::now() + PATIENCE;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
            Err((_, errno)) => return Err(failed(errno.desc().to_owned())),
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

#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) rules: Vec<Rule>,
    with_routes: BTreeMap<u32, BTreeSet<u32>>,
}

impl Tables {
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

    /// Whether a table has routes of this link, and no others.
    pub(crate) fn is_of(&self, table: u32, link: &Link) -> bool {
        self.with_routes.get(&table).is_some_and(|links| links.len() == 1 && links.contains(&link.index))
    }

    /// Whether a rule belongs to an interface with these addresses.
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
            // The user's table has routes by any link.
            (PROTOCOL, Some(user)) if rule.table == user => by_address,
            (PROTOCOL, _) => match self.with_routes.get(&rule.table) {
                Some(links) => link.is_some_and(|link| links.contains(&link.index)),
                None => by_address,
            },
            // The Go plugin's rules look like the user's.
            (0, Some(user)) => by_address && rule.table == user,
            (0, None) => {
                by_address && rule.table >= FIRST && !KERNELS.contains(&rule.table) && self.serves(rule, link)
            }
            _ => false,
        }
    }

    /// Whether the rule's table has routes of this link only, or, for a removed link (`None`), no routes.
    fn serves(&self, rule: &Rule, link: Option<&Link>) -> bool {
        match link {
            Some(link) => self.is_of(rule.table, link),
            None => !self.with_routes.contains_key(&rule.table),
        }
    }

    /// Whether a rule has outlived its interface: this plugin made it, its address is gone, and its table is empty or
    /// the one that the configuration names.
    pub(crate) fn is_stale(&self, rule: &Rule, present: &BTreeSet<IpAddr>, user: Option<u32>) -> bool {
        rule.protocol == PROTOCOL
            && rule.from.is_some_and(|from| !present.contains(&from))
            && match user {
                Some(user) => rule.table == user,
                None => !self.with_routes.contains_key(&rule.table),
            }
    }
}

pub(crate) fn all_addresses(inside: &mut Netlink) -> Result<BTreeSet<IpAddr>, Error> {
    let mut found = BTreeSet::new();
    for link in inside.links(&cnimble_netlink::link::Filter { master: None, kind: None })? {
        found.extend(inside.addrs(link.index)?.iter().map(|addr| addr.net.ip()));
    }
    Ok(found)
}
