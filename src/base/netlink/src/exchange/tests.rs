use std::cell::Cell;
use std::time::Duration;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;

use super::lacking;
use crate::link::{self, Change, Filter, Mac, NewBridge};
use crate::netlink::{BATCH, DUMP_ATTEMPTS};
use crate::request::{Request, encode};
use crate::testing::in_netns;
use crate::uapi::netlink::{NLM_F_ECHO, NLM_F_REQUEST, NLMSG_ERROR, NLMSGHDR};
use crate::{Error, Netlink, Result, addr, wire};

fn bridge(name: &str) -> Request {
    link::add_bridge(&NewBridge { name, mtu: None, mac: Mac::random(), vlan_filtering: false, group: None })
}

#[test]
fn a_batch_goes_on_past_a_failure_and_returns_the_first() {
    in_netns("a_batch_goes_on", || {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap();
        let alias = |alias| link::set(lo.index, "lo", &Change { alias: Some(alias), ..Change::default() });
        let err = netlink
            .execute_all(vec![bridge("br0"), bridge("br0"), link::del(4711, "nothing"), alias("last")])
            .unwrap_err();
        assert_eq!(err.to_string(), "add bridge br0: File exists");
        assert_eq!(netlink.link("lo").unwrap().alias, "last");
        assert!(netlink.find_link("br0").unwrap().is_some());

        // A failure of the last one, and of the only one.
        let err = netlink.execute_all(vec![alias("x"), link::del(4711, "nothing")]).unwrap_err();
        assert!(err.is(Errno::ENODEV) && err.what == "delete link nothing", "{err}");
        let err = netlink.execute(link::del(4711, "nothing")).unwrap_err();
        assert!(err.is(Errno::ENODEV), "{err}");
        // What can't be said at all keeps the others from being sent.
        let nameless = link::set(lo.index, "lo", &Change { name: Some(""), ..Change::default() });
        let err = netlink.execute_all(vec![alias("y"), nameless]).unwrap_err();
        assert!(err.is(Errno::EINVAL), "{err}");
        assert_eq!(netlink.link("lo").unwrap().alias, "x");
        netlink.execute_all(Vec::new()).unwrap();
    });
}

#[test]
fn more_requests_than_fit_into_a_batch() {
    in_netns("more_requests_than_fit_into_a_batch", || {
        let mut netlink = Netlink::open().unwrap();
        let count = 2 * BATCH + 3;
        let requests = (0..count).map(|number| bridge(&format!("br{number}"))).collect();
        netlink.execute_all(requests).unwrap();
        let filter = Filter { kind: Some("bridge"), ..Filter::default() };
        assert_eq!(netlink.links(&filter).unwrap().len(), count);
        // Every one of them fails: all refusals fit into the receive buffer.
        let requests = (0..count).map(|number| bridge(&format!("br{number}"))).collect();
        let err = netlink.execute_all(requests).unwrap_err();
        assert_eq!(err.what, "add bridge br0");
        assert!(netlink.find_link("br0").unwrap().is_some(), "the socket is of no use now");
    });
}

/// Kernels before 6.2 don't echo.
#[test]
fn a_new_link_is_looked_up_where_it_is_not_echoed() {
    in_netns("a_new_link_is_looked_up", || {
        let mut netlink = Netlink::open().unwrap();
        let mut request = bridge("br0");
        let bytes = request.bytes.as_mut().unwrap();
        let flags = wire::flags(bytes, 0) & !NLM_F_ECHO;
        wire::set_flags(bytes, 0, flags);
        let link = netlink.create_link(request).unwrap();
        assert_eq!((link.name.as_str(), link.kind.as_str()), ("br0", "bridge"));
    });
}

#[test]
fn only_the_kernel_is_believed() {
    in_netns("only_the_kernel_is_believed", || {
        let mut netlink = Netlink::open().unwrap();
        let forger = Socket::new(NETLINK_ROUTE).unwrap();
        // "No such device" to the request that comes next.
        let mut body = (-libc::ENODEV).to_ne_bytes().to_vec();
        body.extend([0; NLMSGHDR]);
        let mut forged = wire::message(NLMSG_ERROR, 0, &body, |_| {});
        wire::number(&mut forged, netlink.socket.seq + 1);
        forged[12..16].copy_from_slice(&netlink.socket.port.to_ne_bytes());
        forger.send_to(&forged, &SocketAddr::new(netlink.socket.port, 0), 0).unwrap();
        assert_eq!(netlink.link("lo").unwrap().index, 1);
    });
}

#[test]
fn an_answer_that_is_cut_off_is_an_error() {
    in_netns("an_answer_that_is_cut_off", || {
        let mut netlink = Netlink::open().unwrap();
        netlink.socket.buffer.truncate(100);
        let err = netlink.link("lo").unwrap_err();
        assert!(err.is(Errno::EMSGSIZE), "{err}");
        assert!(err.reason.contains("cut off"), "{err}");
    });
}

#[test]
fn no_answer_is_an_error_in_time() {
    in_netns("no_answer_is_an_error_in_time", || {
        let mut netlink = Netlink::open().unwrap();
        netlink.socket.patience(Duration::from_millis(50)).unwrap();
        // To the next tick of the kernel's clock.
        assert!(
            (50..=60).contains(&netlink.socket.receive_limit().as_millis()),
            "{:?}",
            netlink.socket.receive_limit()
        );
        // Neither an acknowledgement nor an answer is asked for.
        let lo = LinkMessage::default();
        let message = encode(RouteNetlinkMessage::SetLink(lo_index(lo)), NLM_F_REQUEST);
        let err = netlink.socket.ask("ask in vain", message, &mut |_| Ok(())).unwrap_err();
        assert!(err.is(Errno::ETIMEDOUT), "{err}");
        // A late answer to an earlier request is not taken for the next one's.
        let seq = netlink.socket.take_numbers(1);
        let mut late = encode(RouteNetlinkMessage::GetLink(lo_index(LinkMessage::default())), NLM_F_REQUEST);
        wire::number(&mut late, seq);
        netlink.socket.send("ask", &late).unwrap();
        assert!(netlink.link("nothing").unwrap_err().is(Errno::ENODEV));
    });
}

fn lo_index(mut message: LinkMessage) -> LinkMessage {
    message.header.index = 1;
    message
}

/// More links than one datagram holds, and a change while the list is read.
#[test]
fn a_list_that_changes_is_read_again() {
    in_netns("a_list_that_changes_is_read_again", || {
        let mut netlink = Netlink::open().unwrap();
        let names: Vec<_> = (0..200).map(|number| format!("br{number}")).collect();
        netlink.execute_all(names.iter().map(|name| bridge(name)).collect()).unwrap();
        let mut other = Netlink::open().unwrap();
        let mut toggle = false;
        let mut change = move || {
            toggle = !toggle;
            let request = if toggle {
                bridge("volatile")
            } else {
                link::del(other.link("volatile").unwrap().index, "volatile")
            };
            other.execute(request).unwrap();
        };
        for changes in [0, 1, 4] {
            let attempts = Cell::new(0);
            let links = list(&mut netlink, &attempts, changes, &mut change).unwrap();
            assert_eq!(attempts.get(), changes + 1);
            for name in &names {
                assert_eq!(links.iter().filter(|link| link.name == *name).count(), 1, "{name}");
            }
        }
        let attempts = Cell::new(0);
        let err = list(&mut netlink, &attempts, usize::MAX, &mut change).unwrap_err();
        assert_eq!(attempts.get(), DUMP_ATTEMPTS);
        assert!(err.is(Errno::EINTR) && err.reason.contains("20 times in a row"), "{err}");
    });
}

/// Lists links; in the midst of the first `changes` attempts something changes.
fn list(
    netlink: &mut Netlink,
    attempts: &Cell<usize>,
    changes: usize,
    mut change: impl FnMut(),
) -> Result<Vec<link::Link>> {
    let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
    netlink.dump("list", message, |message| {
        let link = crate::link::read::read(message)?;
        // lo is in the first datagram.
        if link.as_ref().is_some_and(|link| link.name == "lo") {
            if attempts.get() < changes {
                change();
            }
            attempts.set(attempts.get() + 1);
        }
        Ok(link)
    })
}

#[test]
fn an_address_family_that_the_kernel_lacks_is_named() {
    let net = |text: &str| addr::add(1, "eth0", text.parse().unwrap());
    let refused = |request: Request, errno: Errno| {
        let (what, bytes) = (request.what, request.bytes.unwrap());
        lacking(Error::new(what, errno), &bytes).to_string()
    };
    assert_eq!(
        refused(net("fd00::2/64"), Errno::EOPNOTSUPP),
        "add address fd00::2/64 to eth0: the kernel has no IPv6: built without it, or started with ipv6.disable=1"
    );
    for (request, errno) in [(net("10.0.0.2/24"), Errno::EOPNOTSUPP), (net("fd00::2/64"), Errno::EPERM)] {
        let plain = Error::new(request.what.clone(), errno).to_string();
        assert_eq!(refused(request, errno), plain);
    }
}
