//! The keeper's log: stderr, or the system's log for one that was started by a plugin and has no other.

use std::os::unix::net::UnixDatagram;

/// LOG_DAEMON and LOG_INFO (syslog(3)).
const PRIORITY: u8 = 3 << 3 | 6;

/// Where lines go.
pub(super) struct Journal {
    system: Option<UnixDatagram>,
}

impl Journal {
    /// `system` instead of stderr.
    pub(super) fn open(system: bool) -> Journal {
        let connect = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect("/dev/log").ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Journal { system: system.then(connect).flatten() }
    }

    /// A line.
    pub(super) fn tell(&self, line: &str) {
        match &self.system {
            // One that is lost is lost.
            Some(socket) => {
                let id = std::process::id();
                let _ = socket.send(format!("<{PRIORITY}>cnimble-dhcp[{id}]: {line}").as_bytes());
            }
            None => eprintln!("{line}"),
        }
    }
}
