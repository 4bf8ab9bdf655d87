//! The lease daemon's log: stderr, or the system's log for a daemon that a plugin has started.

use std::os::unix::net::UnixDatagram;

/// LOG_DAEMON and LOG_INFO (syslog(3)).
const PRIORITY: u8 = 3 << 3 | 6;

/// The destination of log lines.
pub(super) struct Journal {
    system: Option<UnixDatagram>,
}

impl Journal {
    /// Opens the system's log if `system` is true. Otherwise lines are written to stderr.
    pub(super) fn open(system: bool) -> Journal {
        let connect = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect("/dev/log").ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Journal { system: system.then(connect).flatten() }
    }

    /// Writes a line to the log.
    pub(super) fn tell(&self, line: &str) {
        match &self.system {
            // A line that cannot be sent is lost.
            Some(socket) => {
                let id = std::process::id();
                let _ = socket.send(format!("<{PRIORITY}>cnimble-dhcp[{id}]: {line}").as_bytes());
            }
            None => eprintln!("{line}"),
        }
    }
}
