//! The lease daemon's log: stderr, or the system's log for a daemon that a plugin has started.

use std::os::unix::net::UnixDatagram;

/// LOG_DAEMON and LOG_INFO (syslog(3)).
const PRIORITY: u8 = 3 << 3 | 6;

/// The destination of log lines.
pub(super) struct Journal {
    system: Option<UnixDatagram>,
}

impl Journal {
    /// Returns a log on stderr.
    pub(super) fn stderr() -> Journal {
        Journal { system: None }
    }

    /// Opens the system's log, or else stderr.
    pub(super) fn system() -> Journal {
        let connect = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect("/dev/log").ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Journal { system: connect() }
    }

    /// Writes a line to the log.
    pub(super) fn log(&self, line: &str) {
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
