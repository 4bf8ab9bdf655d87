use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cnimble_tests::{Background, Ns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// It gives the addresses 10 to 99 of its /24 network, and refuses unknown leases. It does not check whether an address
/// is in use: that takes three seconds.
pub(crate) struct Dnsmasq {
    log: PathBuf,
    process: Background,
}

impl Dnsmasq {
    /// `net` has the first three numbers of the network. `lease` is as in `--dhcp-range`. The log is in `dir`.
    pub(crate) fn start(ns: &Ns, dir: &Path, interface: &str, net: &str, lease: &str, more: &[&str]) -> Self {
        let log = dir.join("dnsmasq.log");
        let mut command = ns.command("dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--no-ping"]);
        command.args(["--bind-dynamic", "--user=root", "--pid-file=", "--dhcp-authoritative"]);
        command.args(["--leasefile-ro", "--log-dhcp", "--log-facility=-"]);
        command.arg(format!("--interface={interface}"));
        command.arg(format!("--dhcp-range={net}.10,{net}.99,{lease}")).args(more);
        command.stdin(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        Dnsmasq { log, process: Background::start(&mut command) }
    }

    /// Its file of options.
    pub(crate) fn reload(&self) {
        hang_up(&self.process);
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// By the client's hardware address.
    pub(crate) fn counts(&self, kind: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in self.log().lines() {
            // `… DHCPACK(br0) 10.8.0.10 0a:…`; a DISCOVER may have no address.
            let Some((_, said)) = line.split_once(&format!(" {kind}(")) else { continue };
            let mac = said.split_whitespace().find(|word| word.matches(':').count() == 5);
            *counts.entry(mac.unwrap_or_default().to_owned()).or_default() += 1;
        }
        counts
    }
}

/// Servers read their files again.
fn hang_up(process: &Background) {
    kill(Pid::from_raw(process.pid().try_into().unwrap()), Signal::SIGHUP).unwrap();
}

/// It refuses unknown leases, and forgets all at its exit.
pub(crate) struct Kea {
    log: PathBuf,
    file: PathBuf,
    /// Without the values of [`Kea::start_with`].
    config: Value,
    process: Background,
}

impl Kea {
    /// With files in `dir`. It gives 10.8.0.10 to 99 for a minute, without `taken`. T1 is one second, and T2 is
    /// `rebind` seconds.
    pub(crate) fn start(ns: &Ns, dir: &Path, interface: &str, rebind: u8, taken: &[&str]) -> Self {
        Kea::start_with(ns, dir, interface, rebind, taken, &json!({}))
    }

    /// With other values for keys of the subnet.
    pub(crate) fn start_with(
        ns: &Ns,
        dir: &Path,
        interface: &str,
        rebind: u8,
        taken: &[&str],
        more: &Value,
    ) -> Self {
        let others = taken.iter().enumerate();
        let others: Vec<Value> = others
            .map(|(n, address)| json!({"hw-address": format!("02:00:00:00:00:{n:02x}"), "ip-address": address}))
            .collect();
        // They survive a reload, but not another server.
        let leases = dir.join(cnimble_tests::unique("kea.leases"));
        let config = json!({"Dhcp4": {
            "interfaces-config": {"interfaces": [interface]},
            "lease-database": {"type": "memfile", "persist": true, "name": leases, "lfc-interval": 0},
            "authoritative": true,
            "valid-lifetime": 60,
            "renew-timer": 1,
            "rebind-timer": rebind,
            "subnet4": [{
                "id": 1,
                "subnet": "10.8.0.0/24",
                "pools": [{"pool": "10.8.0.10 - 10.8.0.99"}],
                "reservations": others,
                "option-data": [{"name": "routers", "data": "10.8.0.1"}],
            }],
            "loggers": [{"name": "kea-dhcp4", "severity": "DEBUG", "debuglevel": 40, "output_options": [{"output": "stdout"}]}],
        }});
        let (file, log) = (dir.join("kea.json"), dir.join(cnimble_tests::unique("kea.log")));
        std::fs::write(&file, with(&config, more)).unwrap();
        let mut command = ns.command("kea-dhcp4");
        // Servers must not share the PID file and the log's lock.
        command.env("KEA_PIDFILE_DIR", dir).env("KEA_LOCKFILE_DIR", "none");
        command.arg("-c").arg(&file).stdin(Stdio::null()).stdout(std::fs::File::create(&log).unwrap());
        Kea { log, file, config, process: Background::start(command.stderr(Stdio::null())) }
    }

    /// With other values than [`Kea::start_with`].
    pub(crate) fn reload(&self, more: &Value) {
        std::fs::write(&self.file, with(&self.config, more)).unwrap();
        hang_up(&self.process);
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }
}

fn with(config: &Value, more: &Value) -> String {
    let mut config = config.clone();
    let subnet = config.pointer_mut("/Dhcp4/subnet4/0").unwrap().as_object_mut().unwrap();
    subnet.extend(more.as_object().unwrap().clone());
    config.to_string()
}

/// One address of 32 bits, and this option 121 in hexadecimal digits.
pub(crate) fn cloud(option: &str) -> Value {
    let routers = json!({"name": "routers", "data": "10.8.0.1"});
    let classless = json!({"code": 121, "csv-format": false, "data": option});
    let pool = json!({"pool": "10.8.0.10 - 10.8.0.10"});
    json!({"subnet": "10.8.0.10/32", "interface": "br0", "pools": [pool], "option-data": [routers, classless]})
}

/// A relay to the server `to`, with the address `own`.
pub(crate) fn relay(ns: &Ns, own: &str, to: &str) -> Background {
    let mut command = ns.command("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file="]);
    command.arg(format!("--dhcp-relay={own},{to}")).args(["--log-facility=-", "--log-dhcp"]);
    Background::start(command.stdin(Stdio::null()).stderr(Stdio::null()))
}
