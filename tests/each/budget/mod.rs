//! What a verb may cost: system calls and netlink messages, counted by strace.
//!
//! A time says little on a busy machine; a count is the same on every run. Each verb has a
//! budget, written down here and explained in docs/PERFORMANCE.md. A change that needs more
//! has to say why by raising it; one that needs less should lower it, so that the gain stays.
//!
//! Counted is a second pod's ADD, CHECK and DEL on a host where everything shared is there
//! already. Calls before the configuration is read (the loader's and the C library's, which
//! differ between builds) and the allocator's are left out.

mod samples;

pub(crate) use samples::count_the_picky as of_the_picky;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Crowd, Host, Network, Pod, announce, configs, need, skip};

/// System calls and netlink messages that a verb may take.
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

/// The budgets. docs/PERFORMANCE.md has the same table; a test compares the two.
const TABLE: [Row; 4] = [
    Row {
        name: "plain",
        dual: false,
        masquerade: false,
        add: budget(104, 11),
        check: budget(61, 7),
        del: budget(81, 13),
    },
    Row {
        name: "dual",
        dual: true,
        masquerade: false,
        add: budget(135, 15),
        check: budget(61, 7),
        del: budget(82, 13),
    },
    Row {
        name: "ipMasq",
        dual: false,
        masquerade: true,
        add: budget(124, 18),
        check: budget(74, 9),
        del: budget(85, 16),
    },
    Row {
        name: "dual+ipMasq",
        dual: true,
        masquerade: true,
        add: budget(160, 25),
        check: budget(80, 11),
        del: budget(89, 18),
    },
];

/// Where the budgets are told; those of the plugins' samples stand nowhere else.
const DOCUMENT: &str = include_str!("../../../docs/PERFORMANCE.md");

/// The allocator's and the scheduler's: they depend on the build and on chance.
const UNCOUNTED: &[&str] =
    &["brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex", "sched_yield", "restart_syscall"];

/// Reading one lease takes an open, a read and a close.
const CALLS_PER_LEASE: usize = 3;

/// What asking host-local's index and changing it may take more than reading two leases.
const INDEX_CALLS: usize = 16;

/// What strace saw of one verb.
#[derive(Debug)]
struct Trace {
    calls: BTreeMap<String, usize>,
    messages: usize,
    leases_read: usize,
    text: String,
}

impl Trace {
    /// Reads strace's output.
    fn read(text: &str) -> Self {
        let mut trace = Trace { calls: BTreeMap::new(), messages: 0, leases_read: 0, text: text.to_owned() };
        // With -f a line starts with a process id where there is more than one process.
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

    /// What is said if it took more than its budget.
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

    /// Without the reading of leases, which depends on how many there are.
    fn total(&self) -> usize {
        self.calls.values().sum::<usize>() - CALLS_PER_LEASE * self.leases_read
    }
}

/// Waiting for a link to come up, if it isn't up by the time that a verb looks: whether it is, and
/// how many notifications come until then, is up to the kernel and to how busy the machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    ForNews,
    /// What has come too late is thrown away.
    ForSilence,
}

impl Wait {
    /// Whether this call is a part of it.
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

/// An assertion of the standard library's debug build, or a call that the kernel begins again
/// because somebody else holds a lock.
fn is_chance(line: &str) -> bool {
    line.contains(", F_GETFD)")
        // musl says close-on-exec twice, for kernels that once ignored it, and blocks signals
        // while it makes a key for a thread's variable.
        || line.contains(", F_SETFD, FD_CLOEXEC)")
        || line.starts_with("rt_sigprocmask(")
        || line.contains(" = ? ERESTART")
}

/// `openat(5, "10.1.2.3", O_RDONLY…`
fn is_lease_opened(line: &str) -> bool {
    line.starts_with("openat(")
        && line.contains("O_RDONLY")
        && line.split('"').nth(1).is_some_and(|name| name.parse::<std::net::IpAddr>().is_ok())
}

/// A network with one pod in it, to count on.
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

    /// Adds pods that stay until there are so many.
    fn populate(&mut self, pods: usize) {
        while self.pods.len() < pods {
            let pod = Pod::new();
            self.net.added(&Attachment::new(&format!("stays{}", self.pods.len()), &pod));
            self.pods.push(pod);
        }
    }

    /// ADD, CHECK and DEL of one pod more.
    fn verbs(&self) -> [Trace; 3] {
        let pod = Pod::new();
        let att = Attachment::new("counted", &pod);
        let (result, add) = traced(&self.net, "ADD", &att, None);
        let (_, check) = traced(&self.net, "CHECK", &att, Some(&result));
        let (_, del) = traced(&self.net, "DEL", &att, Some(&result));
        [add, check, del]
    }
}

/// A verb, with what strace saw of it.
fn traced(net: &Network<'_>, verb: &str, att: &Attachment, prev: Option<&Value>) -> (Value, Trace) {
    let file = net.host.dir().join(cnimble_tests::unique("strace"));
    let path = file.to_str().unwrap();
    let call = net.call(verb, att, prev).unset("CNIMBLE_RESTRAINT");
    // Whole messages, however many there are in a datagram.
    let outcome = call.under(&["strace", "-f", "-v", "-s", "65536", "-o", path]).run().success();
    let result = serde_json::from_slice(&outcome.stdout).unwrap_or(Value::Null);
    (result, Trace::read(&std::fs::read_to_string(file).unwrap()))
}

/// Why nothing can be counted here, if it can't.
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

/// Its block of memory is in the program, and thread-local values fit into what the C library has for them.
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

/// What a verb costs must not grow with the number of pods.
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
            // Fifty pods with two leases each are many enough for host-local's index, which takes
            // a few calls; reading the leases would take three for each.
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

/// Nothing is listed that an administrator, or other software of the node, has put there.
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

/// docs/PERFORMANCE.md promises what this test enforces.
#[test]
fn the_document_has_the_same_budget() {
    for Row { name, add, check, del, .. } in TABLE {
        let cell = |budget: Budget| format!("{} / {}", budget.calls, budget.messages);
        let line = format!("| {name} | {} | {} | {} |", cell(add), cell(check), cell(del));
        assert!(DOCUMENT.contains(&line), "docs/PERFORMANCE.md lacks the line\n{line}");
    }
}
