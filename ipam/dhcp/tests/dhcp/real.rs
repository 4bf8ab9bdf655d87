//! Real servers, from Debian's packages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cnimble_tests::{Background, Ns};

/// dnsmasq on an interface. It gives the addresses 10 to 99 of its /24 network, refuses what it doesn't know,
/// and doesn't ask whether an address is in use: that takes it three seconds.
pub(crate) struct Dnsmasq {
    log: PathBuf,
    _process: Background,
}

impl Dnsmasq {
    /// Starts it in `ns`, with its log in `dir`. `net` is the first three numbers of the network, `lease` what
    /// `--dhcp-range` takes as the time of a lease, `more` further options.
    pub(crate) fn start(ns: &Ns, dir: &Path, interface: &str, net: &str, lease: &str, more: &[&str]) -> Self {
        let log = dir.join("dnsmasq.log");
        let mut command = ns.command("dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--no-ping"]);
        command.args(["--bind-dynamic", "--user=root", "--pid-file=", "--dhcp-authoritative"]);
        command.args(["--leasefile-ro", "--log-dhcp", "--log-facility=-"]);
        command.arg(format!("--interface={interface}"));
        command.arg(format!("--dhcp-range={net}.10,{net}.99,{lease}")).args(more);
        command.stdin(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        Dnsmasq { log, _process: Background::start(&mut command) }
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// How often it has logged messages of this kind, by the client's hardware address.
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
