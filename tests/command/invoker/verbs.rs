//! All verbs, with lines that use them well and badly.

/// A verb and the lines to test it. `{pod}` is a namespace, `{dir}` the test's directory.
pub(super) struct Verb {
    pub(super) name: &'static str,
    /// A line that prints something with `--json` and succeeds each time.
    pub(super) good: &'static str,
    /// A line with an unknown name, and its exit status.
    pub(super) wrong: (&'static str, i32),
}

const fn verb(name: &'static str, good: &'static str, wrong: (&'static str, i32)) -> Verb {
    Verb { name, good, wrong }
}

/// All verbs. A line is empty if the verb can't be tested so. Such a verb serves until it is stopped, becomes another
/// program, needs a living pod, or takes no names.
pub(super) const VERBS: &[Verb] = &[
    verb("add", "add net {pod}", ("add nett {pod}", 3)),
    verb("check", "check net {pod}", ("check nett {pod}", 3)),
    verb("completions", "completions bash", ("completions bas", 2)),
    verb("cri-down", "cri down none --socket {dir}/cri.sock", ("cri down x --socket {dir}/none", 4)),
    verb(
        "cri-inspect",
        "cri inspect other --socket {dir}/cri.sock",
        ("cri inspect x --socket {dir}/cri.sock", 2),
    ),
    verb("cri-pods", "cri pods --socket {dir}/cri.sock", ("cri pods --socket {dir}/none", 4)),
    verb(
        "cri-set-pod-cidr",
        "cri set-pod-cidr 10.9.9.0/24 --socket {dir}/cri.sock",
        ("cri set-pod-cidr 10.9.9.1/24 --socket {dir}/cri.sock", 2),
    ),
    verb("cri-status", "cri status --socket {dir}/cri.sock", ("cri status --socket {dir}/none", 4)),
    verb(
        "cri-up",
        "cri up {dir}/other.yaml --socket {dir}/cri.sock",
        ("cri up {dir}/none.yaml --socket {dir}/cri.sock", 3),
    ),
    verb("del", "del net {pod}", ("del nett {pod}", 3)),
    verb("doctor", "doctor --data-dir {dir}/leases", ("doctor --cri {dir}/none", 4)),
    verb("events", "events --network net", ("events --network nett", 3)),
    verb("explain", "explain isGateway", ("explain isGatway", 2)),
    verb("gc", "gc zgc --all", ("gc nett --all", 3)),
    verb("guard", "", ("guard --log-format jsn", 2)),
    verb("hand-over", "hand-over --data-dir {dir}/leases --state-dir {dir}/none", ("", 0)),
    verb("init", "init bridge new --dry-run", ("init bridg new", 2)),
    verb("ipam-blocks", "ipam blocks cluster", ("ipam blocks net", 3)),
    verb("ipam-init", "ipam init cluster --new", ("ipam init clustr", 3)),
    verb("ipam-reclaim", "", ("ipam reclaim cluster --kubeconfig {dir}/none", 3)),
    verb("ipam-release", "ipam release cluster node1", ("ipam release clustr node1", 3)),
    verb("ls", "ls", ("ls nett", 3)),
    verb("man", "man", ("man {dir}/file", 5)),
    verb("network-inspect", "network inspect net", ("network inspect nett", 3)),
    verb("network-ls", "network ls", ("network ls --conf-dir {dir}/none", 3)),
    verb("network-rm", "network rm zrm", ("network rm nett", 3)),
    verb("networks", "networks", ("networks --conf-dir {dir}/none", 3)),
    verb("node", "node --remove", ("node --once --kubeconfig {dir}/none", 3)),
    verb("plugins", "plugins", ("plugins --cni-path {dir}/none", 4)),
    verb("pod-down", "pod down none", ("pod down {dir}/none.yaml", 3)),
    verb("pod-exec", "", ("pod exec nobody -- true", 2)),
    verb("pod-ls", "pod ls", ("pod ls --state-dir {dir}/file", 5)),
    verb("pod-status", "pod status web", ("pod status nobody", 2)),
    verb("pod-up", "pod up {dir}/web.yaml", ("pod up {dir}/none.yaml", 3)),
    verb(
        "run",
        "run --once --manifests {dir}/web.yaml --listen off",
        ("run --kubeconfig {dir}/none --listen off", 3),
    ),
    verb("schema", "schema bridge", ("schema brige", 2)),
    verb("serve", "", ("serve --cri {dir}/file", 5)),
    verb("stats", "stats --once", ("stats nobody", 2)),
    verb("status", "status net", ("status nett", 3)),
    verb("trace", "", ("trace nobody 10.0.0.1", 2)),
    verb("tree", "tree", ("tree nett", 2)),
    verb("validate", "validate net", ("validate nett", 3)),
    verb("version", "version", ("", 0)),
];

/// Verbs that print text of another form even with `--json`.
pub(super) const OTHER_FORM: [&str; 2] = ["completions", "man"];
/// Verbs that print nothing without `--json`, unless stdout is a terminal.
pub(super) const QUIET: [&str; 10] = [
    "check",
    "cri-set-pod-cidr",
    "del",
    "gc",
    "ipam-init",
    "ipam-release",
    "node",
    "run",
    "status",
    "validate",
];
/// Verbs with a finding in their good line: the leases of this node are in another directory.
pub(super) const FINDS: [&str; 1] = ["cri-inspect"];
/// Verbs that print one JSON object per line until they are stopped.
pub(super) const STREAMS: [&str; 1] = ["events"];
