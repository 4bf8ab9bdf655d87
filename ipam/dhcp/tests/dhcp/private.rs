//! A runtime's own mount namespace: the daemon does not see its paths.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use cnimble_tests::{Background, Outcome, plugin_dir};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use server::{DISCOVER, RELEASE, REQUEST};

use super::*;

/// Outside of the runtime's mount namespace.
fn start_daemon(host: &Host) -> Background {
    let mut command = host.command(plugin_dir().join("dhcp"));
    command.args(["daemon", "-socketpath"]).arg(socket(host)).stdin(Stdio::null());
    let log = std::fs::File::options().create(true).append(true).open(host.dir().join("daemon.log")).unwrap();
    let daemon = Background::start(command.stdout(Stdio::null()).stderr(log));
    assert!(wait_until(PATIENCE, || UnixStream::connect(socket(host)).is_ok()));
    daemon
}

fn log(host: &Host) -> String {
    std::fs::read_to_string(host.dir().join("daemon.log")).unwrap()
}

/// As a pod's first container does.
fn process(pod: &Pod) -> Background {
    Background::start(pod.command("sleep").arg("inf").stdin(Stdio::null()))
}

/// The runtime sees the pod at the attachment's path only.
fn call(network: &Network<'_>, verb: &str, pod: &Pod, prev: Option<&Value>) -> Outcome {
    let attachment = attachment(network.host, pod);
    network.call(verb, &attachment, prev).pinning(network.host.dir(), &[pod]).run()
}

fn attachment(host: &Host, pod: &Pod) -> Attachment {
    Attachment::new("c1", pod).netns(host.dir().join("pin0").to_str().unwrap())
}

/// The new daemon answers.
fn restart(host: &Host, mut daemon: Background) -> Background {
    kill(Pid::from_raw(i32::try_from(daemon.pid()).unwrap()), Signal::SIGKILL).unwrap();
    assert!(wait_until(PATIENCE, || !daemon.running()));
    self::start_daemon(host)
}

#[test]
fn a_namespace_that_only_the_runtime_sees_is_served_and_found_after_a_restart() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    server.now(|manner| (manner.seconds, manner.times) = (3600, Some((1, 3000))));
    let daemon = start_daemon(&host);
    let inside = process(&pod);
    let network = network(&host);
    let result = call(&network, "ADD", &pod, None).result();
    assert_eq!((address(&result), ipv4(&pod)), ("10.8.0.50/24", vec!["10.8.0.50/24".to_owned()]));
    // A busy machine may need more.
    let discovers = server.said(DISCOVER).len();
    let _daemon = restart(&host, daemon);
    let renewals = || server.said(REQUEST).iter().filter(|said| said.has == FIRST).count();
    let before = renewals();
    assert!(wait_until(PATIENCE, || renewals() > before), "{}", log(&host));
    call(&network, "CHECK", &pod, Some(&result)).success();
    assert_eq!((server.said(DISCOVER).len(), server.said(RELEASE).len()), (discovers, 0));
    // Nothing else refers to its namespace.
    drop(inside);
    assert_eq!(server.wait(RELEASE, 1).has, FIRST);
    assert!(wait_until(PATIENCE, || leases(&host).is_empty()));
}

#[test]
fn a_lease_without_its_namespace_is_kept_and_logged() {
    let (host, pod) = (host(), Pod::new());
    let server = server(&host);
    let daemon = start_daemon(&host);
    let inside = process(&pod);
    let network = network(&host);
    let result = call(&network, "ADD", &pod, None).result();
    kill(Pid::from_raw(i32::try_from(daemon.pid()).unwrap()), Signal::SIGSTOP).unwrap();
    drop(inside);
    let _daemon = restart(&host, daemon);
    assert!(wait_until(PATIENCE, || log(&host).contains("its lease is kept")), "{}", log(&host));
    assert_eq!((leases(&host).len(), server.said(RELEASE).len()), (1, 0));
    call(&network, "CHECK", &pod, Some(&result)).success();
    // The daemon finds it with the first process.
    let _inside = process(&pod);
    call(&network, "DEL", &pod, Some(&result)).success();
    assert!(leases(&host).is_empty());
}

/// As with 829e098, daemon or plugin.
#[test]
fn a_question_without_a_descriptor_is_answered() {
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let _daemon = start_daemon(&host);
    host.cable("port", &pod, "eth0");
    host.ip("link set port master br0");
    pod.ip("link set eth0 up");
    let whose = json!({"network": "lan", "container": "c1", "ifname": "eth0"});
    let wanted =
        json!({"whose": whose, "netns": pod.path(), "provide": [], "request": [1, 3], "priority": null});
    let ask = |question: Value| {
        let mut stream = UnixStream::connect(socket(&host)).unwrap();
        stream.write_all(format!("{question}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask(json!({"add": wanted}));
    assert!(answer.contains("10.8.0.50"), "{answer}");
    let record = std::fs::read_to_string(&leases(&host)[0]).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&record).unwrap()["wanted"], wanted);
    assert_eq!(ask(json!({"del": whose})), "\"done\"\n");
}
