use std::fmt::Write as _;
use std::process::Command;

const FILES: [&str; 18] = [
    include_str!("fib_rules.rs"),
    include_str!("gen_stats.rs"),
    include_str!("if_bridge.rs"),
    include_str!("if_link.rs"),
    include_str!("if_tun.rs"),
    include_str!("inet_diag.rs"),
    include_str!("net_namespace.rs"),
    include_str!("netconf.rs"),
    include_str!("netlink.rs"),
    include_str!("nexthop.rs"),
    include_str!("nf_conntrack.rs"),
    include_str!("nf_tables.rs"),
    include_str!("nfnetlink.rs"),
    include_str!("pkt_cls.rs"),
    include_str!("pkt_sched.rs"),
    include_str!("rtnetlink.rs"),
    include_str!("xfrm.rs"),
    include_str!("xtables.rs"),
];

const HEADERS: [&str; 30] = [
    "stddef.h",
    "sys/ioctl.h",
    "sys/socket.h",
    "linux/fib_rules.h",
    "linux/gen_stats.h",
    "linux/if.h",
    "linux/if_addr.h",
    "linux/if_bridge.h",
    "linux/if_link.h",
    "linux/if_tun.h",
    "linux/inet_diag.h",
    "linux/ip.h",
    "linux/ipv6.h",
    "linux/neighbour.h",
    "linux/net_namespace.h",
    "linux/netconf.h",
    "linux/netfilter.h",
    "linux/netfilter/nf_tables.h",
    "linux/netfilter/nf_tables_compat.h",
    "linux/netfilter/nfnetlink.h",
    "linux/netfilter/nfnetlink_conntrack.h",
    "linux/netfilter/xt_comment.h",
    "linux/netfilter/xt_conntrack.h",
    "linux/nexthop.h",
    "linux/pkt_cls.h",
    "linux/pkt_sched.h",
    "linux/rtnetlink.h",
    "linux/sock_diag.h",
    "linux/tc_act/tc_mirred.h",
    "linux/xfrm.h",
];

/// Not in the headers of Debian 12, or not in any.
const ABSENT: [&str; 4] =
    ["NFTA_SET_COUNT", "CTA_FILTER_F_CTA_PROTO_NUM", "IFLA_GSO_IPV4_MAX_SIZE", "IFLA_GRO_IPV4_MAX_SIZE"];

/// The C compiler compares each constant with the header's: by its name, or by the expression
/// that its comment consists of (`sizeof(struct …)`).
#[test]
fn constants_are_those_of_the_headers() {
    let mut source = String::new();
    for header in HEADERS {
        writeln!(source, "#include <{header}>").unwrap();
    }
    let mut count = 0;
    for file in FILES {
        let mut comment = "";
        for line in file.lines() {
            if let Some(constant) = line.strip_prefix("pub(crate) const ") {
                let (name, rest) = constant.split_once(": ").unwrap();
                let (kind, value) = rest.split_once(" = ").unwrap();
                let value = value.trim_end_matches(';').replace('_', "");
                let by_comment = comment.strip_prefix("/// `").and_then(|text| text.strip_suffix('`'));
                let expression = by_comment.unwrap_or(name);
                let cast = if kind.starts_with('i') { "long long" } else { "unsigned long long" };
                if !ABSENT.contains(&name) {
                    writeln!(
                        source,
                        "_Static_assert(({cast})({expression}) == ({cast})({value}), \"{name}\");"
                    )
                    .unwrap();
                    count += 1;
                }
            }
            comment = line;
        }
    }
    assert!(count > 150, "{count} constants are too few");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("constants.c");
    std::fs::write(&path, source).unwrap();
    let output = match Command::new("cc").arg("-fsyntax-only").arg(&path).output() {
        Ok(output) => output,
        Err(err) => {
            eprintln!("SKIP constants_are_those_of_the_headers: cc: {err}");
            return;
        }
    };
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("linux/") && told.contains("No such file") {
        eprintln!("SKIP constants_are_those_of_the_headers: {told}");
        return;
    }
    assert!(output.status.success(), "{told}");
}
