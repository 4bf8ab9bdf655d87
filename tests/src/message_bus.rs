//! A message bus of D-Bus.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::{Background, Host, PATIENCE, wait_until};

/// A message bus that lets each client do everything. It ends with this value.
pub struct MessageBus {
    socket: PathBuf,
    _daemon: Background,
}

impl MessageBus {
    /// Starts a bus whose files are in the host's directory.
    ///
    /// # Panics
    /// If dbus-daemon does not listen.
    pub fn start(host: &Host) -> Self {
        let socket = host.dir().join("bus");
        let config = host.dir().join("bus.conf");
        let text = format!(
            r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow eavesdrop="true"/>
<allow send_destination="*" eavesdrop="true"/></policy></busconfig>"#,
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = host.command("dbus-daemon");
        command.args(["--nofork", "--nopidfile", "--nosyslog"]);
        command.arg(format!("--config-file={}", config.display()));
        let daemon = Background::start(command.stdin(Stdio::null()).stdout(Stdio::null()));
        assert!(wait_until(PATIENCE, || UnixStream::connect(&socket).is_ok()), "dbus-daemon doesn't listen");
        MessageBus { socket, _daemon: daemon }
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The value of `DBUS_SYSTEM_BUS_ADDRESS` for its clients.
    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }
}
