//! The units of systemd.

use std::process::Stdio;

use cnimble_tests::{Background, LIMIT, Node, need, plugin_dir};
use server::RELEASE;

use super::*;

/// A file of the folder `systemd`.
fn unit(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("systemd/cnimble-dhcp.{kind}"))
}

/// What a key of the service says.
fn service(key: &str) -> String {
    let text = std::fs::read_to_string(unit("service")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
    value.unwrap_or_else(|| panic!("the service has no {key}")).to_owned()
}

#[test]
fn systemd_has_nothing_to_say_against_the_units() {
    need!("systemd-analyze", "unshare", "nsenter");
    // The service names a program below /opt/cni/bin.
    let node = Node::new();
    for kind in ["socket", "service"] {
        let line = format!("systemd-analyze verify --man=no {}", unit(kind).display());
        let verified = node.run(&line).success();
        assert!(verified.stdout.is_empty() && verified.stderr.is_empty(), "{}", verified.describe());
    }
}

#[test]
fn a_keeper_starts_by_its_socket_and_does_all_with_the_services_privileges() {
    need!("systemd-socket-activate", "setpriv");
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (60, Some((1, 50))));
    let log = host.dir().join("keeper.log");
    let privileges: String = service("CapabilityBoundingSet")
        .split(' ')
        .map(|name| format!(",+{}", name.to_lowercase()))
        .collect();
    let words = service("ExecStart");
    let words: Vec<&str> = words.split(' ').collect();
    let ["/opt/cni/bin/dhcp", options @ .., "-socketpath", "/run/cnimble/dhcp.sock"] = &words[..] else {
        panic!("{words:?}")
    };
    let mut command = host.command("setpriv");
    command
        .args(["--no-new-privs", "--inh-caps=-all"])
        .arg(format!("--bounding-set=-all{}", privileges.replace("cap_", "")));
    command.args(["systemd-socket-activate", "--listen"]).arg(socket(&host)).arg(plugin_dir().join("dhcp"));
    command.args(options).arg("-socketpath").arg(socket(&host));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let keeper = Background::start(&mut command);
    assert!(wait_until(PATIENCE, || socket(&host).exists()));

    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    // Nobody else was started.
    assert_eq!(keepers(&socket(&host)), [i32::try_from(keeper.pid()).unwrap()]);
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(told.contains("c1/lan/eth0: 10.8.0.50 from 10.8.0.1"), "{told}");
    // It is the keeper that changes the interface.
    server.now(|manner| manner.first = Ipv4Addr::new(10, 8, 0, 60));
    wait_for(&pod, &["10.8.0.60/24"]);
    network.deleted(&attachment, Some(&result));
    server.wait(RELEASE, 1);
    // It ends by itself, and the socket stays systemd's.
    let ended = keeper.finish(LIMIT);
    assert!(ended.status.success(), "{ended:?}");
    assert!(socket(&host).exists() && lease_files(&host).is_empty());
}
