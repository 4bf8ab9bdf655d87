//! Crowds on a node beside its pods: links, routes, rules of an administrator, namespaces, and processes that keep the
//! kernel's lock for network configuration or its notifications busy.

use std::fmt::Write;
use std::process::Stdio;

use crate::{Background, Host, Ns};

/// A kind of crowd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowd {
    /// veth pairs, of which a thousand ends are ports of a bridge.
    Links,
    /// Routes of hosts, in the main table.
    Routes,
    /// Rules of nf_tables in a chain that all forwarded packets pass.
    Nft,
    /// Rules of iptables: one half in FORWARD, the other in PREROUTING of nat.
    Iptables,
    /// Namespaces, each with a link to the host.
    Namespaces,
    /// Links of one group that go up and down together, again and again: each time, more announcements at once than
    /// a socket's receive buffer takes.
    Events,
    /// Two processes that make and remove links without a pause.
    Busy,
}

/// The objects that hold a crowd.
#[derive(Default)]
pub struct Company {
    _namespaces: Vec<Ns>,
    _processes: Vec<Background>,
}

impl Crowd {
    /// All kinds of crowds.
    pub const ALL: [Crowd; 7] = [
        Crowd::Links,
        Crowd::Routes,
        Crowd::Nft,
        Crowd::Iptables,
        Crowd::Namespaces,
        Crowd::Events,
        Crowd::Busy,
    ];

    /// How many a very crowded host has.
    pub fn many(self) -> usize {
        match self {
            Crowd::Links => 20_000,
            Crowd::Routes => 100_000,
            Crowd::Nft => 50_000,
            Crowd::Iptables => 10_000,
            Crowd::Namespaces => 500,
            Crowd::Events => 200,
            Crowd::Busy => 2,
        }
    }

    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Crowd::Links => "links",
            Crowd::Routes => "routes",
            Crowd::Nft => "nft rules",
            Crowd::Iptables => "iptables rules",
            Crowd::Namespaces => "namespaces",
            Crowd::Events => "links that go up and down",
            Crowd::Busy => "processes that make and remove links",
        }
    }

    /// Puts so many on the host.
    pub fn gather(self, host: &Host, count: usize) -> Company {
        match self {
            Crowd::Links => links(host, count),
            Crowd::Routes => {
                batch(host, "link add way0 up type veth peer name way1\nlink set way1 up\n");
                batch(host, &lines(count, |text, at| writeln!(text, "route add {}/32 dev way0", ip(at))));
            }
            Crowd::Nft => {
                let rules = lines(count, |text, at| writeln!(text, "ip saddr {} counter drop", ip(at)));
                let table = "table inet admin { chain forward { type filter hook forward priority 0;";
                host.run_with("nft -f -", format!("{table}\n{rules}}}\n}}\n").as_bytes()).success();
            }
            Crowd::Iptables => {
                let half = |chain: &str| {
                    lines(count / 2, |text, at| writeln!(text, "-A {chain} -s {} -j RETURN", ip(at)))
                };
                let text =
                    format!("*filter\n{}COMMIT\n*nat\n{}COMMIT\n", half("FORWARD"), half("PREROUTING"));
                host.run_with("iptables-nft-restore --noflush", text.as_bytes()).success();
            }
            Crowd::Namespaces => {
                let namespaces: Vec<Ns> = (0..count).map(|_| Ns::new()).collect();
                namespaces.iter().enumerate().for_each(|(at, ns)| host.cable(&format!("n{at}"), ns, "eth0"));
                return Company { _namespaces: namespaces, ..Company::default() };
            }
            Crowd::Events => {
                let made = lines(count, |text, at| {
                    writeln!(
                        text,
                        "link add e{at} group 7 type veth peer name f{at}\nlink set e{at} addrgenmode none"
                    )
                });
                batch(host, &made);
                let turns = "while :; do echo link set group 7 up; echo link set group 7 down; done";
                return Company { _processes: vec![endless(host, turns)], ..Company::default() };
            }
            Crowd::Busy => {
                let turns = |at: usize| {
                    let add = format!("echo link add b{at} type veth peer name c{at}");
                    endless(host, &format!("while :; do {add}; echo link del b{at}; done"))
                };
                return Company { _processes: (0..count).map(turns).collect(), ..Company::default() };
            }
        }
        Company::default()
    }
}

/// The crowd's own addresses, 11.0.0.0/8.
fn ip(at: usize) -> String {
    format!("11.{}.{}.{}", at >> 16, at >> 8 & 255, at & 255)
}

fn lines(count: usize, line: impl Fn(&mut String, usize) -> std::fmt::Result) -> String {
    let mut text = String::new();
    (0..count).for_each(|at| line(&mut text, at).unwrap());
    text
}

fn batch(host: &Host, commands: &str) {
    host.run_with("ip -batch -", commands.as_bytes()).success();
}

fn links(host: &Host, count: usize) {
    batch(host, "link add crowd0 up type bridge\n");
    batch(host, &lines(count / 2, |text, at| writeln!(text, "link add l{at} type veth peer name m{at}")));
    // A bridge has room for 1024 ports.
    let ports = (count / 2).min(1000);
    batch(
        host,
        &lines(ports, |text, at| {
            writeln!(
                text,
                "link set l{at} addrgenmode none up master crowd0\nlink set m{at} addrgenmode none up"
            )
        }),
    );
}

/// `ip` fed by a loop of bash, which ends with it.
fn endless(host: &Host, turns: &str) -> Background {
    let mut command = host.command("bash");
    command.args(["-c", &format!("exec ip -force -batch <({turns})")]);
    Background::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}
