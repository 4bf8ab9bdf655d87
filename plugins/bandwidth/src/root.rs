//! The limit at the root of a link. It is a token bucket (`tbf`), or with lists of subnets a class of an `htb`. Filters
//! then select the class by the address of the other end.

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::Link;
use cnimble_netlink::tc::htb::{self, Class};
use cnimble_netlink::tc::qdisc::{self, Qdisc};
use cnimble_netlink::tc::subnet::{self, End, SubnetFilter};
use cnimble_netlink::tc::tbf::{self, Tbf};
use cnimble_netlink::{Netlink, Request};
use cnimble_plugin::Call;

use crate::config::Subnets;

/// The limit of one direction.
#[derive(Debug)]
pub(crate) struct Limit<'a> {
    pub(crate) bucket: Tbf,
    pub(crate) subnets: &'a Subnets,
    /// The end of a packet whose address the subnets select.
    pub(crate) end: End,
}

impl Limit<'_> {
    /// Returns the class for packets without a matching filter, and the filters. `None` without lists of subnets.
    fn sorting(&self) -> Option<(Class, Vec<SubnetFilter>)> {
        let (nets, listed, rest): (&[IpNetwork], _, _) = match self.subnets {
            Subnets::All => return None,
            Subnets::Only(nets) => (nets, Class::Limited, Class::Free),
            Subnets::Except(nets) => (nets, Class::Free, Class::Limited),
        };
        Some((rest, nets.iter().map(|net| SubnetFilter::new(*net, self.end, listed)).collect()))
    }
}

/// Returns true if the qdisc looks like a limit of this plugin or of the Go plugin: a `tbf` or an `htb` with the handle
/// 1:. The Go plugin's DEL leaves it on the link.
pub(crate) fn is_limit(qdisc: &Qdisc) -> bool {
    qdisc.major == 1 && matches!(qdisc.kind.as_str(), "tbf" | "htb")
}

/// Limits what leaves by the link, with its undo. Replaces a limit that an earlier attachment left. Fails with code 102
/// if the link has another root qdisc. Warns if the burst is smaller than a packet, because such packets would not
/// pass.
pub(crate) fn put_limit(
    call: &Call,
    host: &mut Netlink,
    link: &Link,
    limit: &Limit<'_>,
) -> Result<(), Error> {
    if limit.bucket.burst() < link.mtu.into() {
        log::warn!(
            "{}: a burst of {} bytes is less than one packet of {}: it won't pass",
            link.name,
            limit.bucket.burst(),
            link.mtu
        );
    }
    let (index, name) = (link.index, link.name.as_str());
    let (first, rest) = match limit.sorting() {
        None => (tbf::add(index, name, &limit.bucket), Vec::new()),
        Some((rest, filters)) => {
            let filters = filters.iter().map(|filter| subnet::add(index, name, filter));
            let classes = htb::classes(index, name, &limit.bucket).into_iter();
            (htb::add(index, name, rest), classes.chain(filters).collect())
        }
    };
    at_root(host, link, first)?;
    let undone = link.name.clone();
    call.undo.push(format!("remove the limit of {undone}"), move || {
        Ok(Netlink::open()?.execute(qdisc::del_root(index, &undone))?)
    });
    Ok(host.execute_all(rest)?)
}

/// Adds the root qdisc by the request `add`. An old limit is replaced ([`is_limit`]), and code 102 means any other
/// qdisc.
fn at_root(host: &mut Netlink, link: &Link, add: Request) -> Result<(), Error> {
    match host.execute_until_answered(&add) {
        Err(err) if err.is(Errno::EEXIST) => {}
        done => return Ok(done?),
    }
    if !host.root_qdisc(link.index)?.is_some_and(|qdisc| is_limit(&qdisc)) {
        return Err(Error::new(Code::CONFLICT, format!("interface {} has a root qdisc already", link.name))
            .details(format!("hint: `tc qdisc show dev {}` tells which", link.name)));
    }
    log::info!("{}: replacing a limit that was left behind", link.name);
    host.execute(qdisc::del_root(link.index, &link.name))?;
    Ok(host.execute(add)?)
}

/// Fails with code 103 and the difference if the limit is not at the root of the link.
pub(crate) fn check(host: &mut Netlink, link: &Link, limit: &Limit<'_>) -> Result<(), Error> {
    let kind = if *limit.subnets == Subnets::All { "tbf" } else { "htb" };
    let Some(root) = host.root_qdisc(link.index)? else {
        return Err(difference(link, &format!("no root qdisc, expected {kind}")));
    };
    if let Some(rest) = root.default_class {
        return check_classes(host, link, limit, rest);
    }
    let Some(now) = root.tbf.filter(|_| kind == "tbf") else {
        return Err(difference(link, &format!("the root qdisc {}, expected {kind}", root.kind)));
    };
    check_bucket(link, now.rate, now.buffer, &limit.bucket)?;
    if now.limit != limit.bucket.limit && limit.bucket.limit != u32::MAX {
        return Err(difference(link, &format!("limit {}, expected {} bytes", now.limit, limit.bucket.limit)));
    }
    Ok(())
}

/// Returns the error that the link has `what` in place of the limit, with code 103.
fn difference(link: &Link, what: &str) -> Error {
    Error::check(format!("interface {} has {what}", link.name))
}

/// Compares the rate, in bytes per second, and the burst, as the kernel's `buffer` of time.
fn check_bucket(link: &Link, rate: u64, buffer: u32, limit: &Tbf) -> Result<(), Error> {
    if rate != limit.rate {
        return Err(difference(link, &format!("rate {rate}, expected {} bytes per second", limit.rate)));
    }
    // In the Go plugin large numbers wrap, while this one uses the largest value. So that value is not compared.
    if buffer != limit.buffer && limit.buffer != u32::MAX {
        let now = Tbf { rate, limit: 0, buffer }.burst();
        return Err(difference(link, &format!("burst {now}, expected {} bytes", limit.burst())));
    }
    Ok(())
}

/// Compares the classes and filters of an `htb`. Newer Go plugins also have classes for limits without lists, and
/// filters on the destination in both directions. Both are accepted.
fn check_classes(host: &mut Netlink, link: &Link, limit: &Limit<'_>, rest: Class) -> Result<(), Error> {
    let (expected, filters) = limit.sorting().unwrap_or((Class::Limited, Vec::new()));
    if rest != expected {
        return Err(difference(link, "the other class for what is in no list"));
    }
    let found = host.subnet_filters(link.index)?;
    for wanted in filters {
        let ends = [wanted.end, End::Destination];
        let is_present = found.iter().any(|filter| {
            filter.subnet == wanted.subnet && filter.class == wanted.class && ends.contains(&filter.end)
        });
        if !is_present {
            return Err(difference(link, &format!("no filter for {}", wanted.subnet)));
        }
    }
    match host.buckets(link.index)?.iter().find(|bucket| bucket.class == Class::Limited) {
        Some(now) => check_bucket(link, now.rate, now.buffer, &limit.bucket),
        None => Err(difference(link, "no class 1:30")),
    }
}
