//! Follows the packets of a pod through a built-in chain of the table `nat`.

use std::collections::{BTreeMap, BTreeSet};

use cnimble_cni::Error;
use cnimble_netlink::legacy;
use cnimble_netlink::nft::{Family, Nft, Verdict};

use super::lines::{self, NatRule};
use super::{Decision, Effect, Traffic, Variant};
use crate::xtables;

/// The maximum number of chains that are read. If a walk needs more, the result is that packets may be exempted.
const CHAINS: usize = 64;

/// The beginnings of the names of chains that are not read: of CNI plugins and kube-proxy. kube-proxy has thousands of
/// rules there. Its ACCEPTs in IPVS mode are for addresses that published ports leave alone.
const KNOWN: [&str; 3] = ["CNI-", "KUBE-", "FLANNEL-"];
/// The beginning of the names of Docker's chains. They have no exemptions, but they translate published ports.
const TRANSLATING: &str = "DOCKER";

/// The rules of `nat` that have been read. A look at many pods or packets then reads each chain once.
///
/// The maps are sorted ones, because the first `HashMap` of a process asks the kernel for random bytes.
#[derive(Debug, Default)]
pub struct Tables {
    /// Whether nf_tables has the table.
    present: BTreeMap<Family, bool>,
    /// The chains of the nf_tables variant. `None` for one with too many rules.
    chains: BTreeMap<(Family, String), Option<Vec<NatRule>>>,
    /// The whole table of the legacy variant. `None` if there is none.
    legacy: BTreeMap<Family, Option<BTreeMap<String, Vec<NatRule>>>>,
}

impl Tables {
    fn has_table(&mut self, nft: &mut Nft, family: Family) -> Result<bool, Error> {
        if let Some(known) = self.present.get(&family) {
            return Ok(*known);
        }
        let found = nft.has_table(xtables::nat(family))?;
        self.present.insert(family, found);
        Ok(found)
    }

    /// Returns whether the legacy variant has the table. Reads the whole table the first time.
    fn has_legacy(&mut self, family: Family) -> Result<bool, Error> {
        if let Some(known) = self.legacy.get(&family) {
            return Ok(known.is_some());
        }
        let mut read = None;
        if xtables::has_legacy(family, "nat") {
            let mut chains = BTreeMap::<String, Vec<NatRule>>::new();
            for rule in legacy::rules(family, "nat")? {
                chains.entry(rule.chain.clone()).or_default().push(NatRule::of_legacy(rule));
            }
            read = Some(chains);
        }
        let found = read.is_some();
        self.legacy.insert(family, read);
        Ok(found)
    }

    /// Returns the rules of a chain of the nf_tables variant, or `None` if there are too many.
    fn chain(&mut self, nft: &mut Nft, family: Family, chain: &str) -> Result<Option<Vec<NatRule>>, Error> {
        let key = (family, chain.to_owned());
        if let Some(known) = self.chains.get(&key) {
            return Ok(known.clone());
        }
        let lines = lines::of_chain(nft, family, chain)?;
        self.chains.insert(key, lines.clone());
        Ok(lines)
    }
}

/// A walk through one variant's table, for one kind of traffic.
pub(super) struct NatWalk<'a> {
    nft: &'a mut Nft,
    tables: &'a mut Tables,
    variant: Variant,
    traffic: &'a Traffic,
    /// The chains of the present walk, none of which is read twice.
    seen: BTreeSet<String>,
    /// Whether chains are read that only translate.
    with_translations: bool,
}

/// Returns whether a walk ends at this decision.
type Wanted<'a> = &'a mut dyn FnMut(&Decision) -> bool;

impl<'a> NatWalk<'a> {
    /// Prepares a walk. Returns `None` if the variant is known to have no table. Chains that only translate are read
    /// only `with_translations`.
    pub(super) fn open(
        nft: &'a mut Nft,
        tables: &'a mut Tables,
        variant: Variant,
        traffic: &'a Traffic,
        with_translations: bool,
    ) -> Result<Option<Self>, Error> {
        // A look at the table is left out if only one chain is read, because it costs as much.
        let is_one = traffic.chains().len() == 1;
        let is_there = match variant {
            Variant::Legacy => tables.has_legacy(traffic.family())?,
            Variant::Nft | Variant::Usual => is_one || tables.has_table(nft, traffic.family())?,
        };
        Ok(is_there.then(|| NatWalk {
            nft,
            tables,
            variant,
            traffic,
            seen: BTreeSet::new(),
            with_translations,
        }))
    }

    /// Returns the first wanted decision in a built-in chain and in those that it leads to.
    pub(super) fn through(&mut self, chain: &str, wanted: Wanted<'_>) -> Result<Option<Decision>, Error> {
        self.seen.clear();
        self.chain(chain, true, wanted)
    }

    /// Returns whether a chain is not read, by its name.
    fn skips(&self, chain: &str) -> bool {
        KNOWN.iter().any(|known| chain.starts_with(known))
            || (!self.with_translations && chain.starts_with(TRANSLATING))
    }

    /// Returns the rules of a chain, none if it doesn't exist, and `None` if there are too many.
    fn lines(&mut self, chain: &str) -> Result<Option<Vec<NatRule>>, Error> {
        let family = self.traffic.family();
        match self.variant {
            Variant::Legacy => {
                let table = self.tables.legacy.get(&family).and_then(Option::as_ref);
                Ok(Some(table.and_then(|chains| chains.get(chain)).cloned().unwrap_or_default()))
            }
            Variant::Nft | Variant::Usual => self.tables.chain(self.nft, family, chain),
        }
    }

    /// Returns the effect of a rule of a chain, or with `None` of a chain that is not read.
    fn decision(&self, chain: &str, line: Option<&NatRule>, effect: Effect) -> Decision {
        Decision {
            variant: self.variant,
            family: self.traffic.family(),
            chain: chain.to_owned(),
            number: line.map_or(0, |line| line.number),
            comment: line.map(|line| line.comment.clone()).unwrap_or_default(),
            effect,
        }
    }

    fn chain(
        &mut self,
        name: &str,
        is_built_in: bool,
        wanted: Wanted<'_>,
    ) -> Result<Option<Decision>, Error> {
        if !self.seen.insert(name.to_owned()) {
            return Ok(None);
        }
        let read = if self.seen.len() > CHAINS { None } else { self.lines(name)? };
        let Some(lines) = read else {
            let unread = Effect::Exempts("");
            let found = self.decision(name, None, unread);
            return Ok(wanted(&found).then_some(found));
        };
        for line in lines.iter().filter(|line| line.may_meet(self.traffic)) {
            let effect = match (&line.verdict, &line.target) {
                (Some(Verdict::Accept), _) => Some(Effect::Exempts("ACCEPT")),
                (Some(Verdict::Return), _) if is_built_in => Some(Effect::Exempts("RETURN")),
                (Some(Verdict::Goto(chain)), _) if is_built_in && !self.skips(chain) => {
                    Some(Effect::Exempts("GOTO"))
                }
                (None, Some(target)) => Some(Effect::Translates(target.clone())),
                _ => None,
            };
            if let Some(effect) = effect {
                let found = self.decision(name, Some(line), effect);
                if wanted(&found) {
                    return Ok(Some(found));
                }
            }
            if let Some(Verdict::Jump(chain) | Verdict::Goto(chain)) = &line.verdict
                && !self.skips(chain)
                && let Some(found) = self.chain(chain, false, wanted)?
            {
                return Ok(Some(found));
            }
            // No packet gets behind this rule.
            let is_last = line.target.is_some()
                || line.verdict.as_ref().is_some_and(|verdict| !matches!(verdict, Verdict::Jump(_)));
            if is_last && line.takes_all() {
                break;
            }
        }
        Ok(None)
    }
}
