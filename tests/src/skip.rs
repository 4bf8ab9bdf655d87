//! Tests that can't run here say so, instead of passing without a word.

use std::io::Write;

/// Prints `SKIP <test>: why` and returns from the test.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        $crate::announce("SKIP", &format!($($why)*));
        return;
    }};
}

/// Skips the test unless it runs as root, may make network namespaces, and finds the
/// named commands.
#[macro_export]
macro_rules! need {
    ($($tool:literal),*) => {
        if let Some(why) = $crate::missing(&[$($tool),*]) {
            $crate::skip!("{why}");
        }
    };
}

/// As [`need!`], and there must be Go plugins that ours can meet: else `let go = <directory>`.
#[macro_export]
macro_rules! need_go {
    ($go:ident $(, $tool:literal)*) => {
        $crate::need!($($tool),*);
        let $go = match $crate::go_to_meet() {
            Ok(dir) => dir,
            Err(why) => $crate::skip!("{why}"),
        };
    };
}

/// As [`need_go!`], and they must know CNI 1.1.0.
#[macro_export]
macro_rules! need_recent_go {
    ($go:ident $(, $tool:literal)*) => {
        $crate::need!($($tool),*);
        let $go = match $crate::recent_go_to_meet() {
            Ok(dir) => dir,
            Err(why) => $crate::skip!("{why}"),
        };
    };
}

/// Prints `<word> <test>: text` past libtest's capture, which would hide it.
pub fn announce(word: &str, text: &str) {
    let thread = std::thread::current();
    let line = format!("{word} {}: {text}\n", thread.name().unwrap_or("?"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Why a test that needs root, namespaces and `tools` can't run here, if it can't.
pub fn missing(tools: &[&str]) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root".into());
    }
    let namespaces =
        std::thread::spawn(|| nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)).join().unwrap();
    if let Err(err) = namespaces {
        return Some(format!("no network namespaces here: {err}"));
    }
    tools.iter().find(|tool| !in_path(tool)).map(|tool| format!("{tool} is not installed"))
}

fn in_path(tool: &str) -> bool {
    crate::process::PATH.split(':').any(|dir| std::path::Path::new(dir).join(tool).exists())
}
