//! The shortest plan that still goes wrong.

use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::run::{Failure, Manner, run};

/// Takes operations out as long as it goes wrong without them: halves at first, single ones in the end. It takes
/// `time` at most.
pub(crate) fn shrunk(plan: &Plan, failure: Failure, control: bool, time: Duration) -> (Plan, Failure) {
    let end = Instant::now() + time;
    // Of what lasts, nothing more is known after seconds than at once.
    let manner = Manner { patience: 3.0, control, until: Some(end) };
    let kind = class(&failure.why);
    let again = |plan: &Plan| run(plan, manner).err().filter(|found| class(&found.why) == kind);
    reduced(plan, failure, |plan| if Instant::now() < end { again(plan) } else { None })
}

/// What kind of difference it is: its first words that are nobody's name.
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
        // It takes the seventh and the thirtieth.
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
