use std::os::unix::fs::{PermissionsExt, symlink};

use cnimble_tests::{need, skip};
use serde_json::json;

use crate::Site;

/// A variant of `iptables-restore` that waits, once, until two run.
fn restore_that_meets(site: &Site, variant: &str) -> String {
    let bin = site.host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    // Its name tells the plugin the variant.
    let script = bin.join(format!("meet-{variant}"));
    let text = format!(
        "#!/bin/sh\necho >>{arrived}\n\
         for _ in $(seq 1000); do [ $(wc -l <{arrived}) -lt 2 ] || break; sleep 0.01; done\n\
         exec /usr/sbin/iptables-{variant}-restore \"$@\"\n",
        arrived = bin.join("arrived").display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    symlink(&script, bin.join("iptables-restore")).unwrap();
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display())
}

/// Both have seen that the shared chain is missing.
fn two_first_adds_keep_each_others_ports(variant: &str) {
    let site = Site::new();
    if site.host.run(&format!("iptables-{variant} -t nat -S")).status != 0 {
        skip!("this kernel has no such iptables");
    }
    let path = restore_that_meets(&site, variant);
    let nets = [8080, 9090].map(|port| {
        let mapping = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
        let mut net = site.network(mapping).with("/backend", json!("iptables"));
        // The other family doesn't wait.
        net.path = Some(path.clone());
        net
    });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| site.add(&nets[0], 0));
        site.add(&nets[1], 1);
        first.join().unwrap();
    });
    let rules = site.host.shell(&format!("iptables-{variant}-save -t nat"));
    for port in ["8080", "9090"] {
        let leads = |rule: &&str| rule.starts_with("-A CNI-HOSTPORT-DNAT ") && rule.contains(port);
        assert_eq!(rules.lines().filter(leads).count(), 1, "{rules}");
    }
    for (pod, net) in nets.iter().enumerate() {
        net.check(&site.attachment(pod), &site.results[pod]).success();
    }
    // The nf_tables variant doesn't always refuse `-N` for a concurrent chain.
    let jumps = |chain: &str| rules.lines().filter(|rule| rule.starts_with(&format!("-A {chain} "))).count();
    for chain in ["PREROUTING", "OUTPUT", "POSTROUTING"] {
        assert!(jumps(chain) == 1 || (variant == "nft" && jumps(chain) == 2), "{rules}");
    }
}

#[test]
fn two_first_adds_by_iptables_keep_each_others_ports() {
    need!("nft", "ip", "iptables-nft-save", "iptables-nft-restore");
    two_first_adds_keep_each_others_ports("nft");
}

#[test]
fn two_first_adds_by_legacy_iptables_keep_each_others_ports() {
    need!("nft", "ip", "iptables-legacy-save", "iptables-legacy-restore");
    two_first_adds_keep_each_others_ports("legacy");
}
