use nix::errno::Errno;
use nix::libc;

use super::bridge;
use crate::testing::{in_netns, json};
use crate::{Netlink, Request};

/// Returns `struct ifinfomsg` of a link with one attribute of four bytes.
fn payload(index: u32, kind: u16, value: u32) -> Vec<u8> {
    let mut payload = vec![0; size_of::<libc::ifinfomsg>()];
    payload[4..8].copy_from_slice(&index.to_ne_bytes());
    payload.extend(8_u16.to_ne_bytes());
    payload.extend(kind.to_ne_bytes());
    payload.extend(value.to_ne_bytes());
    payload
}

#[test]
fn a_change_without_a_function_is_made_of_its_payload() {
    let name = "a_change_without_a_function_is_made_of_its_payload";
    in_netns(name, || {
        let mut netlink = Netlink::open().unwrap();
        let index = bridge(&mut netlink, "b0").index;
        let queue = payload(index, libc::IFLA_TXQLEN, 77);
        netlink.execute(Request::from_payload("set the queue of b0", libc::RTM_SETLINK, 0, &queue)).unwrap();
        if let Some(shown) = json(name, "ip -j link show b0") {
            assert_eq!(shown[0]["txqlen"], 77);
        }

        let missing = payload(index + 100, libc::IFLA_TXQLEN, 77);
        let err = netlink
            .execute(Request::from_payload("set the queue of no link", libc::RTM_SETLINK, 0, &missing))
            .unwrap_err();
        assert!(err.is(Errno::ENODEV) && err.to_string().contains("set the queue of no link"), "{err}");

        let question = Request::from_payload("ask for b0", libc::RTM_GETLINK, 0, &queue);
        assert!(netlink.execute(question).unwrap_err().is(Errno::EINVAL));
        assert_eq!(netlink.link("b0").unwrap().index, index);
    });
}
