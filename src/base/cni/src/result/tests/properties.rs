//! Conversion between the versions, for any result.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::Version;
use crate::result::{CniResult, Dns, Interface, IpConfig, Route};

fn ip() -> impl Strategy<Value = IpAddr> {
    // An IPv4 address in the form of IPv6 is read as the former, as in Go.
    let six =
        any::<u128>().prop_map(Ipv6Addr::from).prop_filter("mapped", |ip| ip.to_ipv4_mapped().is_none());
    prop_oneof![any::<u32>().prop_map(|n| Ipv4Addr::from(n).into()), six.prop_map(IpAddr::from)]
}

fn network() -> impl Strategy<Value = IpNetwork> {
    (ip(), 0..=128_u8).prop_map(|(ip, length)| {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        IpNetwork::new(ip, length % (bits + 1)).unwrap()
    })
}

/// A number that is there or not; 0 is not, in the documents.
fn number() -> impl Strategy<Value = Option<u32>> {
    option::of(1..=u32::MAX)
}

/// Text with all that JSON and Go escape.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9.]{0,8}", any::<String>(), Just("<&>\u{2028}\"\\".to_owned())]
}

fn interface() -> impl Strategy<Value = Interface> {
    (text(), text(), number(), text(), text(), text()).prop_map(
        |(name, mac, mtu, sandbox, socket_path, pci_id)| Interface {
            name,
            mac,
            mtu,
            sandbox,
            socket_path,
            pci_id,
        },
    )
}

fn address() -> impl Strategy<Value = IpConfig> {
    let parts = (option::of(0..4_u32), network(), option::of(ip()));
    parts.prop_map(|(interface, address, gateway)| IpConfig { interface, address, gateway })
}

fn route() -> impl Strategy<Value = Route> {
    let parts = (
        network(),
        option::of(ip()),
        number(),
        number(),
        number(),
        any::<Option<u32>>(),
        any::<Option<u8>>(),
    );
    parts.prop_map(|(dst, gw, mtu, advmss, priority, table, scope)| Route {
        dst,
        gw,
        mtu,
        advmss,
        priority,
        table,
        scope,
    })
}

fn dns() -> impl Strategy<Value = Dns> {
    (vec(text(), 0..3), text(), vec(text(), 0..3), vec(text(), 0..3))
        .prop_map(|(nameservers, domain, search, options)| Dns { nameservers, domain, search, options })
}

fn result() -> impl Strategy<Value = CniResult> {
    (vec(interface(), 0..4), vec(address(), 0..5), vec(route(), 0..4), dns())
        .prop_map(|(interfaces, ips, routes, dns)| CniResult { interfaces, ips, routes, dns })
}

fn read(value: &serde_json::Value) -> CniResult {
    CniResult::from_value(value, Version::V0_1_0, "").unwrap()
}

/// The part of a result that a version can express.
fn sayable(result: &CniResult, version: Version) -> CniResult {
    let mut said = result.clone();
    if version < Version::V1_0_0 {
        for link in &mut said.interfaces {
            (link.mtu, link.socket_path, link.pci_id) = (None, String::new(), String::new());
        }
    }
    if version < Version::V0_3_0 {
        said.interfaces.clear();
        let first = |v4: bool| result.ips.iter().find(|ip| ip.address.is_ipv4() == v4).cloned();
        let firsts = [first(true), first(false)];
        said.ips = firsts.iter().flatten().map(|ip| IpConfig { interface: None, ..ip.clone() }).collect();
        let of = |ip: &IpConfig| {
            let v4 = ip.address.is_ipv4();
            let routes = result.routes.iter().filter(move |route| route.dst.is_ipv4() == v4);
            routes.map(|route| Route::new(route.dst, route.gw)).collect::<Vec<_>>()
        };
        said.routes = firsts.iter().flatten().flat_map(of).collect();
    }
    said
}

proptest! {
    #[test]
    fn a_version_says_all_that_it_can(result in result()) {
        for version in Version::ALL {
            match result.to_value(*version) {
                Ok(form) => {
                    prop_assert_eq!(form["cniVersion"].as_str(), Some(version.as_str()));
                    prop_assert_eq!(read(&form), sayable(&result, *version), "{}", version);
                    // The text that is printed is the same document.
                    let text = result.to_json(*version).unwrap();
                    let printed: serde_json::Value = serde_json::from_str(&text).unwrap();
                    prop_assert_eq!(printed, form);
                }
                Err(err) => {
                    prop_assert!(*version < Version::V0_3_0 && result.ips.is_empty(), "{}", err);
                }
            }
        }
    }

    #[test]
    fn nothing_is_lost_on_the_way_up_and_back(result in result()) {
        for old in Version::ALL {
            let Ok(form) = result.to_value(*old) else { continue };
            for new in Version::ALL.iter().filter(|new| *new >= old) {
                let up = read(&form).to_value(*new).unwrap();
                prop_assert_eq!(&read(&up).to_value(*old).unwrap(), &form, "{} by way of {}", old, new);
            }
        }
    }
}
