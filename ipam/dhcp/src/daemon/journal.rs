//! The lease daemon's log: stderr, or the system's log if a plugin has started it.

use std::io::Write;
use std::os::unix::net::UnixDatagram;

/// LOG_DAEMON and LOG_INFO (syslog(3)).
const PRIORITY: u8 = 3 << 3 | 6;

pub(super) struct Journal {
    system: Option<UnixDatagram>,
}

impl Journal {
    pub(super) fn stderr() -> Journal {
        Journal { system: None }
    }

    /// Stderr if there is none.
    pub(super) fn system() -> Journal {
        let connect = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect("/dev/log").ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Journal { system: connect() }
    }

    pub(super) fn log(&self, line: &str) {
        match &self.system {
            Some(socket) => {
                let id = std::process::id();
                let _ = socket.send(format!("<{PRIORITY}>cnimble-dhcp[{id}]: {line}").as_bytes());
            }
            // The reader of a pipe may have exited.
            None => drop(writeln!(std::io::stderr(), "{line}")),
        }
    }
}
