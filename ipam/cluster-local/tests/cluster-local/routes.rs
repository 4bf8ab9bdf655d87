//! `cnimble node --cluster-local` on nodes of one link. Pods with addresses of blocks in etcd reach each
//! other without NAT, even with faults of etcd, the agents and the nodes.

use cnimble_tests::stream::Stream;
use cnimble_tests::{Host, PATIENCE, need, wait_until};

use super::site::{Member, Site};

/// Blocks of 16 addresses. A block is claimed with 14 of them.
const BOTH: &str = r#""blockSize": 28, "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]"#;

#[test]
fn pods_of_nodes_reach_each_other_without_nat_and_routes_follow_the_blocks() {
    routes_follow_the_blocks("");
}

#[test]
fn pods_of_bridges_reach_each_other_without_nat_and_routes_follow_the_blocks() {
    routes_follow_the_blocks("--plugin bridge");
}

fn routes_follow_the_blocks(options: &str) {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::with(&world, BOTH, options);
    site.join(1);
    // The file is written before etcd is asked.
    assert!(wait_until(PATIENCE, || site.members[0].conflist().exists()), "{}", site.members[0].log());
    site.members[0].says("run `cnimble ipam init --new` once for a new cluster");
    site.init();
    site.join(2);
    site.join(3);
    site.add_pods();
    site.settled();
    site.all_reach_all();
    site.members.iter().for_each(Member::check_pods);
    // More pods than a block has addresses need another block, and its route.
    let first = &mut site.members[0];
    let before = first.owned().len();
    while first.pods.len() < 20 {
        first.add_pod();
    }
    assert!(first.owned().len() > before);
    site.settled();
    site.all_reach_all();
    // A node joins.
    site.join(4);
    site.members[3].add_pod();
    site.settled();
    site.all_reach_all();
    // It is released, and the other nodes remove its routes.
    let gone = site.members.pop().unwrap();
    let theirs = gone.owned();
    drop(gone);
    assert!(site.members[0].routes().iter().any(|route| route.contains(&theirs[0])));
    site.release("node4");
    site.settled();
    site.all_reach_all();
    let first = &site.members[0];
    assert_eq!(first.metric("conditions"), Some(0), "{}", first.log());
    // Each family has one rule and its guard, with any number of blocks.
    let table = first.host.nft("list table inet cnimble-node");
    assert_eq!(table.matches("saddr").count(), 4, "{table}");
}

#[test]
fn borrowed_addresses_get_routes_of_their_own_within_the_blocks_of_others() {
    addresses_are_borrowed("");
}

#[test]
fn borrowed_addresses_on_bridges_get_routes_of_their_own_within_the_blocks_of_others() {
    addresses_are_borrowed("--plugin bridge");
}

fn addresses_are_borrowed(options: &str) {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    // Two blocks for three nodes.
    let mut site = Site::with(&world, r#""blockSize": 28, "subnet": "10.1.0.0/27""#, options);
    site.join(1);
    site.init();
    site.members[0].add_pod();
    site.join(2);
    site.members[1].add_pod();
    site.settled();
    site.join(3);
    site.members[2].add_pod();
    site.members[2].add_pod();
    let owned = site.members[2].owned();
    assert!(owned.len() == 2 && owned.iter().all(|cidr| cidr.ends_with("/32")), "{owned:?}");
    site.settled();
    site.all_reach_all();
    site.members[2].del_pod();
    site.settled();
    site.all_reach_all();
}

#[test]
fn nothing_stops_while_etcd_is_away_and_agents_are_killed() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::new(&world, BOTH);
    site.join(1);
    site.init();
    site.join(2);
    site.join(3);
    site.add_pods();
    site.settled();
    let ends = |one: &Member, other: &Member, n: usize| {
        Stream::between(&one.pods[0].ns, &other.pods[0].ns, &other.pods[0].ips[n])
    };
    let [first, second, third] = &site.members[..] else { panic!() };
    let (stream, six) = (ends(first, second, 0), ends(third, first, 1));
    let flows = |when: &str| [&stream, &six].iter().for_each(|stream| stream.flows(when));
    flows("at first");
    let before: Vec<Vec<String>> = site.members.iter().map(Member::routes).collect();
    let unchanged = |site: &Site<'_>, when: &str| {
        let now: Vec<Vec<String>> = site.members.iter().map(Member::routes).collect();
        assert_eq!(now, before, "{when}");
        flows(when);
    };
    site.etcd.kill(0);
    for member in &site.members {
        member.says("nodes are as they were told of last: etcd doesn't answer");
        assert_eq!((member.metric("api_reachable"), member.metric("failures")), (Some(0), Some(0)));
    }
    unchanged(&site, "etcd is away");
    let first = &mut site.members[0];
    // A route that is removed meanwhile is restored.
    let removed = first.routes()[0].split(' ').next().unwrap().to_owned();
    first.host.ip(&format!("route del {removed}"));
    let is_back = || first.routes().iter().any(|route| route.starts_with(&format!("{removed} ")));
    assert!(wait_until(PATIENCE, is_back), "{}", first.log());
    // Pods in the node's block are added and removed.
    first.add_pod();
    first.del_pod();
    // An agent that knows no nodes removes no route.
    first.agent = None;
    first.start();
    first.says_again("nodes are as they were told of last: etcd doesn't answer");
    unchanged(&site, "an agent was killed while etcd was away");
    site.etcd.member(0);
    site.etcd.settle();
    for member in &site.members {
        let is_told = || member.metric("api_reachable") == Some(1);
        assert!(wait_until(PATIENCE, is_told), "{}", member.log());
    }
    site.settled();
    flows("etcd is back");
    for member in &mut site.members {
        member.agent = None;
        member.start();
    }
    site.settled();
    flows("all agents were killed");
    stream.end();
    six.end();
}

/// The backup lacks the second node, and its routes.
#[test]
fn agents_go_on_by_themselves_after_a_backup_of_etcd_is_restored() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::new(&world, BOTH);
    site.offline = 20;
    site.join(1);
    site.init();
    site.members[0].add_pod();
    let backup = site.etcd.backup();
    site.join(2);
    site.members[1].add_pod();
    site.settled();
    let before: Vec<Vec<String>> = site.members.iter().map(Member::owned).collect();
    site.etcd.restore(&backup);
    for member in &site.members {
        member.says("nodes claim again what they own");
    }
    site.all_reach_all();
    // Etcd reports nodes to the agents again, and all have a spare block.
    for member in &site.members {
        member.says("the cluster's store reports nodes again");
        let is_well = || member.metric("api_reachable") == Some(1);
        assert!(wait_until(PATIENCE, is_well), "{}", member.log());
    }
    site.settled();
    let now: Vec<Vec<String>> = site.members.iter().map(Member::owned).collect();
    assert!(before.iter().zip(&now).all(|(before, now)| before.iter().all(|cidr| now.contains(cidr))));
    site.join(3);
    site.members[2].add_pod();
    site.settled();
    site.all_reach_all();
}

/// An emptied etcd looks like one whose nodes have gone. Without routes all pods of other nodes would be lost.
#[test]
fn routes_stay_when_etcd_is_emptied() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let site = Site::of_two(&world, BOTH);
    let before: Vec<Vec<String>> = site.members.iter().map(Member::routes).collect();
    assert!(before.iter().all(|routes| !routes.is_empty()));
    site.etcd.empty();
    site.members.iter().for_each(|member| member.says("etcd has lost network cnimble"));
    let now: Vec<Vec<String>> = site.members.iter().map(Member::routes).collect();
    assert_eq!(now, before);
    site.all_reach_all();
}

#[test]
fn a_node_without_a_way_to_it_is_a_condition_and_no_illness() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::of_two(&world, r#""blockSize": 28, "subnet": "10.1.0.0/16""#);
    let [first, second] = &mut site.members[..] else { panic!() };
    second.agent = None;
    second.options = "--node-ip 198.51.100.7".to_owned();
    second.start();
    first.healthy("198.51.100.7 is on no link of this host");
    // If the whole subnet is on a link of the host, nothing is changed.
    second.agent = None;
    second.options = String::new();
    second.start();
    site.settled();
    let first = &site.members[0];
    first.host.ip("link add other type bridge");
    first.host.ip("addr add 10.1.0.1/16 dev other");
    first.host.ip("link set other up");
    first.healthy("is refused: this host is connected to 10.1.0.0/16");
    first.host.ip("link del other");
    site.settled();
    site.all_reach_all();
}

#[test]
fn once_writes_what_is_missing_and_then_nothing() {
    need!("ip", "nft", "etcd", "etcdctl");
    let world = Site::world();
    let mut site = Site::of_two(&world, BOTH);
    let first = &mut site.members[0];
    first.agent = None;
    first.command("node --remove").success();
    assert!(first.routes().is_empty() && !first.conflist().exists());
    let (count, said) = (site.members[1].owned().len(), site.members[0].once());
    assert_eq!((&said["routes"], &said["conditions"]), (&count.into(), &serde_json::json!([])), "{said}");
    // The two other writes are the file and the table.
    assert_eq!(said["writes"], count + 2, "{said}");
    let again = site.members[0].once();
    assert_eq!((&again["routes"], &again["writes"]), (&count.into(), &0.into()), "{again}");
    site.all_reach_all();
    let bare = Host::new();
    std::fs::write(bare.dir().join("pods.json"), "{}").unwrap();
    let member = Member::alone(bare, 9);
    let errors = member.command_of("node --once").stderr;
    assert!(errors.contains("--cluster-local can't be used"), "{errors}");
}
