//! The CNI IPAM plugin `dhcp`: addresses from a DHCP server in the network of the pod's interface.
//!
//! Verbs only send requests (`ask`, `ipc`) to the lease daemon. It outlives them, speaks with servers inside the pod's
//! namespace, and renews leases. It is this same program (`daemon`), and a verb starts one if none runs. `client` is a
//! state machine without I/O for both protocols. `v4` and `v6` have the rest of each.

mod ask;
mod client;
mod closing;
mod config;
mod daemon;
mod domains;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod held;
mod ipc;
mod tally;
mod v4;
mod v6;

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use cnimble_cni::{Attachment, CniResult, Code, Error};
use cnimble_netlink::link::{self, Change};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::interface::pod;
use cnimble_plugin::{Call, Caps, Plugin, Role, signal};

use ask::{ask_all, ask_daemon};
use config::Config;
use daemon::store;
use ipc::{Family, LeaseOwner, LeaseRequest, Reply, Request};

/// The longest wait for a carrier. Without one ADD goes on, because lost packets are sent again.
const CARRIER: Duration = Duration::from_secs(2);
/// The longest wait for the interface's link-local address, which takes duplicate address detection.
const LINK_LOCAL: Duration = Duration::from_secs(5);
/// The pause between two checks for that address.
const PAUSE: Duration = Duration::from_millis(5);

pub static PLUGIN: &dyn Plugin = &Dhcp;

struct Dhcp;

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        "dhcp"
    }

    fn role(&self) -> Role {
        Role::Helper
    }

    /// CAP_NET_ADMIN is needed to bring an interface up, and for DHCPv6.
    fn needs(&self) -> Caps {
        Caps::NET_RAW.and(Caps::SYS_ADMIN).and(Caps::NET_ADMIN)
    }

    /// The plugin may start the lease daemon.
    fn starts_programs(&self, _call: &Call) -> bool {
        true
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config, &call.raw_args).map(drop)
    }

    fn needs_interface_for_del(&self) -> bool {
        true
    }

    fn program(&self, args: &[OsString]) -> Option<i32> {
        daemon::program(args)
    }

    /// Brings the interface up and asks for a lease of each family. The lease daemon answers when it has one, or when
    /// the time is over. If one family fails, the ADD fails and all leases are released.
    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let Config { socket, provide, request, priority, families, timeout } =
            Config::read(&call.config, &call.raw_args)?;
        let netns = call.open_netns()?;
        call.step("bring up the interface", || bring_up(call, &netns, &families))?;
        let owner = LeaseOwner::from_owner(&call.owner());
        let (path, undone) = (socket.clone(), owner.clone());
        call.undo.push("give the DHCP lease back", move || release(&path, undone));
        // The lease daemon has another working directory, so the path has to be absolute.
        let path = std::path::absolute(&call.netns).unwrap_or_else(|_| call.netns.clone().into());
        let path = path.to_string_lossy().into_owned();
        let family = Family::Ipv4;
        let four =
            LeaseRequest { owner, family, netns: path, sent: None, provide, request, priority, timeout };
        let requests: Vec<Request> = families.into_iter().map(|family| add_request(&four, family)).collect();
        let replies = call.step("get a DHCP lease", || {
            let replies = ask_all(&socket, &requests, &netns);
            if replies.is_err() && requests.len() > 1 {
                // The lease of the other family may still arrive. The undo would not find its file yet.
                let _ = ask_daemon(&socket, &Request::Del(four.owner.clone()));
            }
            replies
        })?;
        let mut leases = Vec::with_capacity(replies.len());
        for reply in replies {
            let Reply::Lease(lease) = reply else {
                let msg =
                    format!("the lease daemon of DHCP has answered without a lease for {}", call.ifname);
                return Err(Error::new(Code::INTERNAL, msg));
            };
            leases.push(lease);
        }
        Ok(held::result(&leases, priority))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        release(&config::socket_of(&call.config)?, LeaseOwner::from_owner(&call.owner()))
    }

    /// Checks that there is a lease of each family and that prevResult has its address. Starts a lease daemon if none
    /// runs.
    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let Config { socket, families, .. } = Config::read(&call.config, &call.raw_args)?;
        families.into_iter().try_for_each(|family| check(call, &socket, family, prev))
    }

    /// Has the lease daemon release the leases of attachments that are not `valid`. Starts no daemon if there are no
    /// leases.
    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let socket = config::socket_of(&call.config)?;
        if !store::has_any(&socket).map_err(|err| unreadable(&socket, &err))? {
            return Ok(());
        }
        let valid = valid.iter().map(|one| (one.container_id.clone(), one.ifname.clone())).collect();
        ask_daemon(&socket, &Request::Gc { network: call.config.name.clone(), valid }).map(drop)
    }

    /// Checks that a lease daemon answers, or could be started.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let Config { socket, .. } = Config::read(&call.config, &call.raw_args)?;
        ask::status(&socket).map_err(|err| err.with_code(Code::NOT_AVAILABLE))
    }
}

/// Returns the request for a family. The options and the metric of a configuration are for IPv4 only.
fn add_request(four: &LeaseRequest, family: Family) -> Request {
    match family {
        Family::Ipv4 => Request::Add(four.clone()),
        Family::Ipv6 => {
            let (owner, netns) = (four.owner.clone(), four.netns.clone());
            let (provide, request) = (Vec::new(), Vec::new());
            Request::Add6(LeaseRequest {
                family,
                owner,
                netns,
                provide,
                request,
                priority: None,
                ..four.clone()
            })
        }
    }
}

/// Fails with code 103 if there is no lease of this family, or if prevResult lacks its address.
fn check(call: &Call, socket: &Path, family: Family, prev: &CniResult) -> Result<(), Error> {
    let (owner, ifname) = (LeaseOwner::from_owner(&call.owner()), &call.ifname);
    let request = match family {
        Family::Ipv4 => Request::Check(owner),
        Family::Ipv6 => Request::Check6(owner),
    };
    match ask_daemon(socket, &request)? {
        Reply::Lease(lease) if prev.ips.iter().any(|ip| ip.address == lease.net()) => Ok(()),
        Reply::Lease(lease) => {
            Err(Error::check(format!("dhcp: prevResult lacks the address {} of {ifname}", lease.net()))
                .details("its server has given another one since ADD; hint: create the pod again"))
        }
        _ => Err(ipc::no_lease(ifname)),
    }
}

/// Has the lease daemon release the leases of both families. Starts no daemon if neither has a file. A lease without a
/// file was never returned to a caller, so the daemon can drop it.
fn release(socket: &Path, owner: LeaseOwner) -> Result<(), Error> {
    for family in Family::ALL {
        match std::fs::symlink_metadata(store::file(socket, &owner.key(family))) {
            // One request is for both families.
            Ok(_) => return ask_daemon(socket, &Request::Del(owner)).map(drop),
            Err(err) if cnimble_os::files::is_absent(&err) => {}
            Err(err) => return Err(unreadable(socket, &err)),
        }
    }
    Ok(())
}

/// Returns the error for leases whose files cannot be looked up, with code 5.
fn unreadable(socket: &Path, err: &std::io::Error) -> Error {
    Error::io("reading the leases in", &store::directory(socket), err)
}

/// Sets the interface up and waits until it can send. A missing carrier is no failure. For IPv6, also waits for the
/// link-local address. Fails with code 3 without the interface.
fn bring_up(call: &Call, netns: &NetNs, families: &[Family]) -> Result<(), Error> {
    let (ifname, six) = (&call.ifname, families.contains(&Family::Ipv6));
    let mut inside = Netlink::open_in(netns)?;
    let link = inside.find_link(ifname)?.ok_or_else(|| {
        Error::new(Code::UNKNOWN_CONTAINER, format!("the pod has no interface {ifname}"))
            .details("hint: set dhcp as ipam.type of the plugin that makes the interface")
    })?;
    if six {
        netns.enter(|| pod::before_dhcp(call, ifname))??;
    }
    if !link.up {
        inside.execute(link::set(link.index, ifname, &Change { up: Some(true), ..Change::default() }))?;
    }
    match inside.wait_oper_up(link.index, CARRIER) {
        Err(err) if !err.is(Errno::ETIMEDOUT) => return Err(err.into()),
        _ => {}
    }
    if six { wait_link_local(&mut inside, link.index, ifname) } else { Ok(()) }
}

/// Waits for a link-local address, because DHCPv6 needs an address to send from. Fails with code 11 after
/// [`LINK_LOCAL`].
fn wait_link_local(inside: &mut Netlink, index: u32, ifname: &str) -> Result<(), Error> {
    let end = Instant::now() + LINK_LOCAL;
    loop {
        let remaining = end.saturating_duration_since(Instant::now());
        match inside.wait_addrs_settled(index, remaining) {
            Err(err) if !err.is(Errno::ETIMEDOUT) => return Err(err.into()),
            _ => {}
        }
        if v6::socket::link_local(inside, index)?.is_some() {
            return Ok(());
        }
        if remaining.is_zero() {
            let msg = format!("{ifname} has no link-local IPv6 address");
            return Err(Error::new(Code::TRY_AGAIN_LATER, msg).details(
                "DHCPv6 sends from it; hint: look at the carrier and net.ipv6.conf.*.disable_ipv6",
            ));
        }
        signal::check()?;
        std::thread::sleep(PAUSE);
    }
}
