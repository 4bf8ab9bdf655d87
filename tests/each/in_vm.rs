//! Plugins that need kinds of interfaces which many kernels lack. They run in the virtual machine, which boots once for
//! this module.

use cnimble_tests::in_vm;

#[test]
fn plugins_that_need_another_kernel_stay_within_their_budget() {
    in_vm!();
    super::budget::of_the_picky();
}

#[test]
fn every_verb_of_plugins_that_need_another_kernel_succeeds() {
    in_vm!();
    super::verbs::every_verb_in_the_machine();
}
