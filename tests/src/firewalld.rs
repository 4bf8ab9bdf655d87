//! The real firewalld, on a bus of its own.

use std::process::Stdio;

use crate::{Background, Host, MessageBus, Outcome, PATIENCE, missing, wait_until};

/// A firewalld that rules over one host. Its default zone is `public`. It ends with this value.
pub struct Firewalld<'h> {
    host: &'h Host,
    bus: &'h MessageBus,
    daemon: Background,
}

impl<'h> Firewalld<'h> {
    /// Starts firewalld with a configuration in the host's directory, and waits for its rules.
    ///
    /// # Errors
    /// The reason that there is none: it is not installed, or does not start here.
    pub fn start(host: &'h Host, bus: &'h MessageBus) -> Result<Self, String> {
        if let Some(why) = missing(&["firewalld", "firewall-cmd"]) {
            return Err(why);
        }
        let config = host.dir().join("firewalld");
        std::fs::create_dir(&config).unwrap();
        std::fs::write(config.join("firewalld.conf"), "DefaultZone=public\nFirewallBackend=nftables\n")
            .unwrap();
        let mut command = host.command("firewalld");
        command.args(["--nofork", "--nopid"]).arg(format!("--system-config={}", config.display()));
        command.arg(format!("--log-file={}", config.join("log").display()));
        command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut firewalld = Firewalld { host, bus, daemon: Background::start(&mut command) };
        // It takes the name before it makes its rules.
        let rules = || host.nft("list tables").contains("inet firewalld");
        let usable = |firewalld: &Self| firewalld.try_command(&["--state"]).status == 0 && rules();
        wait_until(PATIENCE, || !firewalld.daemon.running() || usable(&firewalld));
        if usable(&firewalld) {
            return Ok(firewalld);
        }
        Err(format!("firewalld doesn't start here: {:?}", std::fs::read_to_string(config.join("log"))))
    }

    /// Runs `firewall-cmd`, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn command(&self, args: &[&str]) -> String {
        self.try_command(args).success().text()
    }

    fn try_command(&self, args: &[&str]) -> Outcome {
        let mut command = self.host.command("firewall-cmd");
        command.args(args).env("DBUS_SYSTEM_BUS_ADDRESS", self.bus.address());
        Outcome::of(&mut command)
    }
}
