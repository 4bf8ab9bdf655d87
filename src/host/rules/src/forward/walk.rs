//! Follows a pod's packet through `FORWARD` of iptables, as if it matched no condition. A rule with a condition may let
//! some packets pass, so it makes the result unsure.

use cnimble_cni::Error;
use cnimble_netlink::nft::Verdict;

use super::table::{PODS, STAGE1, uncommented};
use crate::filter_rule::FilterRule;

/// The maximum number of chains that are read. After that the result is unsure.
const CHAINS: usize = 200;

/// What a chain does with pods' packets. The worse one is the greater one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChainEffect {
    /// The chain lets them pass.
    Open,
    /// The chain drops those that match no condition.
    Shut {
        /// Whether no rule with a condition could let some of them pass.
        surely: bool,
    },
}

/// Returns the rules of a chain, at least up to the first for which the given function returns true. Without the chain
/// there are none.
pub(super) type Lines<'a> =
    &'a mut dyn FnMut(&str, &dyn Fn(&FilterRule) -> bool) -> Result<Vec<FilterRule>, Error>;

impl FilterRule {
    fn leads_to(&self, wanted: &str) -> bool {
        matches!(&self.verdict, Some(Verdict::Jump(chain)) if chain == wanted)
    }

    /// Returns whether no packet gets behind the rule.
    fn is_last(&self) -> bool {
        !self.conditional && self.verdict.as_ref().is_some_and(|verdict| !matches!(verdict, Verdict::Jump(_)))
    }

    /// Reads a rule as `iptables-save` prints it. It begins with `-A CHAIN`.
    pub(super) fn saved(rule: &str) -> Self {
        let uncommented = uncommented(rule);
        let mut words = uncommented.split(' ').skip(2);
        let (mut conditional, mut verdict) = (false, None);
        while let Some(word) = words.next() {
            let target = words.clone().next().unwrap_or_default().to_owned();
            verdict = match (word, target.as_str()) {
                ("-j", "ACCEPT") => Some(Verdict::Accept),
                ("-j", "DROP" | "REJECT") => Some(Verdict::Drop),
                ("-j", "RETURN") => Some(Verdict::Return),
                // Any other target is taken for a chain. If it is none, the walk finds no rules there and goes on.
                ("-j", _) => Some(Verdict::Jump(target)),
                ("-g", _) => Some(Verdict::Goto(target)),
                _ => {
                    conditional = true;
                    continue;
                }
            };
            break;
        }
        FilterRule { conditional, verdict }
    }
}

/// How a walk through a chain ends.
enum ChainVerdict {
    Accepted,
    Dropped,
    /// The packet left the chain without a decision.
    Returned,
}

/// What the plugin's chain `CNI-FORWARD` does with the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pods {
    /// Nothing: the pod has no rules there.
    Refused,
    /// The chain accepts them.
    Accepted,
    /// The chain will accept them after an ADD. If nothing leads to it yet, the ADD adds a jump in front of all rules.
    Added,
}

/// Follows a pod's packet through a base chain and those that it leads to. `drops_by_policy` is the base chain's
/// policy.
pub(super) fn through(
    chain: &str,
    drops_by_policy: bool,
    pods: Pods,
    lines: Lines<'_>,
) -> Result<ChainEffect, Error> {
    if pods == Pods::Added
        && !lines(chain, &|line| line.leads_to(PODS))?.iter().any(|line| line.leads_to(PODS))
    {
        return Ok(ChainEffect::Open);
    }
    let mut walk = ForwardWalk { accepted: pods != Pods::Refused, surely: true, remaining: CHAINS };
    let dropped = match walk.chain(chain, lines)? {
        ChainVerdict::Accepted => false,
        ChainVerdict::Dropped => true,
        ChainVerdict::Returned => drops_by_policy,
    };
    Ok(if dropped { ChainEffect::Shut { surely: walk.surely } } else { ChainEffect::Open })
}

/// The state of one walk.
struct ForwardWalk {
    /// Whether the plugin's chain accepts the packet.
    accepted: bool,
    /// Whether no rule with a condition could have let it pass until now.
    surely: bool,
    /// How many chains may still be read.
    remaining: usize,
}

impl ForwardWalk {
    fn chain(&mut self, name: &str, lines: Lines<'_>) -> Result<ChainVerdict, Error> {
        let Some(remaining) = self.remaining.checked_sub(1) else {
            self.surely = false;
            return Ok(ChainVerdict::Returned);
        };
        self.remaining = remaining;
        let accepted = self.accepted;
        let lines_of_chain = lines(name, &|line| line.is_last() || accepted && line.leads_to(PODS))?;
        for FilterRule { conditional, verdict } in lines_of_chain {
            match verdict {
                Some(Verdict::Jump(chain)) if chain == PODS && self.accepted => {
                    return Ok(ChainVerdict::Accepted);
                }
                Some(Verdict::Jump(chain)) if [STAGE1, PODS].contains(&chain.as_str()) => {}
                Some(Verdict::Accept | Verdict::Jump(_) | Verdict::Goto(_)) if conditional => {
                    self.surely = false;
                }
                _ if conditional => {}
                Some(Verdict::Accept) => return Ok(ChainVerdict::Accepted),
                Some(Verdict::Drop) => return Ok(ChainVerdict::Dropped),
                Some(Verdict::Return) => return Ok(ChainVerdict::Returned),
                Some(Verdict::Jump(chain)) => match self.chain(&chain, lines)? {
                    ChainVerdict::Returned => {}
                    end => return Ok(end),
                },
                Some(Verdict::Goto(chain)) => return self.chain(&chain, lines),
                None => {}
            }
        }
        Ok(ChainVerdict::Returned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(policy_drops: bool, pods: Pods, saved: &str) -> ChainEffect {
        let mut lines = |chain: &str, _: &dyn Fn(&FilterRule) -> bool| {
            let prefix = format!("-A {chain} ");
            Ok(saved
                .lines()
                .map(str::trim)
                .filter(|l| l.starts_with(&prefix))
                .map(FilterRule::saved)
                .collect())
        };
        through("FORWARD", policy_drops, pods, &mut lines).unwrap()
    }

    const SURE: ChainEffect = ChainEffect::Shut { surely: true };
    const PERHAPS: ChainEffect = ChainEffect::Shut { surely: false };

    #[test]
    fn what_no_condition_matches_goes_to_the_end() {
        assert_eq!(way(false, Pods::Refused, ""), ChainEffect::Open);
        assert_eq!(way(true, Pods::Refused, ""), SURE);
        let reject = "-A FORWARD -j REJECT --reject-with icmp-host-prohibited";
        assert_eq!(way(false, Pods::Refused, reject), SURE);
        let commented = "-A FORWARD -m comment --comment \"a \\\"-j ACCEPT\\\" b\" -j DROP";
        assert_eq!(way(false, Pods::Refused, commented), SURE);
        assert_eq!(way(false, Pods::Refused, "-A FORWARD -s 10.0.0.0/8 -j DROP"), ChainEffect::Open);
        let docker = "-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -j DOCKER\n-A DOCKER-USER -j RETURN";
        assert_eq!(way(true, Pods::Refused, docker), PERHAPS);
        assert_eq!(way(false, Pods::Refused, docker), ChainEffect::Open);
    }

    #[test]
    fn unconditional_jumps_are_followed() {
        let zones = "-A FORWARD -m comment --comment zones -j ZONES\n-A ZONES -g PUBLIC\n-A ZONES -j ACCEPT\n\
                     -A PUBLIC -j LOG\n-A PUBLIC -i eth0 -j RETURN\n-A FORWARD -j REJECT";
        assert_eq!(way(false, Pods::Refused, zones), SURE);
        assert_eq!(way(false, Pods::Refused, &format!("{zones}\n-A PUBLIC -j ACCEPT")), ChainEffect::Open);
        assert_eq!(way(true, Pods::Refused, "-A FORWARD -j A\n-A A -j FORWARD"), PERHAPS, "endless");
    }

    #[test]
    fn pods_are_accepted_where_their_chain_comes_first() {
        let first = "-A FORWARD -j CNI-ISOLATION-STAGE-1\n-A FORWARD -j CNI-FORWARD\n-A FORWARD -j DROP";
        assert_eq!(way(true, Pods::Accepted, first), ChainEffect::Open);
        assert_eq!(way(true, Pods::Refused, first), SURE);
        let behind = "-A FORWARD -j DROP\n-A FORWARD -j CNI-FORWARD";
        assert_eq!(way(true, Pods::Accepted, behind), SURE);
        assert_eq!(way(true, Pods::Added, behind), SURE);
        assert_eq!(way(true, Pods::Added, "-A FORWARD -j DROP"), ChainEffect::Open, "it will be in front");
    }

    #[test]
    fn comments_are_left_out() {
        let rule = "-A F -i b ! -o b -m comment --comment \"x (y: z)\" -j S";
        assert_eq!(uncommented(rule), "-A F -i b ! -o b -j S");
        assert_eq!(uncommented("-A F -m comment --comment one -j S"), "-A F -j S");
        assert_eq!(uncommented("-A F -m comment --comment \"open"), "-A F");
    }
}
