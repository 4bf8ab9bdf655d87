//! What a process inherits: environment, descriptors, umask, limits, name.

use serde_json::json;

use cnimble_tests::{
    Attachment, Host, Network, Pod, Snapshot, announce, configs, leases, need, plugin_dir, script, skip,
};

/// The dynamic loader does what the environment says before `main` can object; a static binary
/// has none.
#[test]
fn the_loader_is_not_asked() {
    need!();
    let binary = std::fs::read(plugin_dir().join("bridge")).unwrap();
    if binary.windows(12).any(|text| text == b"/ld-linux-x8" || text == b"/ld-linux-aa") {
        skip!("these plugins aren't static; scripts/test builds those that are");
    }
    let host = Host::new();
    let pod = Pod::new();
    let mut call = Network::new(&host, configs::v4(&host)).call("ADD", &Attachment::new("c1", &pod), None);
    for (key, value) in [
        ("LD_PRELOAD", "/nowhere/evil.so"),
        ("LD_AUDIT", "/nowhere/evil.so"),
        ("LD_LIBRARY_PATH", "/nowhere"),
        ("LD_DEBUG", "all"),
        ("GCONV_PATH", "/nowhere"),
        ("MALLOC_CHECK_", "3"),
        ("LC_ALL", "../../nowhere"),
        ("TMPDIR", "/nowhere"),
        ("HOME", "/nowhere"),
        ("RUST_BACKTRACE", "full"),
        ("RUST_MIN_STACK", "99999999999999999999"),
        ("RUST_LOG", "trace"),
    ] {
        call = call.env(key, value);
    }
    let outcome = call.run();
    outcome.result();
    assert_eq!(outcome.stderr, "");
}

/// iptables is looked for in PATH, but never in a directory that depends on where we stand.
#[test]
fn no_command_is_run_from_the_working_directory() {
    need!("ip", "nft", "iptables");
    let host = Host::hasty();
    let pod = Pod::new();
    let proof = host.dir().join("proof");
    for name in
        ["iptables", "ip6tables", "iptables-restore", "iptables-save", "iptables-nft-restore", "nft", "sh"]
    {
        script(&host.dir().join(name), &format!("#!/bin/sh\ntouch {}\n", proof.display()));
    }
    let net = Network::new(&host, configs::v4(&host))
        .with("/ipMasq", json!(true))
        .with("/ipMasqBackend", json!("iptables"));
    let there = format!("cd {} && exec \"$0\"", host.dir().display());
    for path in ["", ".", ":", "./", "bin:..", ".:/nowhere"] {
        for verb in ["ADD", "DEL"] {
            let call = net.call(verb, &Attachment::new("c1", &pod), None).env("PATH", path);
            let outcome = call.under(&["/bin/sh", "-c", &there]).run();
            assert!(!proof.exists(), "PATH={path}: {verb} ran a file of the working directory");
            outcome.success();
        }
    }
}

/// A delegate gets what the caller gave us, and nothing that we opened.
#[test]
fn delegates_inherit_nothing_of_ours() {
    need!("ip", "nft");
    let host = Host::hasty();
    let pod = Pod::new();
    let bin = host.dir().join("bin");
    let out = host.dir().join("descriptors");
    std::fs::create_dir(&bin).unwrap();
    let spy = format!(
        "#!/bin/sh\nfor fd in /proc/$$/fd/*; do readlink $fd; done >{}\ncat >/dev/null\n\
         echo '{{\"cniVersion\":\"1.0.0\",\"ips\":[{{\"address\":\"10.1.2.2/24\"}}]}}'\n",
        out.display()
    );
    script(&bin.join("spy"), &spy);
    let net = Network::new(&host, configs::v4(&host)).with("/ipam", json!({"type": "spy"}));
    let call = net.call("ADD", &Attachment::new("c1", &pod), None).env("CNI_PATH", &bin);
    call.run().result();
    let seen = std::fs::read_to_string(&out).unwrap();
    // Pipes and /dev/null are the caller's; sockets, namespaces and leases are ours.
    for line in seen.lines() {
        let ours = line.contains("socket:") || line.contains("net:[") || line.contains("networks");
        assert!(!ours, "{seen}");
    }
    assert!(seen.lines().filter(|line| line.starts_with("pipe:")).count() >= 3, "{seen}");
}

/// An answer without an end is not collected to the last byte.
#[test]
fn a_delegate_that_never_stops_talking() {
    need!("ip", "nft", "prlimit");
    let host = Host::hasty();
    let pod = Pod::new();
    let before = Snapshot::of(&host);
    let bin = host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for (name, line) in
        [("yes", "exec yes"), ("deaf", "exec yes <&-"), ("fails", "head -c 64M /dev/zero; exit 3")]
    {
        script(&bin.join(name), &format!("#!/bin/sh\n{line}\n"));
        let net = Network::new(&host, configs::v4(&host)).with("/ipam", json!({"type": name}));
        let call = net.call("ADD", &Attachment::new("c1", &pod), None).env("CNI_PATH", &bin);
        let error = call.under(&["prlimit", "--as=1073741824"]).run().error();
        assert!([6, 104].contains(&error.code), "{name}: {}", error.all());
        before.assert_same(&Snapshot::settled(&host), name);
    }
}

#[test]
fn no_umask_opens_or_breaks_the_store() {
    need!("ip");
    for umask in ["000", "022", "077", "777"] {
        let host = Host::new();
        let pod = Pod::new();
        let net = Network::new(&host, configs::ipam(&host));
        let att = Attachment::new("c1", &pod);
        let script = format!("umask {umask} && exec \"$0\"");
        net.call("ADD", &att, None).under(&["sh", "-c", &script]).run().result();
        for line in leases(&host.data_dir()) {
            let mode = line.split(' ').nth(1).unwrap();
            let mode = u32::from_str_radix(mode, 8).unwrap();
            assert_eq!(mode & 0o022, 0, "umask {umask}: {line}");
            assert!(line.contains('/') || mode & 0o077 == 0, "umask {umask}: {line}");
        }
        // As the next call has it, with whatever umask.
        net.add(&Attachment::new("c2", &pod)).result();
        net.call("DEL", &att, None).under(&["sh", "-c", &script]).run().success();
        net.deleted(&Attachment::new("c2", &pod), None);
        assert!(!leases(&host.data_dir()).iter().any(|line| line.contains("eth0")));
    }
}

/// Few descriptors, no room for files: an error or a success, and no trace of a failure.
#[test]
fn limits_are_errors() {
    need!("ip", "nft", "prlimit");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    // The bridge and the tables are there before.
    let neighbour = Pod::new();
    net.added(&Attachment::new("neighbour", &neighbour));
    let before = Snapshot::settled(&host).without_lines("last_reserved_ip");
    let att = Attachment::new("c1", &pod);
    let mut limits: Vec<String> = (4..20).map(|count| format!("--nofile={count}:{count}")).collect();
    limits.extend(["--fsize=0", "--fsize=4", "--fsize=12"].map(str::to_owned));
    let mut refused = 0;
    for limit in &limits {
        let outcome = net.call("ADD", &att, None).under(&["prlimit", limit]).run();
        if outcome.status != 0 {
            outcome.error();
            refused += 1;
            let now = Snapshot::settled(&host).without_lines("last_reserved_ip");
            before.assert_same(&now, &format!("{limit}: {}", outcome.text()));
        }
        net.deleted(&att, None);
        let now = Snapshot::settled(&host).without_lines("last_reserved_ip");
        before.assert_same(&now, &format!("{limit} and DEL"));
        assert_eq!(pod.links(), ["lo"]);
    }
    announce("NOTE", &format!("{refused} of {} limits refused ADD", limits.len()));
    assert!(refused > 3);
}

/// The name decides which plugin runs; a caller may put anything there.
#[test]
fn names_of_the_process() {
    need!();
    let host = Host::new();
    for name in ["", "/", "..", "bridge/..", "--list-plugins", "x\u{1b}[2J", "loopback\n"] {
        let script = format!("exec -a '{name}' \"$0\"");
        let call = host.call("loopback").command("VERSION");
        let outcome = call.under(&["bash", "-c", &script]).run();
        // The file's own name counts where the given one is none.
        assert_eq!(outcome.result()["cniVersion"], configs::newest(), "{name:?}");
    }
}
