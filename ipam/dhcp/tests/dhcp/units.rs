use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

use cnimble_tests::{Background, LIMIT, Node, need, plugin_dir};
use server::{DISCOVER, RELEASE};

use super::*;

/// In the folder `systemd`.
fn unit(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("systemd/cnimble-dhcp.{kind}"))
}

fn service(key: &str) -> String {
    let text = std::fs::read_to_string(unit("service")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("{key}=")));
    value.unwrap_or_else(|| panic!("the service has no {key}")).to_owned()
}

#[test]
fn systemd_accepts_the_units() {
    need!("systemd-analyze", "unshare", "nsenter");
    // The program is below /opt/cni/bin.
    let node = Node::new();
    for kind in ["socket", "service"] {
        let line = format!("systemd-analyze verify --man=no {}", unit(kind).display());
        let verified = node.run(&line).success();
        assert!(verified.stdout.is_empty() && verified.stderr.is_empty(), "{}", verified.describe());
    }
}

#[test]
fn a_daemon_started_by_its_socket_works_with_the_services_privileges() {
    need!("systemd-socket-activate", "setpriv");
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (60, Some((1, 50))));
    let log = host.dir().join("daemon.log");
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
    let daemon = Background::start(&mut command);
    // The path appears before the socket listens.
    assert!(wait_until(PATIENCE, || listeners(&host, &socket(&host)) == 1));

    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    // No other daemon runs.
    assert_eq!(daemons(&socket(&host)), [i32::try_from(daemon.pid()).unwrap()]);
    let logged = std::fs::read_to_string(&log).unwrap();
    assert!(logged.contains("c1/lan/eth0: 10.8.0.50 from 10.8.0.1"), "{logged}");
    // The lease daemon changes the interface.
    server.now(|manner| manner.first = Ipv4Addr::new(10, 8, 0, 60));
    wait_for(&pod, &["10.8.0.60/24"]);
    network.deleted(&attachment, Some(&result));
    server.wait(RELEASE, 1);
    // The socket remains systemd's.
    let ended = daemon.finish(LIMIT);
    assert!(ended.status.success(), "{ended:?}");
    assert!(socket(&host).exists() && lease_files(&host).is_empty());
}

/// One socket's file may have been removed.
fn listeners(host: &Host, path: &Path) -> usize {
    let sockets = host.within(|| std::fs::read_to_string("/proc/thread-self/net/unix").unwrap());
    // __SO_ACCEPTCON: the socket listens.
    let listens = |line: &&str| line.contains(" 00010000 ") && line.ends_with(path.to_str().unwrap());
    sockets.lines().filter(listens).count()
}

/// At the first connection to `path`.
fn activated(host: &Host, path: &Path, options: &[&str]) -> Background {
    let before = listeners(host, path);
    let mut command = host.command("systemd-socket-activate");
    command.arg("--listen").arg(path).arg(plugin_dir().join("dhcp")).arg("daemon").args(options);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let unit = Background::start(&mut command);
    let listens = || listeners(host, path) > before;
    assert!(wait_until(PATIENCE, listens), "nothing listens at {}", path.display());
    unit
}

/// Debian's and Fedora's cni-dhcp pass a socket and no option.
#[test]
fn add_works_beside_the_distributions_unit_in_either_order() {
    need!("systemd-socket-activate");
    let usual = Path::new("/run/cnimble/dhcp.sock");
    for unit_first in [true, false] {
        let (host, pods) = (host(), [Pod::new(), Pod::new()]);
        let _server = server(&host);
        let mut network = network(&host);
        network.config["ipam"].as_object_mut().unwrap().remove("daemonSocketPath");
        let path = host.dir().join("cni/dhcp.sock");
        let named = network.with("/ipam/daemonSocketPath", json!(path));
        let [usual_pod, named_pod] =
            [("c1", &pods[0]), ("c2", &pods[1])].map(|(id, pod)| Attachment::new(id, pod));
        if !unit_first {
            network.added(&usual_pod);
        }
        let mut unit = activated(&host, &path, &[]);
        named.added(&named_pod);
        if unit_first {
            network.added(&usual_pod);
        }
        let kept = std::fs::read_dir(path.with_extension("leases")).unwrap().count();
        // One file is the lock.
        assert_eq!((daemons(usual).len(), unit.running(), kept), (1, true, 2), "unit first: {unit_first}");
        network.deleted(&usual_pod, None);
        named.deleted(&named_pod, None);
        assert!(wait_until(PATIENCE, || daemons(usual).is_empty()), "the plugin's daemon goes on");
    }
}

#[test]
fn status_does_not_wake_the_units_daemon() {
    need!("systemd-socket-activate");
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    // A sign that systemd is PID 1.
    std::fs::create_dir_all("/run/systemd/system").unwrap();
    let path = socket(&host);
    let unit = activated(&host, &path, &["-once", "-socketpath", path.to_str().unwrap()]);
    let network = network(&host);
    network.status().success();
    let waits = |unit: &Background| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", unit.pid())).unwrap();
        name.starts_with("systemd-socket")
    };
    assert!(waits(&unit));
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    assert!(!waits(&unit));
    network.status().success();
    network.deleted(&attachment, None);
}

/// As when the package enables its socket on a node with leases.
#[test]
fn a_unit_takes_over_the_leases_of_a_daemon_that_a_plugin_started() {
    need!("systemd-socket-activate");
    let (host, pods) = (host(), [Pod::new(), Pod::new()]);
    let server = server(&host);
    let network = network(&host);
    let [before, after] = [("c1", &pods[0]), ("c2", &pods[1])].map(|(id, pod)| Attachment::new(id, pod));
    let result = network.added(&before);
    let discovers = server.said(DISCOVER).len();
    let first = server.said(DISCOVER).remove(0).options[&61].clone();
    let path = socket(&host);
    let mut unit = activated(&host, &path, &["-once", "-socketpath", path.to_str().unwrap()]);
    network.added(&after);
    let unit_pid = i32::try_from(unit.pid()).unwrap();
    assert!(wait_until(PATIENCE, || daemons(&path) == [unit_pid]), "{:?}", daemons(&path));
    network.check(&before, &result).success();
    let later = server.said(DISCOVER).split_off(discovers);
    assert!(later.iter().all(|said| said.options[&61] != first), "the lease is not asked for again");
    assert_eq!(leases(&host).len(), 2);
    assert!(unit.running());
    network.deleted(&before, Some(&result));
    network.deleted(&after, None);
    server.wait(RELEASE, 2);
    assert!(unit.finish(LIMIT).status.success());
    assert!(path.exists() && lease_files(&host).is_empty());
}

#[test]
fn a_daemon_keeps_the_socket_of_another_program_at_exit() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    network(&host).added(&Attachment::new("c1", &pod));
    let path = socket(&host);
    // As systemd before it binds.
    std::fs::remove_file(&path).unwrap();
    let _listener = UnixListener::bind(&path).unwrap();
    drop(pod);
    assert!(wait_until(PATIENCE, || daemons(&path).is_empty()), "the daemon goes on");
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn the_package_enables_the_socket_and_keeps_an_administrators_choice() {
    need!("deb-systemd-helper", "sh");
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("lib/systemd/system");
    std::fs::create_dir_all(&units).unwrap();
    std::fs::copy(unit("socket"), units.join("cnimble-dhcp.socket")).unwrap();
    let enabled = root.path().join("etc/systemd/system/sockets.target.wants/cnimble-dhcp.socket");
    let run = |line: &str| {
        let mut command = std::process::Command::new("sh");
        command.args(["-ec", line]).env("DPKG_ROOT", root.path());
        command.env("DPKG_MAINTSCRIPT_PACKAGE", "cnimble-plugins");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package.d/deb");
        let done = command.current_dir(scripts).output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
    };
    run("sh ./cnimble-plugins.postinst configure");
    assert!(enabled.is_symlink());
    std::fs::remove_file(&enabled).unwrap();
    run("sh ./cnimble-plugins.postinst configure 0.1.0-1");
    assert!(!enabled.is_symlink());
    // The package is removed, and installed again.
    run("deb-systemd-helper purge cnimble-dhcp.socket && sh ./cnimble-plugins.postinst configure");
    assert!(enabled.is_symlink());
}
