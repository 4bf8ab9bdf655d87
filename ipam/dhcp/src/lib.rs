//! The CNI IPAM plugin `dhcp`: addresses from a DHCP server of the network that the pod's interface is in.
//!
//! The verbs only ask: a process that outlives them, the keeper, speaks with the servers, from inside the
//! pod's namespace, and prolongs the leases. It is this same program ([`keeper`]); a verb that finds none
//! starts one.
//!
//! | | |
//! |---|---|
//! | `config` | the keys |
//! | `ask`, `talk` | a verb's question to the keeper |
//! | `keeper` | the keeper: its loop, its files, its visitors, its pods |
//! | `client`, `action` | the protocol: a state machine without I/O |
//! | `lease`, `domains` | what a server gives |
//! | `message`, `frame` | DHCP, UDP, IPv4 and ARP as bytes |
//! | `socket` | packet sockets |

mod action;
mod ask;
mod client;
mod config;
mod domains;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod keeper;
mod lease;
mod message;
mod socket;
mod talk;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use cnimble_cni::{Attachment, CniResult, Code, Error};
use cnimble_netlink::link::{self, Change};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::{Call, Plugin};

use ask::ask;
use config::Config;
use keeper::store;
use talk::{Ask, Reply, Wanted, Whose};

/// How long the interface may take to have a carrier. What is sent before is lost, and sent again.
const CARRIER: Duration = Duration::from_secs(2);

/// The plugin.
pub static PLUGIN: &dyn Plugin = &Dhcp;

struct Dhcp;

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        "dhcp"
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config, &call.raw_args).map(drop)
    }

    fn leaves_by_the_interface(&self) -> bool {
        true
    }

    fn program(&self, args: &[OsString]) -> Option<i32> {
        keeper::program(args)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let Config { socket, provide, request, priority } = Config::read(&call.config, &call.raw_args)?;
        let netns = call.open_netns()?;
        call.step("bring up the interface", || bring_up(&netns, &call.ifname))?;
        let whose = Whose::of(&call.owner());
        let (path, owner) = (socket.clone(), whose.clone());
        call.undo.push("give the DHCP lease back", move || release(&path, owner));
        // The keeper has another working directory.
        let netns = std::path::absolute(&call.netns).unwrap_or_else(|_| call.netns.clone().into());
        let netns = netns.to_string_lossy().into_owned();
        let wanted = Wanted { whose, netns, provide, request, priority };
        match call.step("get a DHCP lease", || ask(&socket, &Ask::Add(wanted)))? {
            Reply::Lease(lease) => Ok(lease.result(priority)),
            _ => Err(Error::new(Code::INTERNAL, "the keeper of DHCP leases has answered without a lease")),
        }
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        release(&config::socket_of(&call.config)?, Whose::of(&call.owner()))
    }

    /// The lease is kept, and is the one that the result tells. A keeper that isn't there is started.
    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let Config { socket, .. } = Config::read(&call.config, &call.raw_args)?;
        let ifname = &call.ifname;
        match ask(&socket, &Ask::Check(Whose::of(&call.owner())))? {
            Reply::Lease(lease) if prev.ips.iter().any(|ip| ip.address == lease.net()) => Ok(()),
            Reply::Lease(lease) => {
                Err(Error::check(format!("dhcp: prevResult lacks the address {} of {ifname}", lease.net()))
                    .details("its server has given another one since ADD"))
            }
            _ => Err(Error::check(format!("dhcp: there is no lease for {ifname}"))),
        }
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let socket = config::socket_of(&call.config)?;
        if !store::has_any(&socket).map_err(|err| unreadable(&socket, &err))? {
            return Ok(());
        }
        let valid = valid.iter().map(|one| (one.container_id.clone(), one.ifname.clone())).collect();
        ask(&socket, &Ask::Gc { network: call.config.name.clone(), valid }).map(drop)
    }

    /// The keeper answers.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let Config { socket, .. } = Config::read(&call.config, &call.raw_args)?;
        ask(&socket, &Ask::Status).map(drop).map_err(|err| Error { code: Code::NOT_AVAILABLE, ..err })
    }
}

/// What has no file was never answered with a lease, and the keeper knows by itself.
fn release(socket: &Path, whose: Whose) -> Result<(), Error> {
    let file = store::file(socket, &whose.owner().tag());
    match std::fs::symlink_metadata(&file) {
        Ok(_) => ask(socket, &Ask::Del(whose)).map(drop),
        Err(err) if cnimble_files::is_absent(&err) => Ok(()),
        Err(err) => Err(unreadable(socket, &err)),
    }
}

fn unreadable(socket: &Path, err: &std::io::Error) -> Error {
    Error::io("reading the leases in", &store::directory(socket), err)
}

/// Brings the interface up, and waits until it can send.
fn bring_up(netns: &NetNs, ifname: &str) -> Result<(), Error> {
    let mut inside = Netlink::open_in(netns)?;
    let link = inside.find_link(ifname)?.ok_or_else(|| {
        Error::new(Code::UNKNOWN_CONTAINER, format!("the pod has no interface {ifname}"))
            .details("an IPAM plugin is called by the plugin that makes it")
    })?;
    if !link.up {
        inside.execute(link::set(link.index, ifname, &Change { up: Some(true), ..Change::default() }))?;
    }
    match inside.wait_oper_up(link.index, CARRIER) {
        Err(err) if !err.is(Errno::ETIMEDOUT) => Err(err.into()),
        _ => Ok(()),
    }
}
