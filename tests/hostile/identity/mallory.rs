//! A pod whose root has all capabilities in a user namespace of its own, with network namespaces inside.

use std::process::{Command, Stdio};

use cnimble_tests::{Background, LIMIT, Ns, Outcome, PATIENCE, run_limited, wait_until};

/// Network namespaces of the pod's user namespace, beside the pod's own.
const NESTED: usize = 2;

pub(super) struct Mallory {
    pod: Ns,
    process: Background,
    nested: Vec<Background>,
}

/// A process that only keeps its namespaces. `words` end with the program that runs it.
fn keeper(words: &[&str]) -> Background {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["sleep", "1000000"]).stdin(Stdio::null());
    let mut process = Background::start(&mut command);
    let name = format!("/proc/{}/comm", process.pid());
    let sleeps = || std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep");
    assert!(wait_until(PATIENCE, || sleeps() || !process.running()) && process.running(), "{words:?}");
    process
}

impl Mallory {
    /// # Errors
    /// Why there is no such pod here.
    pub(super) fn new() -> Result<Self, String> {
        let mut try_it = Command::new("unshare");
        try_it.args(["--user", "--map-root-user", "--net", "true"]);
        let tried = run_limited(&mut try_it, b"", LIMIT);
        if !tried.status.success() {
            return Err(format!("no user namespaces here: {}", String::from_utf8_lossy(&tried.stderr)));
        }
        let process = keeper(&["unshare", "--user", "--map-root-user", "--net"]);
        let pid = process.pid().to_string();
        let pod = Ns::at(format!("/proc/{pid}/ns/net").as_ref());
        let enter =
            ["nsenter", "--target", &pid, "--user", "--net", "--preserve-credentials", "unshare", "--net"];
        let nested = (0..NESTED).map(|_| keeper(&enter)).collect();
        Ok(Mallory { pod, process, nested })
    }

    pub(super) fn pod(&self) -> &Ns {
        &self.pod
    }

    /// The processes that `ip link … netns PID` takes for the pod's other namespaces.
    pub(super) fn nested(&self) -> Vec<u32> {
        self.nested.iter().map(Background::pid).collect()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Runs a shell script as the pod's root. Each command may fail. Returns what it prints.
    pub(super) fn run(&self, script: &str) -> String {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid().to_string(), "--user", "--net", "--preserve-credentials"]);
        command.args(["sh", "-c", script]);
        let outcome = Outcome::of(&mut command);
        outcome.text()
    }

    /// Removes every link from all namespaces of the pod, apart from lo.
    pub(super) fn clear(&self) {
        let clear = r#"for link in $(ip -o link show | sed "s/^[0-9]*: \([^:@]*\).*/\1/"); do
            [ "$link" = lo ] || ip link del "$link"
        done 2>/dev/null"#;
        let inside =
            self.nested().into_iter().map(|pid| format!("nsenter --net=/proc/{pid}/ns/net sh -c '{clear}'"));
        let all: Vec<String> = inside.chain([clear.to_owned()]).collect();
        self.run(&all.join("\n"));
    }
}
