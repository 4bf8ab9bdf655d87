//! A child waits for the kernel instead of the plugin, and the plugin or the child dies or fails.

use crate::fail::failures;
use crate::kill::killed;
use crate::site::Verb;

const DEL: &[Verb] = &[Verb::Del];

#[test]
fn killed_with_its_child() {
    killed("bridge by a child", DEL, 12, false);
    killed("bridge and portmap by a child", DEL, 10, false);
}

#[test]
fn killed_and_the_child_isnt_or_the_child_and_it_isnt() {
    killed("bridge by a child", DEL, 30, true);
    killed("ptp by a child", DEL, 10, true);
}

#[test]
fn errors_in_it_and_its_child() {
    failures("bridge by a child", &[Verb::Del, Verb::Gc], 12);
    failures("ptp by a child", &[Verb::Add], 10);
}
