//! Finds the shortest plan that still fails.

use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::run::{Failure, Manner, run};

/// Removes operations as long as the plan still fails: halves at first, single ones in the end. Takes at most `time`.
pub(crate) fn shrunk(plan: &Plan, failure: Failure, control: bool, time: Duration) -> (Plan, Failure) {
    let end = Instant::now() + time;
    // A lasting difference is visible at once, so a short wait is enough.
    let manner = Manner { patience: 3.0, control, until: Some(end) };
    let kind = class(&failure.why);
    let again = |plan: &Plan| run(plan, manner).err().filter(|found| class(&found.why) == kind);
    reduced(plan, failure, |plan| if Instant::now() < end { again(plan) } else { None })
}

/// Returns the kind of a difference: its first words without names.
pub(crate) fn class(why: &str) -> String {
    let name = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
    let line = why.lines().next().unwrap_or_default();
    line.split_whitespace().filter(name).take(6).collect::<Vec<_>>().join(" ")
}

fn reduced(plan: &Plan, failure: Failure, fails: impl Fn(&Plan) -> Option<Failure>) -> (Plan, Failure) {
    let (mut plan, mut failure) = (plan.clone(), failure);
    plan.ops.truncate(failure.at + 1);
    let mut size = plan.ops.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < plan.ops.len() {
            let mut fewer = plan.clone();
            fewer.ops.drain(at..(at + size).min(plan.ops.len()));
            match fails(&fewer) {
                Some(found) => {
                    fewer.ops.truncate(found.at + 1);
                    (plan, failure, shorter) = (fewer, found, true);
                }
                None => at += size,
            }
        }
        size = if size == 1 && shorter { 1 } else { size / 2 };
    }
    (plan, failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Op;

    #[test]
    fn what_is_left_is_what_it_takes() {
        let die = |pod| Op::Die { pod };
        let plan = Plan { nets: Vec::new(), ops: (0..50).map(die).collect() };
        // It fails with the seventh and the thirtieth.
        let fails = |plan: &Plan| {
            plan.ops.iter().position(|op| *op == die(7))?;
            let at = plan.ops.iter().position(|op| *op == die(30))?;
            Some(Failure { at, why: String::new() })
        };
        let (short, failure) = reduced(&plan, fails(&plan).unwrap(), fails);
        assert_eq!(short.ops, [die(7), die(30)]);
        assert_eq!(failure.at, 1);
    }
}
