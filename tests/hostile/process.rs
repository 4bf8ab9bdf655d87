//! The inherited state of a process: its environment and descriptors, its umask and limits, and its name.

use std::process::Stdio;

use serde_json::json;

use cnimble_tests::{
    Attachment, Background, Host, Network, PATIENCE, Pod, Snapshot, announce, configs, leases, need,
    plugin_dir, script, skip, wait_until,
};

/// The dynamic loader obeys the environment before `main` runs. A static binary has no loader.
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

/// iptables is searched for in PATH, but never in a directory relative to the working directory.
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

/// A delegate inherits the caller's descriptors, and none that the plugin opened.
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
    // Pipes and /dev/null are the caller's. Sockets, namespaces and leases are the plugin's.
    for line in seen.lines() {
        let ours = line.contains("socket:") || line.contains("net:[") || line.contains("networks");
        assert!(!ours, "{seen}");
    }
    assert!(seen.lines().filter(|line| line.starts_with("pipe:")).count() >= 3, "{seen}");
}

/// An endless answer is not collected to the end.
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
        // The next call can use the files, under any umask.
        net.add(&Attachment::new("c2", &pod)).result();
        net.call("DEL", &att, None).under(&["sh", "-c", &script]).run().success();
        net.deleted(&Attachment::new("c2", &pod), None);
        assert!(!leases(&host.data_dir()).iter().any(|line| line.contains("eth0")));
    }
}

/// Few descriptors or no room for files lead to an error or a success, and a failure leaves nothing.
#[test]
fn limits_are_errors() {
    need!("ip", "nft", "prlimit");
    let host = Host::hasty();
    let pod = Pod::new();
    let net = Network::new(&host, configs::dual(&host)).with("/ipMasq", json!(true));
    // The bridge and the tables exist before.
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

/// The name selects the plugin, and a caller may pass any name.
#[test]
fn names_of_the_process() {
    need!();
    let host = Host::new();
    for name in ["", "/", "..", "bridge/..", "--list-plugins", "x\u{1b}[2J", "loopback\n"] {
        let script = format!("exec -a '{name}' \"$0\"");
        let call = host.call("loopback").command("VERSION");
        let outcome = call.under(&["bash", "-c", &script]).run();
        // If the given name is no plugin, the file's name counts.
        assert_eq!(outcome.result()["cniVersion"], configs::newest(), "{name:?}");
    }
}

/// The binary gives an attacker no easy target: no fixed address, no writable function table, no memory that is both
/// writable and executable.
#[test]
fn the_binary_is_hardened() {
    need!();
    let path = std::fs::canonicalize(plugin_dir().join("bridge")).unwrap();
    let elf = Elf(std::fs::read(&path).unwrap());
    assert_eq!(elf.number(16, 2), 3, "it is no ET_DYN: its address is fixed");
    let headers = elf.headers();
    let of = |kind: u64| headers.iter().filter(move |header| header.kind == kind);
    let stack = of(0x6474_e551).next().expect("no PT_GNU_STACK");
    assert_eq!(stack.flags & 1, 0, "the stack is executable");
    for segment in of(1) {
        assert!(segment.flags & 3 != 3, "a segment is writable and executable");
    }
    let relro = of(0x6474_e552).next().expect("no PT_GNU_RELRO");
    let dynamic = elf.dynamic(of(2).next().expect("no PT_DYNAMIC"));
    let value = |tag: u64| dynamic.iter().find(|(found, _)| *found == tag).map_or(0, |(_, value)| *value);
    // The tags are DT_FLAGS with DF_BIND_NOW, or DT_FLAGS_1 with DF_1_NOW.
    assert!(
        value(30) & 8 != 0 || value(0x6fff_fffb) & 1 != 0,
        "functions are looked up when they are called"
    );
    assert_eq!((value(22), value(30) & 4), (0, 0), "its code is relocated");

    // A process of the binary that waits for its configuration.
    let host = Host::new();
    let mut bases = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let mut command = host.command(&path);
        command.env_clear().env("CNI_COMMAND", "STATUS").env("CNI_PATH", "/nowhere");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let plugin = Background::start(&mut command);
        let maps = || {
            let text = std::fs::read_to_string(format!("/proc/{}/maps", plugin.pid())).unwrap();
            let lines = text.lines().filter(|line| line.ends_with(path.to_str().unwrap()));
            lines.map(Mapping::read).collect::<Vec<_>>()
        };
        let sealed = || {
            let maps = maps();
            let Some(base) = maps.first().map(|first| first.start) else { return false };
            let page = maps.iter().find(|map| (map.start..map.end).contains(&(base + relro.address)));
            page.is_some_and(|page| page.rights == "r--p")
        };
        assert!(wait_until(PATIENCE, sealed), "its constants stay writable");
        let maps = maps();
        assert!(!maps.iter().any(|map| map.rights.contains("wx")));
        bases.insert(maps[0].start);
    }
    if std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap().trim() != "0" {
        assert!(bases.len() > 1, "it is at the same address each time");
    }
    if of(3).next().is_some() {
        skip!("these plugins have a dynamic loader; scripts/test builds those that don't");
    }
}

/// A line of /proc/PID/maps.
struct Mapping {
    start: u64,
    end: u64,
    rights: String,
}

impl Mapping {
    fn read(line: &str) -> Self {
        let mut words = line.split(' ');
        let (start, end) = words.next().unwrap().split_once('-').unwrap();
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        Mapping { start: hex(start), end: hex(end), rights: words.next().unwrap().to_owned() }
    }
}

/// A 64-bit little-endian program (elf(5)).
struct Elf(Vec<u8>);

struct Header {
    kind: u64,
    flags: u64,
    offset: usize,
    address: u64,
    length: usize,
}

impl Elf {
    fn number(&self, at: usize, length: usize) -> u64 {
        self.0[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn place(&self, at: usize, length: usize) -> usize {
        self.number(at, length).try_into().unwrap()
    }

    fn headers(&self) -> Vec<Header> {
        let (table, size, count) = (self.place(32, 8), self.place(54, 2), self.place(56, 2));
        let at = (0..count).map(|nth| table + nth * size);
        at.map(|at| Header {
            kind: self.number(at, 4),
            flags: self.number(at + 4, 4),
            offset: self.place(at + 8, 8),
            address: self.number(at + 16, 8),
            length: self.place(at + 32, 8),
        })
        .collect()
    }

    fn dynamic(&self, header: &Header) -> Vec<(u64, u64)> {
        let at = (header.offset..header.offset + header.length).step_by(16);
        at.map(|at| (self.number(at, 8), self.number(at + 8, 8))).collect()
    }
}
