//! The lease daemon: started, killed, replaced.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use cnimble_tests::Background;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use server::{DISCOVER, RELEASE, REQUEST};

use super::*;

#[track_caller]
fn kill_daemon(host: &Host) {
    let daemons = daemons(&socket(host));
    let [daemon] = daemons[..] else { panic!("{daemons:?}") };
    kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    assert!(wait_until(PATIENCE, || self::daemons(&socket(host)).is_empty()));
}

#[test]
fn a_killed_daemon_loses_no_lease() {
    let (host, pod, other) = (host(), Pod::new(), Pod::new());
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (3600, Some((2, 3000))));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let id = b"\0c1/lan/eth0";
    let discovers = || server.said(DISCOVER).iter().filter(|said| said.options[&61] == id).count();
    let asked = discovers();
    kill_daemon(&host);
    // As after an interrupted write.
    std::fs::write(host.dir().join("dhcp.leases/.new-x"), "{\"half").unwrap();
    let renewals = || server.said(REQUEST).iter().filter(|said| said.has == FIRST).count();
    let before = renewals();
    // Any pod's verb starts a daemon, which resumes the leases.
    network.added(&Attachment::new("c2", &other));
    assert!(wait_until(PATIENCE, || renewals() > before));
    assert_eq!((discovers(), leases(&host).len()), (asked, 2), "{:?}", leases(&host));
    network.check(&attachment, &result).success();
    kill_daemon(&host);
    network.deleted(&attachment, Some(&result));
    server.wait(RELEASE, 1);
    network.deleted(&Attachment::new("c2", &other), None);
    assert_ended(&host);
}

/// The plugin tuning sets another one, and an ipvlan has its master's.
#[test]
fn a_killed_daemon_loses_no_lease_of_an_interface_with_another_hardware_address() {
    let (host, pod, other) = (host(), Pod::new(), Pod::new());
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (3600, Some((2, 3000))));
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    pod.ip("link set eth0 address 02:00:00:00:00:77");
    kill_daemon(&host);
    let renewals = || server.said(REQUEST).iter().filter(|said| said.has == FIRST).count();
    let before = renewals();
    network.added(&Attachment::new("c2", &other));
    assert!(wait_until(PATIENCE, || renewals() > before), "{:?}", leases(&host));
    assert_eq!((leases(&host).len(), server.said(RELEASE).len()), (2, 0));
    network.deleted(&attachment, None);
    network.deleted(&Attachment::new("c2", &other), None);
    assert_ended(&host);
}

#[test]
fn a_daemon_outlives_the_reader_of_its_log() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let (reader, log) = std::io::pipe().unwrap();
    let mut command = host.command(cnimble_tests::plugin_dir().join("dhcp"));
    command.args(["daemon", "-socketpath"]).arg(socket(&host)).stderr(log);
    let mut daemon = Background::start(&mut command);
    assert!(wait_until(PATIENCE, || socket(&host).exists()));
    drop(reader);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    assert!(daemon.running());
    network.deleted(&attachment, None);
    assert!(daemon.running());
}

/// For a listening socket the kernel examines each packet.
#[test]
fn no_packet_socket_stays_in_a_pod() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let sockets = || pod.within(|| std::fs::read_to_string("/proc/thread-self/net/packet").unwrap());
    let is_none = || sockets().lines().count() == 1;
    assert!(wait_until(PATIENCE, is_none), "{}", sockets());
    network.deleted(&attachment, Some(&result));
    server.wait(RELEASE, 1);
    assert!(wait_until(PATIENCE, is_none), "{}", sockets());
    assert_ended(&host);
}

#[test]
fn an_add_survives_the_end_of_its_daemon() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| manner.silent = true);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| network.added(&attachment));
        server.wait(DISCOVER, 1);
        kill_daemon(&host);
        server.now(|manner| manner.silent = false);
        assert_eq!(address(&added.join().unwrap()), "10.8.0.50/24");
    });
    network.deleted(&attachment, None);
    assert_ended(&host);
}

#[test]
fn the_lease_of_a_killed_add_is_released() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| manner.silent = true);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let call = network.call("ADD", &attachment, None).under(&["timeout", "--signal=TERM", "1"]);
    let stopped = call.run();
    assert!(stopped.status == 124 && stopped.text().contains("SIGTERM"), "{}", stopped.describe());
    assert!(!server.said(DISCOVER).is_empty());
    assert_eq!(pod.links(), ["lo"]);
    assert_ended(&host);
}

#[test]
fn the_lease_of_a_dead_pod_is_released() {
    let host = host();
    let server = server(&host);
    let pod = Pod::new();
    network(&host).added(&Attachment::new("c1", &pod));
    drop(pod);
    let said = server.wait(RELEASE, 1);
    assert_eq!(said.has, FIRST);
    assert_ended(&host);
}

#[test]
fn leases_of_another_boot_and_invalid_files_are_void() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    kill_daemon(&host);
    let file = leases(&host).pop().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    record["boot"] = json!("another");
    std::fs::write(&file, record.to_string()).unwrap();
    std::fs::write(file.with_file_name("README"), "not ours").unwrap();
    let err = network.check(&attachment, &result).error();
    assert!(err.code == 103 && err.all().contains("the daemon knows no lease for"), "{err:?}");
    assert_eq!(leases(&host), [file.with_file_name("README")]);
    network.deleted(&attachment, None);
}

#[test]
fn a_go_daemon_at_the_socket_is_named() {
    let (host, pod) = (host(), Pod::new());
    let listener = UnixListener::bind(socket(&host)).unwrap();
    let daemon = std::thread::spawn(move || {
        // For ADD, and for STATUS.
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
        }
    });
    let network = network(&host);
    let err = network.add(&Attachment::new("c1", &pod)).error();
    assert!(err.code == 7 && err.all().contains("Go plugins' dhcp daemon"), "{err:?}");
    assert_eq!(pod.links(), ["lo"]);
    let err = network.status().error();
    assert!(err.code == 50, "{err:?}");
    daemon.join().unwrap();
}

/// As `rpc.DialHTTP` of Go's net/rpc sends and shows it.
#[test]
fn a_client_of_gos_rpc_is_told_which_daemon_listens() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    let mut stream = UnixStream::connect(socket(&host)).unwrap();
    stream.write_all(b"CONNECT /_goRPC_ HTTP/1.0\n\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 501 cnimble's lease daemon listens here"), "{answer:?}");
    assert!(answer.ends_with("\r\n\r\n") && answer.lines().count() == 2, "{answer:?}");
    network.deleted(&attachment, None);
}

#[test]
fn status_says_why_no_daemon_can_start() {
    let host = host();
    let network = network(&host).with("/ipam/daemonSocketPath", json!("/proc/nowhere/dhcp.sock"));
    let err = network.status().error();
    assert!(err.code == 50 && err.all().contains("/proc/nowhere/dhcp.leases"), "{err:?}");
    std::fs::write(socket(&host), "").unwrap();
    let err = self::network(&host).status().error();
    assert!(err.code == 50 && err.all().contains("is no socket"), "{err:?}");
}

#[test]
fn status_asks_a_running_daemon_and_starts_none() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let network = network(&host);
    network.status().success();
    // A started daemon would run for a second.
    assert_eq!(daemons(&socket(&host)), [0; 0]);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    network.status().success();
    network.deleted(&attachment, None);
    assert_ended(&host);
    network.status().success();
}

#[test]
fn a_second_daemon_of_a_socket_exits_at_once() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.added(&attachment);
    let program = cnimble_tests::plugin_dir().join("dhcp");
    let line = format!("{} daemon -socketpath {}", program.display(), socket(&host).display());
    let second = host.run(&line);
    assert!(
        second.status == 1 && second.stderr.contains("another lease daemon runs"),
        "{}",
        second.describe()
    );
    let none = host.run(&format!("{} daemon -nonsense", program.display()));
    assert!(none.status == 2 && none.stderr.contains("usage: dhcp daemon"), "{}", none.describe());
    network.deleted(&attachment, None);
}
