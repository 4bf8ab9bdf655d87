//! The ifb that a pod's egress goes through. Its name is made of network and container as by
//! the Go plugin, so that either set removes what the other made. Its alias says whose it is:
//! a container with two interfaces in one network can have only one, and GC knows it by that.

use nix::errno::Errno;
use sha2::{Digest, Sha512};

use cnimble::net::ifb::NewIfb;
use cnimble::net::link::{self, Change, Filter, Link};
use cnimble::net::qdisc::Tbf;
use cnimble::net::{Netlink, filter, ifb, qdisc};
use cnimble::plugin::Call;
use cnimble::rules::Owner;
use cnimble::spec::{Attachment, Code, Error};
use cnimble::veth::remove;

/// `bwp` and twelve hex digits of the SHA-512 of network and container.
fn name(call: &Call) -> String {
    let digest = Sha512::new().chain_update(&call.config.name).chain_update(&call.container_id).finalize();
    digest.iter().take(6).fold("bwp".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

fn owner(call: &Call) -> Owner {
    Owner { network: call.config.name.clone(), attachment: call.attachment() }
}

/// Makes the ifb, limits it, and sends what `veth` receives there: in this order, so that
/// nothing gets through unlimited.
pub(crate) fn add(call: &Call, host: &mut Netlink, veth: &Link, limit: &Tbf) -> Result<Link, Error> {
    let name = name(call);
    let ifb = call.step("limit egress", || make(host, veth, &name))?;
    let (index, undone) = (ifb.index, name.clone());
    call.undo
        .push(format!("remove {name}"), move || Ok(Netlink::open()?.execute(link::del(index, &undone))?));
    let alias = owner(call).comment();
    let mark = Change { alias: Some(&alias), ..Change::default() };
    call.step("limit egress", || host.execute(link::set(index, &name, &mark)))?;
    call.step("limit egress", || super::bucket(host, &ifb, limit))?;
    call.step("limit egress", || match host.execute(qdisc::add_ingress(veth.index, &veth.name)) {
        Err(err) if err.is(Errno::EEXIST) => {
            let msg = format!("interface {} has an ingress qdisc already", veth.name);
            Err(Error::new(Code::CONFLICT, msg))
        }
        done => Ok(done?),
    })?;
    let (at, undone) = (veth.index, veth.name.clone());
    call.undo.push(format!("remove the ingress qdisc of {undone}"), move || {
        Ok(Netlink::open()?.execute(qdisc::del_ingress(at, &undone))?)
    });
    call.step("limit egress", || host.execute(filter::redirect(veth.index, &veth.name, index)))?;
    Ok(ifb)
}

fn make(host: &mut Netlink, veth: &Link, name: &str) -> Result<Link, Error> {
    match host.create_link(ifb::add(&NewIfb { name, mtu: veth.mtu, txqlen: veth.txqlen })) {
        Err(err) if err.is(Errno::EEXIST) => Err(Error::new(
            Code::CONFLICT,
            format!("interface {name} exists already"),
        )
        .details(
            "DEL for this container was never called, or it has another limited interface in this network",
        )),
        made => Ok(made?),
    }
}

/// Removes the ifb, unless its alias says that it is of another interface of the container.
pub(crate) fn remove(call: &Call) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    let Some(link) = host.find_link(&name(call))? else { return Ok(()) };
    if link.kind != "ifb" || !(link.alias.is_empty() || owner(call).owns(&link.alias)) {
        log::warn!("{} belongs to somebody else ({} {}); left alone", link.name, link.kind, link.alias);
        return Ok(());
    }
    match host.execute(link::del(link.index, &link.name)) {
        Err(err) if !err.is_missing() => Err(err.into()),
        _ => Ok(()),
    }
}

/// The ifb is there with its limit, and `veth` sends everything to it.
pub(crate) fn check(call: &Call, host: &mut Netlink, veth: &Link, limit: &Tbf) -> Result<(), Error> {
    let name = name(call);
    let ifb = host.find_link(&name)?.filter(|link| link.kind == "ifb");
    let ifb = ifb.ok_or_else(|| Error::check(format!("interface {name} is missing")))?;
    if !ifb.up {
        return Err(Error::check(format!("interface {name} is down")));
    }
    super::check_bucket(host, &ifb, limit)?;
    if host.redirects(veth.index)?.first() != Some(&ifb.index) {
        return Err(Error::check(format!("what interface {} receives doesn't go to {name}", veth.name)));
    }
    Ok(())
}

/// Removes the ifbs of this network's attachments that aren't valid. Those without an alias,
/// which the Go plugin makes, don't tell their network and stay.
pub(crate) fn gc(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let all = Filter { master: None, kind: Some("ifb") };
    remove::stale(&mut Netlink::open()?, network, valid, &all)
}
