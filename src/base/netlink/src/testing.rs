//! For tests against the real kernel: a network namespace of their own.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// Runs `test` in a thread of its own in a new network namespace. Says `SKIP` where that is not allowed.
pub(super) fn in_netns(name: &str, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        test();
        Ok::<_, nix::Error>(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(errno)) => eprintln!("SKIP {name}: no new network namespace: {errno}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Returns what a command in the namespace of this thread writes as JSON; `None`, with `SKIP`, without the command.
pub(super) fn json(name: &str, command: &str) -> Option<serde_json::Value> {
    let mut words = command.split(' ');
    let output = match Command::new(words.next().unwrap()).args(words).output() {
        Ok(output) => output,
        Err(err) => {
            eprintln!("SKIP {name}: {command}: {err}");
            return None;
        }
    };
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}
