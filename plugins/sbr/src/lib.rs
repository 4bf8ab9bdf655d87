//! The CNI plugin `sbr` (source based routing), part of a chain. Packets from an address of the pod's interface leave
//! by that interface, independently of other interfaces' default routes.
//!
//! ADD takes these steps in order, each with its undo:
//! 1. Add a rule for each address, to a table that has neither rules nor routes (`tables`).
//! 2. Add the interface's routes, and a default route through the gateway, to these tables (`routes`).
//! 3. Remove the routes from the table main, except those that are hints.
//!
//! With the key `table` there is only the first step. The rules then lead to that table, whose routes are the
//! administrator's.

mod config;
mod routes;
mod tables;

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{Attachment, CniResult, Code, Error, IpConfig};
use cnimble_netlink::link::Link;
use cnimble_netlink::route::NewRoute;
use cnimble_netlink::rule::Rule;
use cnimble_netlink::{IfPresent, Netlink, Request, route, rule};
use cnimble_plugin::interface::pinned::in_pinned;
use cnimble_plugin::interface::{check, is_own, pod, remove, unusable, usable_netlink};
use cnimble_plugin::{Call, Plugin, Role};

use config::Config;
use tables::{PROTOCOL, Tables};

/// The table main of rtnetlink(7).
const MAIN: u32 = 254;

pub static PLUGIN: &dyn Plugin = &Sbr;

struct Sbr;

impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        "sbr"
    }

    fn role(&self) -> Role {
        Role::Chained
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let result = call.previous()?.clone();
        let ips: Vec<&IpConfig> = config::addresses(&result, &call.ifname).collect();
        if ips.is_empty() {
            return Err(Error::config(format!("No IP addresses supplied on interface: {}", call.ifname))
                .details("prevResult has none; hint: put a plugin with ipam in front of sbr"));
        }
        let mut inside = Netlink::open_in(&call.open_netns()?)?;
        let link = inside.find_link(&call.ifname)?.ok_or_else(|| {
            let what = format!("interface {} is missing in {}", call.ifname, call.netns);
            Error::new(Code::KERNEL, what)
        })?;
        if let Some(table) = config.table {
            // The kernel would accept a second rule of the same content.
            let present = inside.rules()?;
            let mut rules = Vec::new();
            for from in ips.iter().map(|ip| ip.address.ip()) {
                if !present.contains(&Rule { from: Some(from), table, protocol: PROTOCOL }) {
                    rules.push((from, table));
                }
            }
            call.step(&format!("add routing rules for {}", call.ifname), || {
                add_rules(call, &mut inside, &rules)
            })?;
            return Ok(result);
        }
        let main = inside.routes(link.index, None)?;
        let lock = call.step("choose routing tables", || tables::lock(call))?;
        let given: Vec<u32> = {
            let tables = Tables::read(&mut inside)?;
            tables.free().take(ips.len()).collect()
        };
        let rules: Vec<_> = ips.iter().map(|ip| ip.address.ip()).zip(given).collect();
        call.step(&format!("add routing rules for {}", call.ifname), || {
            add_rules(call, &mut inside, &rules)
        })?;
        // The tables are in use now, so later ADDs need not wait. The end of the process would release the lock as
        // well.
        drop(lock.unlock());
        call.step(&format!("add the routes of {} to its tables", call.ifname), || {
            let mut wanted = Vec::new();
            for (ip, (_, table)) in ips.iter().zip(&rules) {
                let routes = routes::select_for(ip, &ips, &main, &link, config.gateway_for(ip));
                wanted.extend(routes.into_iter().map(|route| NewRoute { table: Some(*table), ..route }));
            }
            add_routes(call, &mut inside, &link, &wanted)
        })?;
        let what = format!("remove the routes of {} from the table main", call.ifname);
        let plan = Clearing::plan(&config, &ips, main);
        call.step(&what, || plan.run(call, &mut inside, &link))?;
        Ok(result)
    }

    /// Removes the rules of the attachment's addresses, and the routes in the tables that the plugin chose. Does
    /// nothing if the namespace is gone. Routes that ADD moved out of the table main are not put back.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let table = config::table(&call.config);
        let Some(netns) = call.find_netns()? else { return Ok(()) };
        let mut inside = Netlink::open_in(&netns)?;
        let link = inside.find_link(&call.ifname)?;
        // If the interface is another pod's, only rules from the attachment's own addresses are removed.
        let is_another = match &link {
            Some(link) => !is_own(call, &mut inside, link, &netns)?,
            None => false,
        };
        let mut addrs: Vec<IpAddr> = match &call.config.prev_result {
            Some(prev) => config::addresses(prev, &call.ifname).map(|ip| ip.address.ip()).collect(),
            None => Vec::new(),
        };
        if let Some(link) = link.as_ref().filter(|_| !is_another) {
            addrs.extend(if_still(inside.addrs(link.index))?.iter().map(|addr| addr.net.ip()));
        }
        let tables = Tables::read(&mut inside)?;
        take_down(&mut inside, &tables, link.as_ref(), table, |rule| {
            let may_be = !is_another || rule.from.is_some_and(|from| addrs.contains(&from));
            may_be && tables.is_ours(rule, link.as_ref(), &addrs, table)
        })
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let mut inside = Netlink::open_in(&call.open_netns()?)?;
        let link = check::find_link(&mut inside, &call.ifname, &format!("in {}", call.netns))?;
        let rules = inside.rules()?;
        let routes = inside.routes(link.index, Some(route::ANY_TABLE))?;
        for ip in config::addresses(prev, &call.ifname) {
            check_address(&config, prev, ip, &rules, &routes)?;
        }
        Ok(())
    }

    /// Removes the rules of this plugin whose interfaces are gone, in all pinned namespaces.
    fn gc(&self, call: &Call, _valid: &[Attachment]) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        in_pinned(|inside| {
            let tables = Tables::read(inside)?;
            if !tables.rules.iter().any(|rule| rule.protocol == PROTOCOL) {
                return Ok(());
            }
            // The addresses are listed after the rules, because an address exists before its rule.
            let present = tables::all_addresses(inside)?;
            take_down(inside, &tables, None, config.table, |rule| {
                tables.is_stale(rule, &present, config.table)
            })
        })
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config)?;
        usable_netlink()?.rules().map(drop).map_err(|err| unusable("rules of routing", &err))
    }
}

/// Adds a rule for each address and table, each with its undo.
fn add_rules(call: &Call, inside: &mut Netlink, rules: &[(IpAddr, u32)]) -> Result<(), Error> {
    for (from, table) in rules.iter().copied() {
        // The undo is pushed first, because a lost answer does not tell whether the change was made.
        let home = call.open_netns()?;
        call.undo.push(format!("delete the rule from {from}"), move || {
            Ok(Netlink::open_in(&home)?.execute(rule::del(from, table, PROTOCOL)).if_present().map(drop)?)
        });
        inside.execute(rule::add(from, table, PROTOCOL))?;
    }
    Ok(())
}

/// Adds the `wanted` routes beside existing ones, with their undo.
fn add_routes(call: &Call, inside: &mut Netlink, link: &Link, wanted: &[NewRoute]) -> Result<(), Error> {
    let (home, name, made) = (call.open_netns()?, link.name.clone(), wanted.to_vec());
    call.undo.push("delete the routes of the interface's tables", move || {
        delete(&mut Netlink::open_in(&home)?, made.iter().map(|route| route::del(route, &name)).collect())
    });
    Ok(inside.execute_all(wanted.iter().map(|wanted| route::prepend(wanted, &link.name)).collect())?)
}

/// The changes of step 3 in the table main.
struct Clearing {
    /// The addresses that get a route to their network in the table main (`addSourceHints`).
    hinted: Vec<IpConfig>,
    /// The routes that are removed.
    unwanted: Vec<NewRoute>,
    /// The networks of the addresses. The undo adds routes to them as the kernel does, so that they are removed with
    /// the address.
    networks: Vec<IpNetwork>,
}

impl Clearing {
    /// Decides what is changed in the table main, whose routes are `main`. Routes to link-local addresses stay. With
    /// `addSourceHints`, on-link routes of IPv4 stay as well, such as the kernel's to the networks of the addresses.
    fn plan(config: &Config, ips: &[&IpConfig], main: Vec<NewRoute>) -> Self {
        let hinted = ips
            .iter()
            .filter(|ip| config.hints(ip) && !main.iter().any(|route| routes::is_hint(route, ip)))
            .map(|ip| (*ip).clone())
            .collect();
        let networks = ips.iter().map(|ip| cnimble_cni::cidr::network_of(ip.address)).collect();
        let mut unwanted = main;
        unwanted.retain(|route| {
            // 253 is RT_SCOPE_LINK (rtnetlink(7)). Routes of IPv6 have no scope.
            let is_kept = routes::stays(route) || config.add_source_hints && route.scope == Some(253);
            !is_kept
        });
        Clearing { hinted, unwanted, networks }
    }

    /// Adds the missing hints and then removes the unwanted routes. The undo, which is pushed first, puts the routes
    /// back.
    fn run(self, call: &Call, inside: &mut Netlink, link: &Link) -> Result<(), Error> {
        let Clearing { hinted, unwanted, networks } = self;
        let hints = hinted.iter().map(|ip| route::prepend(&routes::hint(ip, link), &link.name)).collect();
        let (home, name, index) = (call.open_netns()?, link.name.clone(), link.index);
        let lost = unwanted.clone();
        call.undo.push("put the routes into the table main again", move || {
            let mut inside = Netlink::open_in(&home)?;
            let present = inside.routes(index, None)?;
            // They are deleted with the metric that the kernel lists. Without it, IPv6 deletes the first route to the
            // destination.
            let extra = present.iter().filter(|route| hinted.iter().any(|ip| routes::is_hint(route, ip)));
            delete(&mut inside, extra.map(|route| route::del(route, &name)).collect())?;
            let mut lost: Vec<&NewRoute> = lost.iter().filter(|route| !present.contains(route)).collect();
            lost.sort_by_key(|route| route.via.is_some());
            let again = lost.iter().map(|lost| match lost.via {
                None if networks.contains(&lost.dst) => route::restore(lost, &name),
                _ => route::prepend(lost, &name),
            });
            Ok(inside.execute_all(again.collect())?)
        });
        inside.execute_all(hints)?;
        delete(inside, unwanted.iter().map(|route| route::del(route, &link.name)).collect())
    }
}

/// Deletes the rules that are `ours`. Also deletes the routes of `link` in the tables of these rules, if a table has no
/// other link's routes. The `user`'s table, from the configuration, keeps its routes.
fn take_down(
    inside: &mut Netlink,
    tables: &Tables,
    link: Option<&Link>,
    user: Option<u32>,
    ours: impl Fn(&Rule) -> bool,
) -> Result<(), Error> {
    let rules: Vec<&Rule> = tables.rules.iter().filter(|rule| ours(rule)).collect();
    let mut requests = Vec::new();
    if let Some(link) = link {
        for route in &if_still(inside.routes(link.index, Some(route::ANY_TABLE)))? {
            let Some(table) = route.table.filter(|table| user != Some(*table)) else { continue };
            if tables.is_of(table, link) && rules.iter().any(|rule| rule.table == table) {
                requests.push(route::del(route, &link.name));
            }
        }
    }
    requests.extend(rules.iter().filter_map(|rule| Some(rule::del(rule.from?, rule.table, rule.protocol))));
    delete(inside, requests)
}

/// Makes a missing interface an empty list, because a concurrent DEL may have removed it.
fn if_still<T>(found: cnimble_netlink::Result<Vec<T>>) -> cnimble_netlink::Result<Vec<T>> {
    Ok(found.if_present()?.unwrap_or_default())
}

/// Sends the deletions. A missing object counts as deleted, and all others are tried before an error is returned.
fn delete(inside: &mut Netlink, requests: Vec<Request>) -> Result<(), Error> {
    match inside.execute_all(requests.clone()) {
        // The kernel has tried all requests, but only the first error is known. So each is sent again.
        Err(err) if err.is_missing() => remove::all(
            requests.into_iter().map(|request| Ok(inside.execute(request).if_present().map(drop)?)),
        ),
        outcome => Ok(outcome?),
    }
}

/// Fails with code 103 if the rule of an address is missing. Without a configured table, also fails if its table lacks
/// the default route or a route of the result, or if a hint is missing. `routes` are the interface's, of all tables.
fn check_address(
    config: &Config,
    prev: &CniResult,
    ip: &IpConfig,
    rules: &[Rule],
    routes: &[NewRoute],
) -> Result<(), Error> {
    let from = ip.address.ip();
    let mut of_address = rules.iter().filter(|rule| rule.from == Some(from));
    let rule = match config.table {
        Some(table) => of_address.find(|rule| rule.table == table),
        None => of_address.find(|rule| rule.table >= tables::FIRST),
    };
    let Some(rule) = rule else {
        let where_to = config.table.map(|table| format!(" to table {table}")).unwrap_or_default();
        return Err(Error::check(format!("the rule from {from}{where_to} is missing")));
    };
    if config.table.is_some() {
        return Ok(());
    }
    let present = routes.iter().filter(|route| route.table == Some(rule.table));
    let mut defaults = present.clone().filter(|route| is_default(route, ip));
    if let Some(gateway) = config.gateway_for(ip) {
        if !defaults.any(|route| route.via == Some(gateway)) {
            return Err(missing(&format!("the default route via {gateway}"), rule.table));
        }
    } else if ip.gateway.is_some_and(|gateway| !gateway.is_unspecified()) && defaults.next().is_none() {
        return Err(missing(&format!("the default route for {from}"), rule.table));
    }
    for wanted in pod::routes(0, prev) {
        let own = wanted.table.is_none()
            && wanted.dst.is_ipv4() == ip.address.is_ipv4()
            && wanted.dst.prefix() > 0
            && wanted.via.is_some_and(|via| ip.address.contains(via));
        if own && !present.clone().any(|route| route.dst == wanted.dst && route.via == wanted.via) {
            return Err(missing(&format!("route {}", wanted.dst), rule.table));
        }
    }
    if config.hints(ip) && !routes.iter().any(|route| route.table == Some(MAIN) && routes::is_hint(route, ip))
    {
        return Err(Error::check(format!("the route to the network of {from} is missing in table main")));
    }
    Ok(())
}

/// Returns true if the route is a default route of the address's family.
fn is_default(route: &NewRoute, ip: &IpConfig) -> bool {
    route.dst.prefix() == 0 && route.dst.is_ipv4() == ip.address.is_ipv4()
}

/// Returns the error for a route that the table lacks, with code 103.
fn missing(what: &str, table: u32) -> Error {
    Error::check(format!("{what} is missing in table {table}"))
}
