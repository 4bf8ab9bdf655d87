//! Plugins that need kinds of interfaces which many kernels lack. They run in the virtual machine, which boots once for
//! this module.

use cnimble_tests::in_vm;

#[test]
fn killed_in_plugins_that_need_another_kernel() {
    in_vm!();
    super::kill::deaths_of_the_picky();
}

#[test]
fn killed_beside_a_vlan_gateway() {
    in_vm!();
    super::kill::deaths_beside_a_vlan_gateway();
}

#[test]
fn no_zombie_is_left_where_children_need_no_reaping() {
    in_vm!();
    super::zombies::no_zombie_where_children_need_no_reaping();
}

#[test]
fn errors_in_plugins_that_need_another_kernel() {
    in_vm!();
    super::fail::failures_of_the_picky();
}
