//! Tests socket activation: a service manager owns the socket and starts the server for the first client.

use cnimble_tests::{PATIENCE, need, wait_until};

use super::{Serve, Shop, bridge, pod};

/// Simulates systemd: it listens, starts the server for a client, and starts it again after its end. The server's
/// process ID is in `pid`.
const MANAGER: &str = r#"
import os, select, socket, sys
path, line, pid = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path + '.new')
os.chmod(path + '.new', 0o660)
listener.listen(64)
# The path appears when connections are accepted.
os.rename(path + '.new', path)
while True:
    select.select([listener], [], [])
    child = os.fork()
    if child == 0:
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)
        # The file is whole before the server answers.
        with open(pid + '.new', 'w') as file:
            file.write(str(os.getpid()))
        os.rename(pid + '.new', pid)
        os.execl('/bin/sh', 'sh', '-c', 'exec env ' + line)
    os.waitpid(child, 0)
"#;

impl Shop {
    fn manager(&self) -> Serve<'_> {
        let (script, log) = (self.node.file("manager", MANAGER), self.path("log"));
        let pid = self.node.sh(&format!(
            "python3 {} {} '{}' {} >>{} 2>&1 & echo $!",
            script.display(),
            self.socket.display(),
            self.line().trim(),
            self.path("pid").display(),
            log.display()
        ));
        assert!(wait_until(PATIENCE, || self.socket.exists()), "{}", self.log());
        Serve { shop: self, pid: pid.trim().to_owned() }
    }

    /// Returns the server that the manager has started.
    fn started(&self) -> Serve<'_> {
        Serve { shop: self, pid: std::fs::read_to_string(self.path("pid")).unwrap() }
    }
}

#[test]
fn the_first_client_starts_the_server_and_calls_behind_a_kill_wait_for_the_next() {
    need!("ip", "nft", "python3");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[serde_json::json!({"type": "looks"})]));
    // A plugin records its descriptor 3, the first that it could inherit.
    let seen = shop.path("seen");
    shop.plugin("looks", &format!("readlink /proc/$$/fd/3 >>{} || :", seen.display()));
    let manager = shop.manager();
    assert!(!shop.path("pid").exists(), "a server without a client");
    let id = shop.run(pod("web")).sandbox.id;
    assert!(!std::fs::read_to_string(&seen).unwrap().contains("socket"));
    for signal in ["KILL", "TERM", "KILL"] {
        let before = shop.started();
        before.signal(signal);
        before.wait_until_gone();
        assert!(shop.socket.exists());
        let list = shop.list();
        assert!(list.len() == 1 && list[0].id == id && list[0].ready, "{list:?}\n{}", shop.log());
        assert_ne!(shop.started().pid, before.pid);
    }
    shop.is_whole();
    shop.clear();
    manager.signal("KILL");
    shop.started().stop();
}

#[test]
fn what_is_passed_and_is_no_listening_socket_is_refused_in_a_sentence() {
    need!("python3");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    let passed = |count: u32, open: &str| {
        let line = shop.line();
        shop.node.run(&format!(
            "exec python3 -c \"import os, socket; {open}; [os.dup2(fd.fileno(), n) for n in (4, 3)]; \
             os.set_inheritable(3, True); \
             os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='{count}'); \
             os.execl('/bin/sh', 'sh', '-c', 'exec env {line}')\""
        ))
    };
    for (count, open, why) in [
        (2, "fd = socket.socket(socket.AF_UNIX)", "systemd passes 2 sockets"),
        (1, "fd = socket.socket(socket.AF_UNIX)", "no Unix stream socket that listens"),
        (1, "fd = open('/dev/null')", "no Unix stream socket that listens"),
    ] {
        let refused = passed(count, open);
        assert_eq!(refused.status, 5, "{}", refused.describe());
        assert!(refused.describe().contains(why), "{}", refused.describe());
    }
}
