//! The cost of a verb: system calls and netlink messages, counted by strace.
//!
//! Times vary on a busy machine, but counts are the same on every run. Each verb has a budget, written down here and
//! explained in docs/PERFORMANCE.md. A change that needs more has to raise it and give the reason. A change that needs
//! less should lower it, so that the gain stays.
//!
//! The test counts ADD, CHECK and DEL of a second pod, on a host with all shared state. It leaves out calls before the
//! configuration is read (by the loader and the C library), which differ between builds. It also leaves out those of
//! the allocator.

mod samples;

pub(crate) use samples::count_the_picky as of_the_picky;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Crowd, Host, Network, Pod, announce, configs, need, skip};

/// The system calls and netlink messages that a verb may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Budget {
    calls: usize,
    messages: usize,
}

const fn budget(calls: usize, messages: usize) -> Budget {
    Budget { calls, messages }
}

/// A kind of network, with the budgets of ADD, CHECK and DEL.
struct Row {
    name: &'static str,
    dual: bool,
    masquerade: bool,
    add: Budget,
    check: Budget,
    del: Budget,
}

/// The budgets. docs/PERFORMANCE.md has the same table, and a test compares the two.
const TABLE: [Row; 4] = [
    Row {
        name: "plain",
        dual: false,
        masquerade: false,
        add: budget(102, 11),
        check: budget(70, 15),
        del: budget(87, 13),
    },
    Row {
        name: "dual",
        dual: true,
        masquerade: false,
        add: budget(133, 15),
        check: budget(71, 15),
        del: budget(86, 13),
    },
    Row {
        name: "ipMasq",
        dual: false,
        masquerade: true,
        add: budget(131, 20),
        check: budget(96, 20),
        del: budget(89, 16),
    },
    Row {
        name: "dual+ipMasq",
        dual: true,
        masquerade: true,
        add: budget(173, 28),
        check: budget(115, 25),
        del: budget(93, 18),
    },
];

/// The page with the budgets. Those of the plugins' samples are only there.
const DOCUMENT: &str = include_str!("../../../docs/PERFORMANCE.md");

/// Calls of the allocator and the scheduler, which depend on the build and on timing.
const UNCOUNTED: &[&str] =
    &["brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex", "sched_yield", "restart_syscall"];

/// Reading one lease takes an open, a read and a close.
const CALLS_PER_LEASE: usize = 3;

/// The additional calls for reading and updating host-local's index, compared with reading two leases.
const INDEX_CALLS: usize = 16;

/// The calls of one verb in strace's output.
#[derive(Debug)]
struct Trace {
    calls: BTreeMap<String, usize>,
    messages: usize,
    leases_read: usize,
    text: String,
}

impl Trace {
    /// Parses the output of strace.
    fn read(text: &str) -> Self {
        let mut trace = Trace { calls: BTreeMap::new(), messages: 0, leases_read: 0, text: text.to_owned() };
        // With -f a line starts with a process ID if there is more than one process.
        let lines =
            text.lines().map(|line| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' '));
        let verb = lines.skip_while(|line| !line.starts_with("read(0, \"{"));
        let mut wait = Wait::No;
        for line in verb {
            if wait.goes_on(line) {
                continue;
            }
            let Some((name, _)) = line.split_once('(') else { continue };
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                continue;
            }
            if UNCOUNTED.contains(&name) || is_chance(line) {
                continue;
            }
            *trace.calls.entry(name.to_owned()).or_default() += 1;
            if name.starts_with("send") {
                trace.messages += line.matches("nlmsg_len=").count();
            }
            trace.leases_read += usize::from(is_lease_opened(line));
        }
        trace
    }

    /// Describes the excess over the budget, if there is any.
    fn over(&self, what: &str, verb: &str, budget: Budget) -> Option<String> {
        let (calls, messages) = (self.total(), self.messages);
        assert!(calls > 0, "strace's output has no verb in it:\n{}", self.text);
        (calls > budget.calls || messages > budget.messages).then(|| {
            format!(
                "{what} {verb}: {calls} calls and {messages} messages instead of {} and {}\n{:?}\n{}",
                budget.calls, budget.messages, self.calls, self.text
            )
        })
    }

    /// Returns the number of calls without those that read leases, which depend on the number of leases.
    fn total(&self) -> usize {
        self.calls.values().sum::<usize>() - CALLS_PER_LEASE * self.leases_read
    }
}

/// The wait for a link to come up, if it isn't up when the verb first reads it. The kernel and the load of the machine
/// decide whether it is, and how many notifications arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    ForNews,
    /// Late notifications are discarded.
    ForSilence,
}

impl Wait {
    /// Returns true if this call is a part of the wait.
    fn goes_on(&mut self, line: &str) -> bool {
        let before = *self;
        *self = match before {
            Wait::No if line.contains("NETLINK_ADD_MEMBERSHIP") => Wait::ForNews,
            Wait::ForNews if line.contains("NETLINK_DROP_MEMBERSHIP") => Wait::ForSilence,
            Wait::ForSilence if line.contains(" = -1 EAGAIN") => Wait::No,
            same => same,
        };
        (before, *self) != (Wait::No, Wait::No)
    }
}

/// Returns true for an assertion of the standard library's debug build, and for a call that the kernel restarts because
/// another process holds a lock.
fn is_chance(line: &str) -> bool {
    line.contains(", F_GETFD)")
        // musl sets close-on-exec twice, for kernels that once ignored it. It also blocks signals while it creates a
        // key for a thread's variable.
        || line.contains(", F_SETFD, FD_CLOEXEC)")
        || line.starts_with("rt_sigprocmask(")
        || line.contains(" = ? ERESTART")
}

/// Matches lines such as `openat(5, "10.1.2.3", O_RDONLY…`.
fn is_lease_opened(line: &str) -> bool {
    line.starts_with("openat(")
        && line.contains("O_RDONLY")
        && line.split('"').nth(1).is_some_and(|name| name.parse::<std::net::IpAddr>().is_ok())
}

/// A network with one pod in it, for counting.
struct Counting<'h> {
    net: Network<'h>,
    pods: Vec<Pod>,
}

impl<'h> Counting<'h> {
    fn new(host: &'h Host, row: &Row) -> Self {
        let config = if row.dual { configs::dual(host) } else { configs::v4(host) };
        let net = Network::new(host, config).with("/ipMasq", json!(row.masquerade));
        Counting { net, pods: Vec::new() }
    }

    /// Adds pods until there are `pods` of them.
    fn populate(&mut self, pods: usize) {
        while self.pods.len() < pods {
            let pod = Pod::new();
            self.net.added(&Attachment::new(&format!("stays{}", self.pods.len()), &pod));
            self.pods.push(pod);
        }
    }

    /// Counts ADD, CHECK and DEL of one more pod, and returns the cheapest of three rounds. On a busy machine a verb may
    /// find an address not yet usable, and asks again.
    fn verbs(&self) -> [Trace; 3] {
        let mut least = self.round();
        for _ in 1..3 {
            for (least, trace) in least.iter_mut().zip(self.round()) {
                if (trace.messages, trace.total()) < (least.messages, least.total()) {
                    *least = trace;
                }
            }
        }
        least
    }

    fn round(&self) -> [Trace; 3] {
        let pod = Pod::new();
        let att = Attachment::new("counted", &pod);
        let (result, add) = traced(&self.net, "ADD", &att, None);
        let (_, check) = traced(&self.net, "CHECK", &att, Some(&result));
        let (_, del) = traced(&self.net, "DEL", &att, Some(&result));
        [add, check, del]
    }
}

/// Runs a verb, and returns its result and its trace.
fn traced(net: &Network<'_>, verb: &str, att: &Attachment, prev: Option<&Value>) -> (Value, Trace) {
    let file = net.host.dir().join(cnimble_tests::unique("strace"));
    let path = file.to_str().unwrap();
    let call = net.call(verb, att, prev);
    // Whole messages, for any number of messages in a datagram.
    let outcome = call.under(&["strace", "-f", "-v", "-s", "65536", "-o", path]).run().success();
    let result = serde_json::from_slice(&outcome.stdout).unwrap_or(Value::Null);
    (result, Trace::read(&std::fs::read_to_string(file).unwrap()))
}

/// Returns the reason why strace cannot be used here, if there is one.
fn untraceable() -> Option<String> {
    let host = Host::new();
    let call = host.call("bridge").command("VERSION").under(&["strace", "-o", "/dev/null"]);
    (call.run().status != 0).then(|| "strace may not trace here".to_owned())
}

macro_rules! need_strace {
    () => {
        need!("strace", "ip");
        if let Some(why) = untraceable() {
            skip!("{why}");
        }
    };
}

const VERBS: [&str; 3] = ["ADD", "CHECK", "DEL"];

#[test]
fn every_verb_stays_within_its_budget() {
    need_strace!();
    let mut over = Vec::new();
    for row in &TABLE {
        let host = Host::new();
        let mut counting = Counting::new(&host, row);
        counting.populate(1);
        for ((verb, budget), trace) in VERBS.iter().zip([row.add, row.check, row.del]).zip(counting.verbs()) {
            let (calls, messages) = (trace.total(), trace.messages);
            announce("NOTE", &format!("{} {verb}: {calls} calls, {messages} messages", row.name));
            over.extend(trace.over(row.name, verb, budget));
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n\n"));
}

/// Its memory pool is in the program, and thread-local values fit into the space that the C library reserves.
#[test]
fn a_plugin_starts_without_asking_the_kernel_for_memory() {
    need_strace!();
    let host = Host::new();
    let file = host.dir().join("strace");
    let call = host.call("loopback").command("VERSION").under(&["strace", "-o", file.to_str().unwrap()]);
    call.run().success();
    let text = std::fs::read_to_string(file).unwrap();
    let asks = |line: &&str| line.starts_with("mmap(") || line.starts_with("brk(");
    assert!(text.starts_with("execve(") && !text.lines().any(|line| asks(&line)), "{text}");
}

/// The cost of a verb must not grow with the number of pods.
#[test]
fn fifty_pods_cost_as_much_as_one() {
    need_strace!();
    for row in TABLE.iter().filter(|row| row.dual) {
        let host = Host::new();
        let mut counting = Counting::new(&host, row);
        counting.populate(1);
        let one = counting.verbs();
        counting.populate(50);
        for ((verb, one), fifty) in VERBS.iter().zip(one).zip(counting.verbs()) {
            // Fifty pods with two leases each are enough for host-local's index, which takes a few calls. Reading the
            // leases would take three calls for each.
            let calls = |trace: &Trace| trace.calls.values().sum::<usize>();
            assert!(
                calls(&fifty) <= calls(&one) + INDEX_CALLS && fifty.messages <= one.messages,
                "{} {verb}: {:?} with one pod, {:?} with fifty\n{}",
                row.name,
                one.calls,
                fifty.calls,
                fifty.text
            );
        }
    }
}

/// Behind a main plugin of others, each DEL leaves a note ([`cnimble_os::files::begun`]).
#[test]
fn a_del_costs_the_same_among_the_notes_of_many() {
    need_strace!();
    let host = Host::new();
    let base = Network::new(&host, configs::v4(&host));
    let mut net = Network::new(
        &host,
        json!({"cniVersion": configs::newest(), "name": "net4", "type": "portmap", "backend": "nftables",
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}),
    );
    let pod = Pod::new();
    let prev = base.added(&Attachment::new("counted0", &pod));
    let mut counts = |first: usize, rounds: usize| -> Vec<usize> {
        let one = |number: usize| {
            let att = Attachment::new(&format!("counted{number}"), &pod);
            net.config["runtimeConfig"]["portMappings"][0]["hostPort"] = json!(8080 + number);
            net.call("ADD", &att, Some(&prev)).run().success();
            traced(&net, "DEL", &att, Some(&prev)).1.total()
        };
        (first..first + rounds).map(one).collect()
    };
    let alone = counts(0, 3);
    let dir = std::path::Path::new(cnimble_os::files::begun::DIR);
    let notes = |dir: &std::path::Path| std::fs::read_dir(dir).map_or(0, Iterator::count);
    let name = |number: usize| format!("{number:016x}-{number:016x}");
    (0..NOTES).for_each(|number| std::fs::write(dir.join(name(number)), "").unwrap());
    let few = *alone.iter().min().unwrap();
    for count in counts(3, 5) {
        assert!(count <= few + CALLS_FOR_NOTES, "{count} calls among {NOTES} notes, {few} alone");
    }
    assert!(notes(dir) < 10, "they are {} in the directory that each DEL looks at", notes(dir));
    // Once the directory is large again, each DEL removes a few of the old notes.
    let old = dir.with_file_name("begun-dels.old");
    (0..MANY_NOTES).for_each(|number| std::fs::write(dir.join(name(number)), "").unwrap());
    let before = notes(&old);
    for count in counts(8, 5) {
        assert!(count <= few + CALLS_FOR_NOTES, "{count} calls beside {before} old notes, {few} alone");
    }
    assert!(notes(&old) + 50 < before, "{} of {before} are left", notes(&old));
    for path in (0..NOTES).flat_map(|number| [dir, &old].map(|dir| dir.join(name(number)))) {
        drop(std::fs::remove_file(path));
    }
}

/// Notes of DELs, as many as a busy node makes in weeks.
const NOTES: usize = 20_000;
/// More than the directory may have.
const MANY_NOTES: usize = 1100;
/// The calls for sixteen old notes, and for the directories.
const CALLS_FOR_NOTES: usize = 30;

/// Rules and links of the administrator or of other software are not listed.
#[test]
fn a_crowded_host_costs_as_much_as_an_empty_one() {
    need_strace!();
    need!("nft", "iptables-nft-restore");
    for row in TABLE.iter().filter(|row| row.dual && row.masquerade) {
        let host = Host::new();
        let mut counting = Counting::new(&host, row);
        counting.populate(1);
        let alone = counting.verbs();
        let crowds = [Crowd::Links, Crowd::Routes, Crowd::Nft, Crowd::Iptables, Crowd::Namespaces];
        let _companies = crowds.map(|crowd| crowd.gather(&host, crowd.many() / 25));
        for ((verb, alone), crowded) in VERBS.iter().zip(alone).zip(counting.verbs()) {
            assert!(
                crowded.total() <= alone.total() && crowded.messages <= alone.messages,
                "{} {verb}: {:?} on an empty host, {:?} on a crowded one\n{}",
                row.name,
                alone.calls,
                crowded.calls,
                crowded.text
            );
        }
    }
}

/// docs/PERFORMANCE.md promises the budgets that this test enforces.
#[test]
fn the_document_has_the_same_budget() {
    for Row { name, add, check, del, .. } in TABLE {
        let cell = |budget: Budget| format!("{}/{}", budget.calls, budget.messages);
        let line = format!("| {name} | {} | {} | {} |", cell(add), cell(check), cell(del));
        assert!(DOCUMENT.contains(&line), "docs/PERFORMANCE.md lacks the line\n{line}");
    }
}
