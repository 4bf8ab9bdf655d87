//! A runtime drops an ADD in the middle of a chain, and the library undoes it.

use std::time::Duration;

use serde_json::json;

use cnimble_runtime::cni::NetworkList;
use cnimble_runtime::locks::Locks;
use cnimble_runtime::{Attach, Invoker};
use cnimble_tests::{Host, Pod, configs, leases, need, plugin_dir, script};

/// Drops an ADD when `plugin` has done its work and does not answer.
fn dropped_in(host: &Host, pod: &Pod, plugin: &str) {
    let (bin, seen) = (host.dir().join("bin"), host.dir().join("seen"));
    std::fs::create_dir_all(&bin).unwrap();
    let text = format!(
        "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exec {0}/{plugin}\n{0}/{plugin} >{1}.new\nmv {1}.new {1}\nexec sleep infinity\n",
        plugin_dir().display(),
        seen.display()
    );
    script(&bin.join(plugin), &text);
    let list = json!({
        "cniVersion": "1.0.0",
        "name": "net4",
        "plugins": [configs::v4(host), {"type": "tuning", "mac": "02:00:00:00:00:07"}, {"type": "firewall"}],
    });
    let list = NetworkList::from_value(list).unwrap();
    let invoker = Invoker::new([&bin, plugin_dir()])
        .with_cache_dir(host.dir().join("cache"))
        .with_locks(Locks::new(host.lock_dir()));
    let attach = Attach::new("c1", pod.path(), "eth0");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let hangs = async {
            while !seen.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            outcome = invoker.add(&list, &attach) => panic!("{outcome:?}"),
            () = hangs => {}
        }
        let answer = std::fs::read_to_string(&seen).unwrap();
        assert!(answer.contains("10.1.2."), "{plugin} failed: {answer}");
        // The undo holds the network's lock until its end.
        drop(invoker.alone(Some("net4")).await.unwrap());
        assert_eq!(invoker.cache().list().unwrap(), [], "{plugin}");
    });
}

#[test]
fn a_dropped_add_leaves_no_link_and_no_lease() {
    need!("ip", "nft");
    for plugin in ["host-local", "bridge", "tuning", "firewall"] {
        let (host, pod) = (Host::hasty(), Pod::new());
        host.within(|| dropped_in(&host, &pod, plugin));
        assert_eq!(pod.links(), ["lo"], "{plugin}");
        let left: Vec<String> = host.links().into_iter().filter(|name| name.starts_with("veth")).collect();
        assert_eq!(left, [""; 0], "{plugin}");
        let leases = leases(&host.data_dir().join("net4"));
        let left: Vec<&String> = leases.iter().filter(|file| file.starts_with("10.")).collect();
        assert!(left.is_empty(), "{plugin}: {left:?}");
    }
}
