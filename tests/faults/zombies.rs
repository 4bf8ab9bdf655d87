//! No DEL leaves a zombie, under any kind of process 1.

use std::process::{Command, Stdio};
use std::time::Duration;

use cnimble_tests::{Background, Host, LIMIT, Outcome, announce, configs, need, plugin_dir};

use crate::relive::lives;

/// Process 1 of a PID namespace.
struct Init {
    name: &'static str,
    program: Program,
    /// Whether the plugin may leave a child to it.
    reaps: bool,
    /// The shell code that starts the plugin.
    wrapper: &'static str,
}

enum Program {
    /// A command that runs its arguments.
    Command(&'static [&'static str]),
    /// A Perl program that has reaped a child. The string is the code that runs next to `$worker`.
    Perl(&'static str),
}

impl Init {
    const fn known(name: &'static str, command: &'static [&'static str]) -> Self {
        Init { name, program: Program::Command(command), reaps: true, wrapper: "" }
    }

    const fn shell(name: &'static str, wrapper: &'static str) -> Self {
        // It runs an external command, so that it has reaped. It has two jobs, so that it stays.
        let command = &["bash", "-c", "/bin/true; \"$@\" & wait $!", "bash"];
        Init { name, program: Program::Command(command), reaps: false, wrapper }
    }

    const fn perl(name: &'static str, program: &'static str, reaps: bool) -> Self {
        Init { name, program: Program::Perl(program), reaps, wrapper: "" }
    }
}

const SHELLS: &[Init] = &[
    Init::perl(
        "ignores",
        r#"$SIG{CHLD} = "IGNORE"; select(undef, undef, undef, 0.01) while kill 0, $worker;"#,
        true,
    ),
    Init::perl(
        "handles, as Go programs do",
        "$SIG{CHLD} = sub {}; 1 until waitpid($worker, 0) == $worker;",
        false,
    ),
    Init::perl("waits for its own", "waitpid($worker, 0);", false),
    NEVER_LOOKS,
    Init::shell("bash", ""),
    Init::shell("is the plugin", "unshare --pid --fork --mount-proc"),
];

/// A process 1 that blocks SIGCHLD, has none pending and has reaped a child.
const NEVER_LOOKS: Init =
    Init::perl("never looks", "sigprocmask(SIG_BLOCK, $all); waitpid($worker, 0);", false);

/// Known init programs. systemd has a signalfd, too.
const KNOWN: &[Init] = &[
    Init::known("catatonit", &["catatonit", "--"]),
    Init::known("tini", &["tini", "--"]),
    Init::known("dumb-init", &["dumb-init", "--"]),
];

/// The worst case: it takes every SIGCHLD and reaps only its own child.
const TAKES: Init = Init::perl(
    "takes",
    r#"sigprocmask(SIG_BLOCK, $all); my $set = "\xff" x 8;
       syscall($ENV{SIGTIMEDWAIT}, $set, 0, 0, 8) until waitpid($worker, WNOHANG) == $worker;"#,
    true,
);

/// Adds and deletes a pod several times. The last line of stdout is the number of zombies.
const WORKER: &str = r#"
    export CNI_PATH=$1 CNI_CONTAINERID=z CNI_IFNAME=eth0 CNI_NETNS=$4.ns CNIMBLE_LOG=info
    touch "$CNI_NETNS"
    unshare --net="$CNI_NETNS" true
    if [ -n "$ORPHAN" ]; then
        sh -c 'sleep 0.01 &'
        until [ "$(cut -d' ' -f11 /proc/1/stat)" -gt 0 ]; do sleep 0.01; done
    fi
    [ -z "$REAPS" ] || until grep -q '^State:.S' /proc/1/status; do sleep 0.01; done
    mine() { grep -lsE '^Name:[[:space:]]*bridge' /proc/[0-9]*/status; }
    waiting() { mine | xargs -r grep -LsE '^State:[[:space:]]*Z'; }
    ended() { while [ -n "$(waiting)" ]; do sleep 0.02; done; }
    # Where it waits for signals; one that is at work for long, on a busy machine, gets no child.
    by_a_child() { [ -z "$REAPS" ] || [ $SECONDS -gt 120 ] || grep -q 'by a child' "$4"; }
    life=0
    until [ $life -ge "$2" ] && by_a_child "$@"; do
        life=$((life + 1))
        CNI_COMMAND=ADD "$1/bridge" <"$3" >"$4.add" || { cat "$4.add"; exit 1; }
        CNI_COMMAND=DEL $WRAPPER "$1/bridge" <"$3" 2>>"$4" || exit 1
        [ -z "$APART" ] || ended
    done
    ended
    # Those that are about to be reaped; only a failing test waits so long.
    until zombies=$(mine | wc -l) && [ "$zombies" -le "${APART:-0}" ] || [ $SECONDS -gt 120 ]; do sleep 0.02; done
    echo "zombies $zombies"
"#;

#[test]
fn no_zombie_is_left_under_any_process_1() {
    need!("ip", "perl", "unshare");
    for init in SHELLS.iter().filter(is_asked_for) {
        under(init, lives(10));
    }
}

#[test]
fn no_zombie_is_left_under_those_that_are_known() {
    need!("ip", "unshare", "catatonit", "tini", "dumb-init");
    for init in KNOWN.iter().filter(is_asked_for) {
        under(init, lives(20));
    }
}

/// Returns true if the name contains one of the comma-separated words of `CNIMBLE_HEIRS`.
fn is_asked_for(init: &&Init) -> bool {
    std::env::var("CNIMBLE_HEIRS").map_or(true, |words| words.split(',').any(|word| init.name.contains(word)))
}

/// One zombie, as [`PERFORMANCE.md`](../../docs/PERFORMANCE.md) says. After it, no child is left to this process 1.
#[test]
fn one_zombie_is_left_under_a_process_1_that_takes_the_signal_and_reaps_none() {
    need!("ip", "perl", "unshare");
    let run = run(&TAKES, 5, "1");
    if run.log.contains("it needs no reaping") {
        assert_eq!(run.zombies, 0, "{}", run.log);
        return;
    }
    assert_eq!((run.zombies, run.by_a_child, run.by_us), (1, 1, 4), "{}", run.log);
}

/// For the virtual machine, which has a kernel with CLONE_AUTOREAP.
pub fn no_zombie_where_children_need_no_reaping() {
    let log = under(&NEVER_LOOKS, lives(5));
    assert!(log.contains("it needs no reaping"), "{log}");
}

/// Checks that `lives` cycles of ADD and DEL leave no zombie. Returns the log.
fn under(init: &Init, lives: usize) -> String {
    let Run { log, zombies, by_a_child, by_us } = run(init, lives, "");
    let name = init.name;
    announce("NOTE", &format!("process 1 {name}: {by_a_child} by a child, {by_us} not; {zombies} zombies"));
    assert_eq!(zombies, 0, "{name}: {log}");
    let may = init.reaps || log.contains("it needs no reaping");
    assert_eq!(by_a_child > 0, may, "{name}: {log}");
    assert!(by_a_child + by_us >= lives, "{name}: {log}");
    log
}

struct Run {
    log: String,
    zombies: usize,
    by_a_child: usize,
    by_us: usize,
}

fn run(init: &Init, lives: usize, apart: &str) -> Run {
    let host = Host::new();
    let (config, log) = (host.dir().join("config"), host.dir().join("log"));
    std::fs::write(&config, configs::v4(&host).to_string()).unwrap();
    let mut command: Command = host.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    match init.program {
        Program::Command(words) => command.args(words).args(["bash", "-c"]),
        Program::Perl(beside) => command.args(["perl", "-e"]).arg(format!(
            r#"use POSIX ":signal_h", ":sys_wait_h"; my $all = POSIX::SigSet->new; $all->fillset;
               my $first = fork; exit 0 if !$first; waitpid($first, 0);
               my $worker = fork; if (!$worker) {{ exec "bash", "-c", @ARGV }} {beside}"#
        )),
    };
    command.args([WORKER, "worker"]).arg(plugin_dir()).arg(lives.to_string()).arg(&config).arg(&log);
    command.env("SIGTIMEDWAIT", libc::SYS_rt_sigtimedwait.to_string());
    let flag = |on| if on { "1" } else { "" };
    let orphan = init.reaps && matches!(init.program, Program::Command(_));
    command.env("REAPS", flag(init.reaps)).env("ORPHAN", flag(orphan));
    command.env("WRAPPER", init.wrapper).env("APART", apart);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Long runs are for scripts/stress and for emulated machines.
    let limit = LIMIT.max(Duration::from_secs(4) * u32::try_from(lives).unwrap());
    let outcome = Outcome::from(init.name, Background::start(&mut command).finish(limit));
    let zombies = outcome.text().trim().strip_prefix("zombies ").and_then(|count| count.parse().ok());
    let zombies = zombies.unwrap_or_else(|| panic!("{}: {}", init.name, outcome.describe()));
    let log = std::fs::read_to_string(&log).unwrap();
    let count = |words| log.lines().filter(|line| line.contains(words)).count();
    Run { zombies, by_a_child: count("waited for by a child"), by_us: count("waited for by us"), log }
}
