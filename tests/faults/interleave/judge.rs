//! The invariants after each order.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::site::{Act, Site};
use super::{Came, Order};

/// Checks the state after an order, and runs further verbs on it.
pub fn judge(site: &Site<'_>, order: Order, came: &Came) -> Result<(), String> {
    let scene = site.scene;
    let mut living: BTreeSet<&str> = scene.before.iter().copied().collect();
    // The owners for which a lease may or may not exist: those of a killed verb and those of void leases.
    let mut unsure: BTreeSet<&str> = scene.void.iter().copied().collect();
    let mut given = BTreeMap::new();
    for (number, (act, outcome)) in scene.acts.iter().zip(&came.outcomes).enumerate() {
        let id = act.id();
        if order.killed && order.first == number {
            unsure.insert(id);
            continue;
        }
        let result = match act {
            Act::Add(_) => Some(outcome.try_result()?),
            Act::AddIfRoom(_) if outcome.status == 0 => Some(outcome.try_result()?),
            Act::Fails(_) | Act::AddIfRoom(_) => {
                let error = outcome.try_error()?;
                if error.code != 101 {
                    return Err(outcome.describe());
                }
                None
            }
            Act::Del(_) | Act::GcBut(_) if outcome.status == 0 && outcome.stdout.is_empty() => None,
            Act::Del(_) | Act::GcBut(_) => return Err(outcome.describe()),
        };
        match result {
            Some(result) => {
                living.insert(id);
                given.insert(id, addresses(&result));
            }
            None => drop(living.remove(id)),
        }
    }
    for id in scene.names().difference(&unsure) {
        let held = site.held_by(id)?;
        let wanted = if living.contains(id) { scene.ranges.as_array().unwrap().len() } else { 0 };
        if held.len() != wanted || given.get(id).is_some_and(|given| *given != held) {
            return Err(format!("{id} was given {:?} and has {held:?}", given.get(id)));
        }
    }
    if !order.killed && !scene.void.is_empty() && given.is_empty() {
        return Err("nobody has the address that was to be had".to_owned());
    }
    for id in living.difference(&unsure) {
        let check = site.call("CHECK", id, Some(&json!({ "cniVersion": "1.1.0" }))).try_run()?;
        if check.status != 0 {
            return Err(format!("CHECK of {id}: {}", check.describe()));
        }
    }
    // DEL finds all leases, also with the index.
    for id in scene.names() {
        let del = site.call("DEL", id, None).try_run()?;
        let left = site.held_by(id)?;
        if del.status != 0 || !left.is_empty() {
            return Err(format!("DEL of {id} leaves {left:?}: {}", del.describe()));
        }
    }
    let left = site.leases()?.len();
    let others = scene.many * scene.ranges.as_array().unwrap().len();
    if left != others {
        return Err(format!("{left} leases are left, not {others}"));
    }
    let half = std::fs::read_dir(site.dir()).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let half: Vec<_> = half.filter(|name| name.to_string_lossy().starts_with(".cnimble-new")).collect();
    if half.is_empty() { Ok(()) } else { Err(format!("half-written: {half:?}")) }
}

fn addresses(result: &Value) -> BTreeSet<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    let text = |ip: &Value| ip["address"].as_str().unwrap_or_default().split('/').next().unwrap().to_owned();
    ips.map(text).collect()
}
