//! The CNI plugin `bandwidth`, part of a chain: limits a pod's received and sent traffic, each by a token bucket
//! (`root`).
//!
//! Packets to the pod leave the host by the host's end of its veth pair, where the kernel can queue them. Packets from
//! the pod *arrive* there without a queue, so they are redirected to an ifb (`ifb`).
//!
//! ADD replaces a limit that it finds on the host's end, because the Go plugin's DEL leaves one there. DEL finds the
//! ifb by its name. It removes the limit of the host's end if prevResult lists that link and the link proves its owner.

mod config;
mod ifb;
mod root;
mod veth;

use cnimble_cni::mtu::burst_problem;
use cnimble_cni::{Attachment, CniResult, Code, Error, Interface, Version};
use cnimble_netlink::Netlink;
use cnimble_netlink::kind::Kind;
use cnimble_netlink::tc::subnet::End;
use cnimble_netlink::tc::tbf::Tbf;
use cnimble_plugin::{Call, Place, Plugin, Role};

use config::{Config, Subnets};
use root::Limit;

pub static PLUGIN: &dyn Plugin = &Bandwidth;

struct Bandwidth;

impl Config {
    /// Returns the limit of what the pod receives. The subnets select the source.
    fn ingress(&self) -> Option<Limit<'_>> {
        self.ingress.map(|bucket| self.limit(bucket, End::Source))
    }

    /// Returns the limit of what the pod sends. The subnets select the destination.
    fn egress(&self) -> Option<Limit<'_>> {
        self.egress.map(|bucket| self.limit(bucket, End::Destination))
    }

    fn limit(&self, bucket: Tbf, end: End) -> Limit<'_> {
        Limit { bucket, subnets: &self.subnets, end }
    }
}

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn role(&self) -> Role {
        Role::Chained
    }

    /// Results of versions before 0.3.0 have no interfaces, so they cannot name the host's end.
    fn versions(&self) -> &'static [Version] {
        &[Version::V0_3_0, Version::V0_3_1, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0]
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let mut result = call.previous()?.clone();
        if config.is_empty() {
            return Ok(result);
        }
        let mut host = Netlink::open()?;
        let veth = veth::host_end(call, &mut host, &result)?;
        for (key, bucket) in [("ingressBurst", config.ingress), ("egressBurst", config.egress)] {
            let problem = bucket.and_then(|bucket| burst_problem(bucket.rate, bucket.burst(), veth.mtu));
            problem.iter().for_each(|problem| log::warn!("{key}: {problem}"));
        }
        if let Some(limit) = config.egress() {
            let ifb = ifb::add(call, &mut host, &veth, &limit)?;
            let mac = ifb.mac.map(|mac| mac.to_string()).unwrap_or_default();
            result.interfaces.push(Interface::new(ifb.name, mac, ""));
        }
        if let Some(limit) = config.ingress() {
            let what = format!("limit what {} receives", call.ifname);
            call.step(&what, || root::put_limit(call, &mut host, &veth, &limit))?;
        }
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        // The ifb is removed with any configuration. The limit of the host's end is removed if there is an ifb, or if
        // the configuration is valid and limits what the pod receives.
        let limits_ingress = Config::read(&call.config).is_ok_and(|config| config.ingress.is_some());
        let mut host = Netlink::open()?;
        let ifb = ifb::find_ifb(call, &mut host)?;
        let mut outcome = Ok(());
        if ifb.is_some() || limits_ingress {
            outcome = veth::clear(call, &mut host, ifb.as_ref());
        }
        let removed = ifb.map_or(Ok(()), |ifb| ifb::remove(&mut host, &ifb));
        outcome.and(removed)
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        if config.is_empty() {
            return Ok(());
        }
        let mut host = Netlink::open()?;
        let veth = veth::host_end(call, &mut host, prev).map_err(|err| match err.code {
            // The pod lacks a peer to limit. By any other code the peer was not found out.
            Code::INVALID_CONFIG => err.with_code(Code::CHECK_FAILED),
            _ => err,
        })?;
        if let Some(limit) = config.ingress() {
            call.wants(
                Place::Host,
                &mut host,
                |host| root::check(host, &veth, &limit),
                |host| root::put_limit(call, host, &veth, &limit),
            )?;
        }
        if let Some(limit) = config.egress() {
            call.wants(
                Place::Host,
                &mut host,
                |host| ifb::check(call, host, &veth, &limit),
                |host| ifb::put_back(call, host, &veth, &limit),
            )?;
        }
        Ok(())
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        ifb::gc(&call.config.name, valid)
    }

    /// Fails with code 50 if the kernel lacks a qdisc or the kind of link that the limits need.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let mut host = Netlink::open()?;
        let sorts = config.subnets == Subnets::All || host.knows_qdisc("htb")?;
        for (known, module) in
            [(host.knows_qdisc("tbf")?, "sch_tbf"), (host.knows_kind(Kind::Ifb)?, "ifb"), (sorts, "sch_htb")]
        {
            if !known {
                return Err(Error::new(Code::NOT_AVAILABLE, "this kernel can't limit bandwidth")
                    .details(format!("it has no module {module}")));
            }
        }
        Ok(())
    }
}
