//! Adds and deletes pods on a host with many other objects. `scripts/stress crowded` compares it with an empty host and
//! writes target/crowded.md.
#![cfg(test)]

mod lives;
mod table;

use std::path::PathBuf;

use cnimble_tests::{Crowd, Host, announce, need};

use crate::lives::{Node, STEPS};
use crate::table::Table;

/// Adds and deletes a pod on an empty host and on this one. Nothing may fail or be left. The hosts take turns, except
/// if the crowd slows down the whole machine. The empty host is then measured first.
fn compared(crowd: Crowd, count: usize, lives: usize, floor: Option<PathBuf>) -> Table {
    let (empty, crowded) = (Host::new(), Host::new());
    let in_turns = !matches!(crowd, Crowd::Events | Crowd::Busy);
    let mut company = in_turns.then(|| crowd.gather(&crowded, count));
    let mut nodes = [Node::new(&empty, floor.clone()), Node::new(&crowded, floor)];
    let mut table = Table::new(&format!("{count} {}", crowd.name()));
    let mut turns: Vec<(usize, usize)> = (0..=lives).flat_map(|life| [(0, life), (1, life)]).collect();
    if !in_turns {
        turns.sort_unstable();
    }
    for (place, life) in turns {
        if place == 1 {
            company.get_or_insert_with(|| crowd.gather(&crowded, count));
        }
        let times = nodes[place].life(life);
        // The first run has cold kernel caches.
        if life > 0 {
            STEPS.iter().zip(times).for_each(|(step, time)| table.note(place, step, time));
        }
    }
    nodes.iter().for_each(Node::assert_empty);
    table
}

/// A hundredth of the crowd in a run by hand.
#[test]
fn pods_come_and_go_beside_every_crowd() {
    need!("ip", "nft", "iptables-nft-restore", "bash");
    std::thread::scope(|scope| {
        for crowd in Crowd::ALL {
            let count = (crowd.many() / 100).max(2);
            scope.spawn(move || compared(crowd, count, 2, None));
        }
    });
}

/// Runs only in `scripts/stress crowded`.
#[test]
fn crowded_hosts_are_measured() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let Some(lives) = number("CNIMBLE_CROWDED_LIVES") else { return };
    need!("ip", "nft", "iptables-nft-restore", "bash");
    let floor = std::env::var_os("CNIMBLE_FLOOR").map(PathBuf::from);
    let share = number("CNIMBLE_CROWDED_SHARE").unwrap_or(1);
    let page = std::env::var("CNIMBLE_CROWDED_PAGE").ok();
    let chosen = std::env::var("CNIMBLE_CROWDED_ONLY").unwrap_or_default();
    let mut text = String::new();
    for crowd in Crowd::ALL.into_iter().filter(|crowd| crowd.name().contains(&chosen)) {
        let table = compared(crowd, (crowd.many() / share).max(2), lives, floor.clone());
        let rows = table.rows();
        announce("TABLE", &rows);
        text.push_str(&rows);
    }
    if let Some(page) = page {
        std::fs::write(page, table::page(lives, &text)).unwrap();
    }
}
