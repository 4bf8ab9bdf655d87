//! Lets only the pod's own MAC address enter the bridge from its port (`macspoofchk`). The table `bridge cnimble` has
//! two sets, the guarded ports and the allowed pairs of port and MAC. Two rules look at all frames:
//! ```text
//! ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 iifname @ports drop
//! iifname @ports iifname . ether saddr != @sources drop
//! ```
//! The first rule drops frames to the addresses that bridges and switches use among themselves.

use cnimble_cni::{Attachment, Error, Owner};
use cnimble_netlink as netlink;
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::{
    Batch, Expr, Family, Header, Hook, HookPoint, Key, KeyType, Meta, Nft, REG1, REG2, Rule, Table, Verdict,
};

use super::elements::{self, Changes, Claim, Layout, Placed};
use super::failures;
use super::listed::Effect;
use super::reference_spoof;
pub use super::undo::Applied;
use super::undo::undone;

/// The layout of the MAC check, a part of the table `bridge cnimble`.
pub(super) struct Spoof;

const CHAIN: &str = "prerouting";
const PORTS: &str = "ports";
const SOURCES: &str = "sources";
/// The priority of the chain, before everything else that looks at frames: `NF_BR_PRI_NAT_DST_BRIDGED`.
const PRIORITY: i32 = -300;

impl Layout for Spoof {
    const TABLE: Table<'static> = Table::new(Family::Bridge, "cnimble");
    const CHAINS: &'static [&'static str] = &[CHAIN];
    const FIXED: &'static [&'static str] = &[PORTS, SOURCES];

    /// A port belongs to the pod whose link has the name now.
    fn claim(_set: &str) -> Claim {
        Claim::Last
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let hook = Hook { kind: "filter", hook: HookPoint::Prerouting, priority: PRIORITY };
        batch.create_base_chain(Self::TABLE.chain(chain), hook);
    }

    fn create_set(batch: &mut Batch, set: &str) {
        let key: &[KeyType] =
            if set == PORTS { &[KeyType::Ifname] } else { &[KeyType::Ifname, KeyType::EtherAddr] };
        batch.create_set(Self::TABLE.set(set), key);
    }

    /// The rules are in the order of the sets.
    fn add_rule(batch: &mut Batch, set: &str) {
        let chain = Self::TABLE.chain(CHAIN);
        match set {
            PORTS => batch.add_rule(chain, &no_reserved_destination(), ""),
            _ => batch.add_rule(chain, &no_other_source(), ""),
        }
    }

    fn is_rule_over(rule: &Rule, set: &str) -> bool {
        rule.uses_set(PORTS) && rule.uses_set(SOURCES) == (set == SOURCES)
    }

    fn effect(placed: &Placed) -> Option<Effect> {
        let (port, mac) = pair_in(placed)?;
        Some(Effect::MacCheck { port, mac: mac.to_string() })
    }
}

fn no_reserved_destination() -> [Expr; 6] {
    [
        Expr::payload(Header::Link, 0, 6, REG1),
        Expr::mask(REG1, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xf0]),
        Expr::equal(REG1, &[0x01, 0x80, 0xc2, 0, 0, 0]),
        Expr::meta(Meta::Iifname, REG1),
        Expr::in_set(REG1, PORTS),
        Expr::verdict(Verdict::Drop),
    ]
}

fn no_other_source() -> [Expr; 6] {
    [
        Expr::meta(Meta::Iifname, REG1),
        Expr::in_set(REG1, PORTS),
        Expr::meta(Meta::Iifname, REG1),
        Expr::payload(Header::Link, 6, 6, REG2),
        Expr::not_in_set(REG1, SOURCES),
        Expr::verdict(Verdict::Drop),
    ]
}

fn pair(port: &str, mac: Mac) -> Key {
    Key::ifname(port).and_mac(mac)
}

/// Returns the owner's comment with the MAC. By it, a removal that knows only the port finds both elements.
fn port_comment(owner: &Owner, mac: Mac) -> String {
    owner.comment_with(&format!(", mac: {mac}"))
}

/// Returns the MAC in such a comment, or `None` if it has none.
fn mac_of(comment: &str) -> Option<Mac> {
    let (_, rest) = comment.split_once(", mac: ")?;
    Mac::parse(rest.get(..17)?)
}

/// Returns the elements of a guarded port: the port, and its pair with the MAC.
pub(super) fn wanted(owner: &Owner, port: &str, mac: Mac) -> Vec<Placed> {
    vec![
        Placed::new(PORTS, Key::ifname(port), &port_comment(owner, mac)),
        Placed::new(SOURCES, pair(port, mac), &owner.comment()),
    ]
}

/// Deletes the pair of port and MAC of the attachment that had the port before, and notes it in `changes`. Call this
/// after an insertion that replaced a port, or the port could still send from the old MAC.
pub(super) fn forget_replaced(nft: &mut Nft, changes: &mut Changes) -> netlink::Result<()> {
    let old: Vec<Key> = changes
        .replaced()
        .filter(|(new, _)| new.set == PORTS)
        .filter_map(|(new, old)| {
            let mac = mac_of(&old.comment).filter(|mac| mac_of(&new.element.comment) != Some(*mac))?;
            Some(pair(&old.key.as_ifname()?, mac))
        })
        .collect();
    for key in old {
        elements::also_delete::<Spoof>(nft, changes, SOURCES, &key)?;
    }
    Ok(())
}

/// Guards a port. Takes it over if it belonged to another attachment. Returns what takes this back. A second call
/// changes nothing.
pub fn add(nft: &mut Nft, owner: &Owner, port: &str, mac: Mac) -> Result<Applied, Error> {
    let mut changes = elements::insert::<Spoof>(nft, &wanted(owner, port, mac)).map_err(explain)?;
    let forgotten = forget_replaced(nft, &mut changes);
    let undo = Applied::from_changes::<Spoof>(changes);
    match forgotten {
        Ok(()) => Ok(undo),
        Err(err) => Err(undone(err, undo.run())),
    }
}

fn explain(err: netlink::Error) -> Error {
    failures::explain(err, "macspoofchk", "it needs CONFIG_NF_TABLES_BRIDGE")
}

/// Removes our rules of the owner and those of the Go plugins. `port` saves a listing and may be outdated or missing.
pub fn remove(nft: &mut Nft, owner: &Owner, port: Option<&str>) -> Result<(), Error> {
    if !nft.is_supported()? {
        return Ok(());
    }
    let mut hints = Vec::new();
    if let Some(port) = port
        && let Some(element) = nft.element(Spoof::TABLE.set(PORTS), &Key::ifname(port))?
        && let Some(mac) = mac_of(&element.comment)
    {
        hints = wanted(owner, port, mac);
    }
    let ours = elements::remove::<Spoof>(nft, owner, &hints);
    reference_spoof::remove(nft, &owner.attachment)?;
    ours?;
    Ok(())
}

/// Fails with code 103 and the missing object if the MAC is not checked. Rules of the Go plugins are as good as ours.
pub fn check(nft: &mut Nft, owner: &Owner, port: &str, mac: Mac) -> Result<(), Error> {
    let missing = missing(nft, owner, port, mac).map_err(explain)?;
    let Some(missing) = missing else { return Ok(()) };
    if reference_spoof::guards(nft, &owner.attachment, port, mac)? {
        return Ok(());
    }
    Err(Error::check(format!("MAC spoof check of port {port} is missing")).details(missing))
}

/// Returns the first missing element or rule, or `None` if everything is in place.
fn missing(nft: &mut Nft, owner: &Owner, port: &str, mac: Mac) -> netlink::Result<Option<String>> {
    for Placed { set, element } in wanted(owner, port, mac) {
        let found = elements::look_up::<Spoof>(nft, owner, &set, &element.key)?;
        if let Err(fault) = found.or_fault(Spoof::TABLE.set(&set), &element.key) {
            return Ok(Some(fault));
        }
    }
    let chain = Spoof::TABLE.chain(CHAIN);
    let rules = nft.rules(Spoof::TABLE, Some(CHAIN))?;
    let is_checked = rules.iter().any(|rule| Spoof::is_rule_over(rule, SOURCES));
    Ok((!is_checked).then(|| format!("chain {chain} has no rule that drops other sources")))
}

/// Removes our rules of all attachments of `network` that are not in `valid`. Also removes the Go plugins' rules of
/// missing ports, of all networks.
pub fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    if !nft.is_supported()? {
        return Ok(());
    }
    let ours = Spoof::gc(nft, network, valid);
    reference_spoof::gc(nft)?;
    ours?;
    Ok(())
}

/// Fails with code 50 if nf_tables cannot be used.
pub fn status(nft: &mut Nft) -> Result<(), Error> {
    Spoof::usable(nft).map_err(|err| failures::not_available(explain(err)))
}

/// Returns the port and the MAC in an element, or `None` for an element of a port alone.
pub(super) fn pair_in(placed: &Placed) -> Option<(String, Mac)> {
    placed.element.key.as_ifname_and_mac().filter(|_| placed.set == SOURCES)
}
