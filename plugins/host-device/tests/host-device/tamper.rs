//! A pod with all privileges over its namespace tampers with its device. The host's state stays the same.

use cnimble_tests::trace::{Places, State, untraceable};
use cnimble_tests::{Ns, Outcome, Snapshot, skip};

use super::*;

/// A shell script in the pod. The device is `net1`.
struct Way {
    name: &'static str,
    script: &'static str,
    end: End,
}

/// The device's place after DEL.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Home,
    /// Destroyed or hidden. The host gets no other link instead.
    Gone,
}

const fn home(name: &'static str, script: &'static str) -> Way {
    Way { name, script, end: End::Home }
}

const fn gone(name: &'static str, script: &'static str) -> Way {
    Way { name, script, end: End::Gone }
}

/// `$NESTED` is the pod's own namespace.
const WAYS: &[Way] = &[
    home("nothing", "true"),
    home("another name", "ip link set net1 down; ip link set net1 name other"),
    home("another MAC address", "ip link set net1 address 02:00:00:00:00:01"),
    home("another MTU", "ip link set net1 mtu 1300"),
    home("the alias of a device of the host", "ip link set net1 alias cni0"),
    home(
        "every mark that it can change",
        "ip link set net1 down; ip link set net1 name other alias '' address 02:00:00:00:00:01 up",
    ),
    home("down", "ip link set net1 down"),
    home("flags", "ip link set net1 promisc on allmulticast on arp off multicast off"),
    home("a queue length", "ip link set net1 txqueuelen 7"),
    home("a group", "ip link set net1 group 5"),
    home("limits of GSO", "ip link set net1 gso_max_size 3000 gso_max_segs 5 || ip link set net1 group 6"),
    home("limits of GRO", "ip link set net1 gro_max_size 4000 || ip link set net1 group 6"),
    home("a broadcast address and a link mode", "ip link set net1 broadcast 02:00:00:00:00:01 mode dormant"),
    home(
        "more addresses",
        "ip address add 10.7.0.99/24 dev net1; ip address add fd00:7::99/64 dev net1 nodad",
    ),
    home("routes, neighbours, no addresses", "ip address flush dev net1; ip route add 10.1.0.0/16 dev net1"),
    home("no link-local address", "ip link set net1 addrgenmode none"),
    home("a queueing discipline", "tc qdisc add dev net1 root tbf rate 1mbit burst 10k latency 1s || true"),
    home("the alternative name of a device of the host", "ip link property add dev net1 altname cni0"),
    home("its own old name as an alternative name", "ip link property add dev net1 altname card"),
    home(
        "other alternative names than its own",
        "ip link property del dev net1 altname enp9s0 || true; ip link property add dev net1 altname x altname enp8s0",
    ),
    home(
        "its own alternative name on another link",
        "ip link property del dev net1 altname enp9s0 || true; ip link add v0 type veth peer name v1
         ip link property add dev v0 altname enp9s0",
    ),
    home("its old name on another link", "ip link add card type veth peer name v1"),
    home(
        "its old name as the alternative name of another link",
        "ip link add v0 type veth peer name v1; ip link property add dev v0 altname card",
    ),
    home("a port of a bridge", "ip link add br0 type bridge; ip link set net1 master br0 promisc on"),
    home(
        "below a macvlan",
        "ip link add mv0 link net1 type macvlan; ip link set mv0 up; ip link set net1 up",
    ),
    home(
        "a veth with a lower index in its place",
        "ip link set net1 down; ip link set net1 name other
         ip link add net1 index 20 address 02:00:00:00:00:77 type veth peer name v1 index 21
         ip link set net1 alias card; ip link set other alias '' address 02:00:00:00:00:01",
    ),
    home(
        "an ifb in its place",
        "ip link set net1 down; ip link set net1 name other alias ''
         ip link add net1 address 02:00:00:00:00:77 type ifb; ip link set net1 alias cni0 up",
    ),
    home(
        "a bridge in its place",
        "ip link set net1 down; ip link set net1 name other alias ''
         ip link add net1 address 02:00:00:00:00:77 type bridge; ip link set net1 alias card up",
    ),
    home(
        "a macvlan of its own in its place",
        "ip link set net1 down; ip link set net1 name other alias '' up
         ip link add net1 link other address 02:00:00:00:00:77 type macvlan; ip link set net1 alias card",
    ),
    home(
        "lo in its place",
        "ip link set net1 down; ip link set net1 name other alias ''
         ip link set lo down; ip link set lo name net1 alias card",
    ),
    home(
        "to another namespace and back, where a veth has its name and its index",
        "ip link set net1 netns $NESTED
         ip link add net1 index 50 address 02:00:00:00:00:77 type veth peer name v1 index 51
         ip link set net1 alias card
         nsenter --net=$NESTED ip link set net1 name back netns $OWN",
    ),
    gone("in another namespace", "ip link set net1 netns $NESTED"),
    gone(
        "in another namespace, with a veth in its place that goes there",
        "ip link set net1 netns $NESTED
         ip link add net1 index 50 address 02:00:00:00:00:77 type veth peer name v1 index 51 netns $NESTED
         ip link set net1 alias card up; ip address add 10.7.0.10/24 dev net1",
    ),
    gone("deleted", "ip link del net1"),
    gone(
        "deleted, and made again with its name, index, MAC address, alias and addresses",
        "ip link del net1
         ip link add net1 index 50 address 02:00:00:00:00:77 mtu 1400 type veth peer name v1 index 51
         ip link set net1 alias card up; ip address add 10.7.0.10/24 dev net1",
    ),
    gone(
        "deleted, with an ifb in its place",
        "ip link del net1; ip link add net1 index 50 type ifb; ip link set net1 alias card up",
    ),
    gone(
        "deleted, with a bridge in its place",
        "ip link del net1; ip link add net1 index 50 type bridge; ip link set net1 alias card up",
    ),
    gone(
        "deleted, with lo in its place",
        "ip link del net1; ip link set lo down; ip link set lo name net1 alias card",
    ),
];

/// Its high index lets a pod make links with lower ones.
fn card(host: &Host, lan: &Ns) {
    host.ip(&format!("link add card index 50 type veth peer name lan0 index 60 netns {}", lan.path()));
    lan.ip("link set lan0 up");
    host.ip("link set card mtu 1400 address 02:00:00:00:00:77 alias uplink txqueuelen 500 group 3 up");
    host.ip("link property add dev card altname enp9s0");
    host.ip("address add 10.7.0.2/24 brd + dev card");
    host.ip("address add fd00:7::2/64 dev card");
}

/// Moving to a given index needs 5.13.
fn gives_indexes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()) >= Some((5, 13))
}

#[test]
fn the_host_is_the_same_before_and_after_whatever_a_pod_does_to_its_device() {
    let (host, lan) = (Host::hasty(), Ns::new());
    host.ip("link add cni0 type bridge");
    let bare = Snapshot::of_ns(&host);
    card(&host, &lan);
    let whole = Snapshot::of_ns(&host);
    let network = network(&host);
    for Way { name, script, end } in WAYS {
        if script.contains("netns $OWN") && !gives_indexes() {
            cnimble_tests::announce("NOTE", &format!("not on this kernel: {name}"));
            continue;
        }
        let (pod, nested) = (Pod::new(), Pod::new());
        let attachment = attachment("c1", &pod);
        let result = network.added(&attachment);
        pod.shell(&format!("NESTED={} OWN={}\n{script}", nested.path(), pod.path()));
        let before = if *end == End::Home { &whole } else { &bare };
        for time in ["after DEL", "after a second DEL"] {
            let outcome = network.del(&attachment, Some(&result)).success();
            before.assert_same(&Snapshot::of_ns(&host), &format!("{name}, {time}"));
            let is_gone = *end == End::Gone;
            assert_eq!(
                (leases(&host), recorded(&host)),
                (Vec::new(), usize::from(is_gone)),
                "{name}, {time}"
            );
            let told = outcome.stderr.contains("it may be in a namespace that the pod has made");
            assert_eq!(told, is_gone, "{name}: {}", outcome.describe());
        }
        network.deleted(&attachment, None);
        network.gc(Some(json!([]))).success();
        before.assert_same(&Snapshot::of_ns(&host), &format!("{name}, after GC"));
        assert_eq!(recorded(&host), 0, "{name}, after GC");
        if *end == End::Gone {
            drop((pod, nested));
            let is_gone = || lan.links() == ["lo"];
            assert!(cnimble_tests::wait_until(cnimble_tests::PATIENCE, is_gone), "{name}");
            card(&host, &lan);
            whole.assert_same(&Snapshot::of_ns(&host), "made again");
        }
    }
}

/// A veth with all marks of the device that a pod can write. The device is hidden.
const FORGE: &str = "ip link set net1 netns $NESTED
     ip link add net1 index 50 address 02:00:00:00:00:77 mtu 1400 type veth peer name v1 index 60
     ip link set net1 alias card";

/// The pod acts whenever DEL is about to ask the kernel for something. `act` gets the number of the call.
fn del_beside(
    network: &Network<'_>,
    attachment: &Attachment,
    mut act: impl FnMut(usize),
) -> (Outcome, usize) {
    let mut process = network.call("DEL", attachment, None).stepped(Places::Messages);
    let mut calls = 0;
    while process.look() == State::Ready {
        act(calls);
        process.step();
        calls += 1;
    }
    (Outcome::from("DEL", process.finish()), calls)
}

/// sysfs finds a link by its name only, and this one has another name each time.
#[test]
fn a_link_that_is_renamed_while_del_looks_is_not_the_device() {
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let (host, lan, pod, nested) = (Host::hasty(), Ns::new(), Pod::new(), Ns::new());
    let bare = Snapshot::of_ns(&host);
    card(&host, &lan);
    let network = network(&host).with("/ipam", json!({}));
    let attachment = attachment("c1", &pod);
    network.added(&attachment);
    pod.shell(&format!("NESTED={}\n{FORGE}", nested.path()));
    let names = ["net1", "other"];
    let (outcome, calls) = del_beside(&network, &attachment, |call| {
        pod.ip(&format!("link set {} name {}", names[call % 2], names[(call + 1) % 2]));
    });
    outcome.success();
    assert!(calls > 20, "{calls} calls are too few");
    bare.assert_same(&Snapshot::of_ns(&host), "the veth is still in the pod");
    assert!(names.iter().any(|name| pod.links().contains(&(*name).to_owned())));
}

/// The device is found, and has gone elsewhere when it shall be moved. Its index leads to another link.
#[test]
fn a_link_that_takes_the_place_of_the_device_while_it_is_moved_does_not_stay_on_the_host() {
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let (mut at, mut met) = (0, true);
    while met {
        let (host, lan, pod, nested) = (Host::hasty(), Ns::new(), Pod::new(), Ns::new());
        let bare = Snapshot::of_ns(&host);
        card(&host, &lan);
        let whole = Snapshot::of_ns(&host);
        let network = network(&host).with("/ipam", json!({}));
        let attachment = attachment("c1", &pod);
        network.added(&attachment);
        let forge = format!("ip link show net1 || exit 0; NESTED={}\n{FORGE}", nested.path());
        let (outcome, calls) = del_beside(&network, &attachment, |call| {
            if call == at {
                pod.shell(&forge);
            }
        });
        met = calls > at;
        outcome.success();
        let before = if host.links().contains(&"card".to_owned()) { &whole } else { &bare };
        before.assert_same(&Snapshot::of_ns(&host), &format!("taken before call {at}"));
        at += SWAPS;
    }
    assert!(at > 5 * SWAPS, "{at} calls are too few");
}

/// The stride of the calls before which the device is swapped.
const SWAPS: usize = 4;

/// From the pod with any state.
#[test]
fn a_device_that_the_kernel_returns_is_restored() {
    let (host, lan, pod) = (Host::hasty(), Ns::new(), Pod::new());
    card(&host, &lan);
    let before = Snapshot::of_ns(&host);
    let attachment = attachment("c1", &pod);
    let result = network(&host).added(&attachment);
    // Linux 5.10 knows it only in the namespace where it was set.
    let names_move = pod.run("ip link show dev enp9s0").status == 0;
    pod.shell(
        "ip link set net1 promisc on arp off mtu 1300 txqueuelen 7
         ip link property add dev net1 altname card; ip link property del dev net1 altname enp9s0 || true",
    );
    kernel_gives_back(&pod, "net1", &host);
    network(&host).deleted(&attachment, Some(&result));
    if names_move {
        before.assert_same(&Snapshot::of_ns(&host), "after DEL");
    }
    assert_eq!(recorded(&host), 0);
}

/// An alias that the pod writes moves no other link to the host.
#[test]
fn without_a_record_only_the_device_that_the_configuration_names_comes_home() {
    let (host, lan, pod) = (Host::hasty(), Ns::new(), Pod::new());
    host.ip("link add cni0 type bridge");
    let bare = Snapshot::of_ns(&host);
    let attachment = attachment("c1", &pod);
    for fake in [
        "ip link add net1 type ifb; ip link set net1 alias cni0",
        "ip link add net1 type ifb; ip link set net1 alias lent",
        "ip link add net1 type bridge; ip link set net1 alias card",
        "ip link set lo down; ip link set lo name net1 alias card",
    ] {
        pod.shell(fake);
        for _ in 0..2 {
            let outcome = network(&host).del(&attachment, None).success();
            // The kernel moves no bridge.
            let told = if fake.contains("bridge") {
                "net1 in the pod can't be moved to the host".to_owned()
            } else {
                format!("nothing shows that net1 in {} is a device that was added; left alone", pod.path())
            };
            assert!(outcome.stderr.contains(&told), "{fake}: {}", outcome.describe());
            bare.assert_same(&Snapshot::of_ns(&host), fake);
        }
        pod.shell("ip link del net1 || ip link set net1 name lo");
    }
    // As after the Go plugin's ADD.
    card(&host, &lan);
    host.shell(&format!("ip link set card alias card; ip link set card name net1 netns {}", pod.path()));
    network(&host).deleted(&attachment, None);
    assert_eq!(
        (names(&host), pod.links()),
        (vec!["card".to_owned(), "cni0".to_owned(), "lo".to_owned()], vec!["lo".to_owned()])
    );
    assert_eq!(recorded(&host), 0);
}
