//! ADDs at the same time.

use std::os::unix::fs::{PermissionsExt, symlink};

use cnimble_tests::need;
use serde_json::json;

use crate::Site;

/// Puts an `iptables-restore` into a directory that waits, once, until two of it run. The end of its name says
/// that it is the nf_tables variant.
fn restore_that_meets(site: &Site) -> String {
    let bin = site.host.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = bin.join("meet-nft");
    let arrived = bin.join("arrived");
    let text = format!(
        "#!/bin/sh\necho >>{arrived}\nfor _ in $(seq 1000); do [ $(wc -l <{arrived}) -lt 2 ] || break; sleep 0.01; done\n\
         exec /usr/sbin/iptables-nft-restore \"$@\"\n",
        arrived = arrived.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    symlink(&script, bin.join("iptables-restore")).unwrap();
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display())
}

/// Both have seen that the chain is missing that containers share.
#[test]
fn two_first_adds_by_iptables_keep_each_others_ports() {
    need!("nft", "ip", "iptables-nft-save", "iptables-nft-restore");
    let site = Site::new();
    let path = restore_that_meets(&site);
    let nets = [8080, 9090].map(|port| {
        let mapping =
            json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0"}]);
        let mut net = site.network(mapping).with("/backend", json!("iptables"));
        net.path = Some(path.clone());
        net
    });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| site.add(&nets[0], 0));
        site.add(&nets[1], 1);
        first.join().unwrap();
    });
    let rules = site.host.shell("iptables-nft-save -t nat");
    for port in ["8080", "9090"] {
        let leads = |rule: &&str| rule.starts_with("-A CNI-HOSTPORT-DNAT ") && rule.contains(port);
        assert_eq!(rules.lines().filter(leads).count(), 1, "{rules}");
    }
    for (pod, net) in nets.iter().enumerate() {
        net.check(&site.attachment(pod), &site.results[pod]).success();
    }
    // iptables' nf_tables variant doesn't always refuse `-N` for a chain that has come in between: jumps may be there twice.
    let jumps = |chain: &str| rules.lines().filter(|rule| rule.starts_with(&format!("-A {chain} "))).count();
    assert!(jumps("PREROUTING") > 0 && jumps("OUTPUT") > 0, "{rules}");
}
