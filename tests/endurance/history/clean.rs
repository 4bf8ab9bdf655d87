//! Concurrent clean-ups: `gc --gone` and `doctor --repair`.

use super::Board;
use super::log::{Facts, Meaning};
use super::plan::{Clean, Kill, Net, cleaning};
use super::site::{Operation, Site};
use crate::chain::Set;

/// Leases of the Go plugins are judged only by their age. This is more than an ADD takes.
const GRACE: &str = "20";

pub(super) fn clean(board: &Board<'_>, seed: u64, number: usize) {
    let actor = format!("c{number}");
    for (what, kill) in cleaning(seed, number) {
        if board.is_over() {
            break;
        }
        clean_once(board.site, &actor, what, kill);
    }
}

fn clean_once(site: &Site, actor: &str, what: Clean, kill: Option<Kill>) {
    let args = match what {
        // Everything that our plugins create names its owner from the start, so no grace period is needed.
        Clean::Gone(Net::Own) => vec!["gc", "own", "--gone", "--grace", "0"],
        Clean::Gone(net) => vec!["gc", net.name(), "--gone", "--grace", GRACE],
        Clean::Doctor => vec!["doctor", "--repair", "--grace", GRACE],
    };
    let what = format!("{} {kill:?}", args.join(" "));
    let operation = Operation { actor, meaning: Meaning::Other, who: "", what, kill, set: Set::Ours };
    site.operate(&operation, &mut site.cnimble(Set::Ours, &args), |_| Facts::new());
}

/// Removes everything that is dead, at the end.
pub(super) fn sweep(site: &Site) -> bool {
    let args = ["doctor", "--repair", "--grace", "0"];
    let what = args.join(" ");
    let operation =
        Operation { actor: "end", meaning: Meaning::Other, who: "", what, kill: None, set: Set::Ours };
    site.operate(&operation, &mut site.cnimble(Set::Ours, &args), |_| Facts::new())
}
