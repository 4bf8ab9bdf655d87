//! The lease daemon's log. It is stderr, or the system's log if a plugin has started the daemon.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

/// The priority of each line: LOG_DAEMON and LOG_INFO (syslog(3)).
const PRIORITY: u8 = 3 << 3 | 6;
/// The socket of the system's log.
const SYSTEM: &str = "/dev/log";

/// The log of the daemon.
pub(super) struct Journal {
    /// The socket and the path of the system's log. `None` writes to stderr.
    system: Option<(UnixDatagram, PathBuf)>,
}

impl Journal {
    pub(super) fn stderr() -> Self {
        Journal { system: None }
    }

    pub(super) fn system() -> Self {
        Journal::with_socket(SYSTEM.into())
    }

    /// Makes a log that writes to the socket at `path`. It exists even if nothing listens there yet.
    fn with_socket(path: PathBuf) -> Self {
        Journal { system: open_socket().map(|socket| (socket, path)) }
    }

    /// Writes a line to the system's log, or to stderr if that fails. Each line is sent to the path anew, because the
    /// log may start later and then makes its socket again.
    pub(super) fn log(&self, line: &str) {
        let sent = self.system.as_ref().is_some_and(|(socket, path)| {
            let id = std::process::id();
            socket.send_to(format!("<{PRIORITY}>cnimble-dhcp[{id}]: {line}").as_bytes(), path).is_ok()
        });
        if !sent {
            // A failure is ignored, because the reader of a pipe may have exited.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

/// Opens a socket that never waits. `None` if that fails, for example for a lack of descriptors.
fn open_socket() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_was_started_again_gets_the_next_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let journal = Journal::with_socket(path.clone());
        for line in ["one", "two"] {
            let log = UnixDatagram::bind(&path).unwrap();
            log.set_nonblocking(true).unwrap();
            journal.log(line);
            let mut bytes = [0; 100];
            let length = log.recv(&mut bytes).unwrap();
            let expected = format!("<30>cnimble-dhcp[{}]: {line}", std::process::id());
            assert_eq!(bytes[..length], *expected.as_bytes());
            drop(log);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
