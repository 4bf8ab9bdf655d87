//! Answers that no kernel sends: every reader returns, and none panics.

use crate::Netlink;
use crate::fuzzing::read;
use crate::testing::in_netns;
use crate::uapi::netlink::{NLM_F_DUMP, NLM_F_REQUEST};
use crate::uapi::rtnetlink::{
    RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWQDISC, RTM_NEWROUTE, RTM_NEWTFILTER,
    RTM_NEWVLAN,
};
use crate::wire::{Message, Messages};

const KINDS: [u16; 8] = [
    RTM_NEWLINK,
    RTM_DELLINK,
    RTM_NEWADDR,
    RTM_NEWROUTE,
    RTM_NEWNEIGH,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    RTM_NEWVLAN,
];

#[test]
fn every_length_of_nothing_special() {
    for byte in [0, 1, 2, 4, 5, 8, 0x7f, 0xff] {
        for length in 0..80 {
            let body = vec![byte; length];
            for kind in KINDS {
                read(&Message { kind, flags: 0, seq: 0, port: 0, body: &body });
            }
        }
    }
}

/// A real answer, cut off at every length and with every byte changed.
#[test]
fn real_answers_damaged() {
    in_netns("real_answers_damaged", || {
        let mut netlink = Netlink::open().unwrap();
        super::bridge(&mut netlink, "br0");
        let here = crate::NetNs::current().unwrap();
        super::veth(&mut netlink, "v0", "v1", &here);
        for datagram in answers() {
            for message in Messages::new(&datagram).flatten() {
                for end in 0..message.body.len() {
                    read(&Message { body: &message.body[..end], ..message });
                }
                let mut body = message.body.to_vec();
                for at in 0..body.len() {
                    let byte = body[at];
                    for value in [0, 1, 3, 0x7f, 0x80, 0xff, byte ^ 4] {
                        body[at] = value;
                        for kind in KINDS {
                            read(&Message { kind, body: &body, ..message });
                        }
                    }
                    body[at] = byte;
                }
            }
        }
    });
}

/// The kernel's answers to a dump of each kind.
fn answers() -> Vec<Vec<u8>> {
    use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
    let mut answers = Vec::new();
    for kind in [libc::RTM_GETLINK, libc::RTM_GETADDR, libc::RTM_GETROUTE, libc::RTM_GETNEIGH] {
        let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
        socket.bind_auto().unwrap();
        let request = crate::wire::message(kind, NLM_F_REQUEST | NLM_F_DUMP, &[0; 16], |_| {});
        socket.send_to(&request, &SocketAddr::new(0, 0), 0).unwrap();
        answers.push(socket.recv_from_full().unwrap().0);
    }
    answers
}
