//! Kea's DHCPv6 server. Leases are renewed every second.

use cnimble_tests::need;

use super::*;

/// Its lease file outlives it.
fn kea(host: &Host) -> Background {
    let dir = host.dir();
    let config = json!({"Dhcp6": {
        "interfaces-config": {"interfaces": ["br0"]},
        "server-id": {"type": "EN", "enterprise-id": 2495, "identifier": "87ABEF7A5BB545", "persist": false},
        "lease-database": {
            "type": "memfile", "persist": true, "name": dir.join("kea.csv"), "lfc-interval": 0,
        },
        "renew-timer": 1,
        "rebind-timer": 3000,
        "preferred-lifetime": 3200,
        "valid-lifetime": 3600,
        "option-data": [{"name": "dns-servers", "data": "2001:db8::53"}],
        "subnet6": [{
            "id": 1, "subnet": "fd00:8::/64", "interface": "br0",
            "pools": [{"pool": "fd00:8::1000-fd00:8::1fff"}],
        }],
        "loggers": [{
            "name": "kea-dhcp6", "severity": "INFO", "output_options": [{"output": "stderr"}],
        }],
    }});
    let path = dir.join("kea.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let mut command = host.command("kea-dhcp6");
    command.arg("-c").arg(&path).env("KEA_PIDFILE_DIR", dir).env("KEA_LOCKFILE_DIR", "none");
    let log = std::fs::File::options().create(true).append(true).open(dir.join("kea.log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Background::start(&mut command)
}

/// The last state in Kea's file: address, and valid seconds. 0 is released.
fn known(host: &Host) -> Option<(String, String)> {
    let text = std::fs::read_to_string(host.dir().join("kea.csv")).unwrap_or_default();
    let line = text.lines().rfind(|line| line.starts_with("fd"))?;
    let fields: Vec<&str> = line.split(',').collect();
    Some((fields[0].to_owned(), fields[2].to_owned()))
}

fn written(host: &Host) -> usize {
    let text = std::fs::read_to_string(host.dir().join("kea.csv")).unwrap_or_default();
    text.lines().filter(|line| line.starts_with("fd")).count()
}

#[test]
fn kea_gives_renews_and_releases_a_lease() {
    need!("kea-dhcp6");
    let (host, pod) = (host(), Pod::new());
    let log = || std::fs::read_to_string(host.dir().join("kea.log")).unwrap_or_default();
    let server = kea(&host);
    let _daemon = start_daemon(&host, &["-resendmax", "1s"]);
    let network = network(&host);
    let attachment = Attachment::new("c1", &pod);
    let result = network.added(&attachment);
    let ip = address(&result).trim_end_matches("/128").to_owned();
    assert!(ip.starts_with("fd00:8::1"), "{result:#}");
    assert_eq!(result["dns"]["nameservers"], json!(["2001:db8::53"]));
    let times = written(&host);
    assert!(wait_until(PATIENCE, || written(&host) > times + 1), "{}", log());
    drop(server);
    let times = written(&host);
    let _server = kea(&host);
    assert!(wait_until(PATIENCE, || written(&host) > times), "{}", log());
    assert_eq!(ipv6(&pod), [address(&result)]);
    network.check(&attachment, &result).success();
    network.deleted(&attachment, Some(&result));
    let gone = || known(&host).is_none_or(|(address, valid)| address == ip && valid == "0");
    assert!(wait_until(PATIENCE, gone), "{:?}\n{}", known(&host), log());
}
