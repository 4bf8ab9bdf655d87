//! The CNI plugin `bandwidth`, a part of a chain: limits what a pod receives and sends, each
//! by a token bucket.
//!
//! What the pod receives leaves the host by the host's end of its veth pair, where the kernel
//! can queue it. What it sends *arrives* there, and the kernel has no queue for that; so it is
//! redirected to an ifb ([`ifb`]), which has.
//!
//! ADD, each step with its undo:
//!
//! 1. a bucket on the host's end, for ingress;
//! 2. the ifb with a bucket, and then the redirection to it, for egress.
//!
//! The result is the one that came in, with the ifb. Where nothing is limited, which is most
//! pods, nothing is looked at and the result goes through.
//!
//! DEL removes the ifb, by its name; everything else goes with the veth pair.

mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod ifb;

use nix::errno::Errno;

use cnimble::net::link::Link;
use cnimble::net::qdisc::Tbf;
use cnimble::net::{Netlink, qdisc};
use cnimble::plugin::{Call, Plugin};
use cnimble::spec::{CniResult, Code, Error, Interface, Version};

use config::Config;

/// The plugin.
#[derive(Debug)]
pub struct Bandwidth;

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    /// Results below 0.3.0 have no interfaces.
    fn versions(&self) -> &'static [Version] {
        &[Version::V0_3_0, Version::V0_3_1, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0]
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let mut result = previous(call)?;
        if config.is_empty() {
            return Ok(result);
        }
        let mut host = Netlink::open()?;
        let veth = host_end(call, &mut host, &result)?;
        if let Some(limit) = config.ingress {
            call.step("limit ingress", || ingress(call, &mut host, &veth, &limit))?;
        }
        if let Some(limit) = config.egress {
            let ifb = ifb::add(call, &mut host, &veth, &limit)?;
            let mac = ifb.mac.map(|mac| mac.to_string()).unwrap_or_default();
            result.interfaces.push(Interface { name: ifb.name, mac, ..Interface::default() });
        }
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        // Whatever the configuration says by now.
        ifb::remove(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let prev = previous(call)?;
        if config.is_empty() {
            return Ok(());
        }
        let mut host = Netlink::open()?;
        let veth =
            host_end(call, &mut host, &prev).map_err(|err| Error { code: Code::CHECK_FAILED, ..err })?;
        if let Some(limit) = config.ingress {
            check_bucket(&mut host, &veth, &limit)?;
        }
        match config.egress {
            Some(limit) => ifb::check(call, &mut host, &veth, &limit),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        let Some(valid) = &call.config.valid_attachments else { return Ok(()) };
        ifb::gc(&call.config.name, valid)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config)?;
        let mut host = Netlink::open()?;
        for (known, module) in [(host.knows_tbf()?, "sch_tbf"), (host.knows_ifb()?, "ifb")] {
            if !known {
                return Err(Error::new(Code::NOT_AVAILABLE, "this kernel can't limit bandwidth")
                    .details(format!("it has no module {module}")));
            }
        }
        Ok(())
    }
}

fn previous(call: &Call) -> Result<CniResult, Error> {
    call.config.prev_result.clone().ok_or_else(|| {
        Error::config("Required prevResult missing")
            .details("bandwidth works on another plugin's interface: it can't be the first of a chain")
    })
}

/// The host's end of the veth pair whose other end is CNI_IFNAME. The kernel tells its index,
/// and prevResult must know it, as the index may be one in any namespace.
fn host_end(call: &Call, host: &mut Netlink, prev: &CniResult) -> Result<Link, Error> {
    let none = |why: &str| {
        Error::config(format!("interface {} in {} has no peer to limit", call.ifname, call.netns))
            .details(why)
    };
    let netns = call.open_netns()?;
    let Some(pod) = Netlink::open_in(&netns)?.find_link(&call.ifname)? else {
        return Err(none("the interface is missing"));
    };
    let Some(index) = pod.peer.filter(|_| pod.kind == "veth") else {
        return Err(none("it is not a veth"));
    };
    let veth = match host.link_at(index) {
        Err(err) if err.is(Errno::ENODEV) => return Err(none("the other end is not on the host")),
        link => link?,
    };
    let told = prev.interfaces.iter().any(|told| told.sandbox.is_empty() && told.name == veth.name);
    if !told || veth.kind != "veth" || veth.peer != Some(pod.index) {
        return Err(none("prevResult has no interface on the host that is its other end"));
    }
    Ok(veth)
}

fn ingress(call: &Call, host: &mut Netlink, veth: &Link, limit: &Tbf) -> Result<(), Error> {
    bucket(host, veth, limit)?;
    let (index, name) = (veth.index, veth.name.clone());
    call.undo.push(format!("remove the limit of {name}"), move || {
        Ok(Netlink::open()?.execute(qdisc::del_root(index, &name))?)
    });
    Ok(())
}

/// Puts a bucket at the root of a link.
fn bucket(host: &mut Netlink, link: &Link, limit: &Tbf) -> Result<(), Error> {
    if limit.burst() < link.mtu.into() {
        log::warn!(
            "{}: a burst of {} bytes is less than one packet of {}: it won't pass",
            link.name,
            limit.burst(),
            link.mtu
        );
    }
    match host.execute(qdisc::add_tbf(link.index, &link.name, limit)) {
        Err(err) if err.is(Errno::EEXIST) => {
            Err(Error::new(Code::CONFLICT, format!("interface {} has a root qdisc already", link.name)))
        }
        done => Ok(done?),
    }
}

fn check_bucket(host: &mut Netlink, link: &Link, limit: &Tbf) -> Result<(), Error> {
    let wrong = |what: String| Error::check(format!("interface {} has {what}", link.name));
    let Some(qdisc) = host.root_qdisc(link.index)? else {
        return Err(wrong("no root qdisc, expected tbf".into()));
    };
    let Some(now) = qdisc.tbf else {
        return Err(wrong(format!("the root qdisc {}, expected tbf", qdisc.kind)));
    };
    if now.rate != limit.rate {
        return Err(wrong(format!("rate {}, expected {} bytes per second", now.rate, limit.rate)));
    }
    // The Go plugin lets large numbers wrap; ours are the largest there are.
    if now.buffer != limit.buffer && limit.buffer != u32::MAX {
        return Err(wrong(format!("burst {}, expected {} bytes", now.burst(), limit.burst())));
    }
    if now.limit != limit.limit && limit.limit != u32::MAX {
        return Err(wrong(format!("limit {}, expected {} bytes", now.limit, limit.limit)));
    }
    Ok(())
}
