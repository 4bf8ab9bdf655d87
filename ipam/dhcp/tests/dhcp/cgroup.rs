//! A daemon outlives its plugin's control group.

use std::process::Stdio;

use cnimble_tests::{Background, MessageBus, need, skip};

use super::*;

/// A control group of version 2.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Group, String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = mounts.lines().find(|line| line.contains(" - cgroup2 ")).ok_or("no cgroup2 is mounted")?;
        let root = Path::new(root.split(' ').nth(4).unwrap());
        // Other PID namespaces may have the same process ID.
        let made = tempfile::Builder::new().prefix("cnimble-test-").tempdir_in(root);
        made.map(|group| Group(group.keep())).map_err(|err| format!("{}: {err}", root.display()))
    }

    fn processes(&self) -> String {
        std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let removed = wait_until(PATIENCE, || std::fs::remove_dir(&self.0).is_ok());
        assert!(removed || std::thread::panicking(), "{} stays", self.0.display());
    }
}

/// ADD in a control group; kills what is left there.
fn assert_leaves_its_group() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let line = format!("echo 0 >{}/cgroup.procs && exec \"$0\" \"$@\"", group.0.display());
    let result = network.call("ADD", &attachment, None).under(&["sh", "-c", &line]).run().result();
    let daemon = daemons(&socket(&host));
    assert_eq!((daemon.len(), group.processes().as_str()), (1, ""));
    std::fs::write(group.0.join("cgroup.kill"), "1").unwrap();
    network.check(&attachment, &result).success();
    assert_eq!(daemons(&socket(&host)), daemon);
    network.deleted(&attachment, Some(&result));
    assert_ended(&host);
}

#[test]
fn a_daemon_leaves_the_control_group_of_the_plugin_that_starts_it() {
    assert_leaves_its_group();
}

/// On a small system, or in a container.
#[test]
fn under_systemd_without_a_message_bus_a_daemon_leaves_its_control_group_too() {
    // A sign that systemd is PID 1.
    std::fs::create_dir_all("/run/systemd/system").unwrap();
    assert_leaves_its_group();
}

/// The bus checks the message. No process has systemd's name.
#[test]
fn systemd_is_asked_for_a_scope_and_an_add_succeeds_without_it() {
    need!("dbus-daemon", "dbus-monitor");
    let (host, pod) = (host(), Pod::new());
    let _server = server(&host);
    let bus = MessageBus::start(&host);
    let address = bus.address();
    let seen = host.dir().join("seen");
    let mut command = host.command("dbus-monitor");
    command.args(["--address", &address, "member='StartTransientUnit'"]).stdin(Stdio::null());
    let _monitor = Background::start(command.stdout(std::fs::File::create(&seen).unwrap()));
    let seen = || std::fs::read_to_string(&seen).unwrap();
    // The bus sends it to a new monitor.
    assert!(wait_until(PATIENCE, || seen().contains("NameLost")), "{}", seen());
    // A sign that systemd is PID 1.
    std::fs::create_dir_all("/run/systemd/system").unwrap();
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    network.call("ADD", &attachment, None).env("DBUS_SYSTEM_BUS_ADDRESS", &address).run().result();
    let daemon = daemons(&socket(&host));
    let expected = format!("string \"cnimble-dhcp-{}.scope\"", daemon[0]);
    assert!(wait_until(PATIENCE, || seen().contains(&expected)), "{}", seen());
    let words: Vec<String> = seen().split_whitespace().map(str::to_owned).collect();
    let words = words.join(" ");
    for part in ["\"fail\"", "\"PIDs\" variant array [ uint32 0 ]", "\"inactive-or-failed\""] {
        assert!(words.contains(part), "{part}: {words}");
    }
    network.deleted(&attachment, None);
    assert_ended(&host);
}
