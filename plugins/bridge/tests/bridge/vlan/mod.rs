//! `vlan` and `vlanTrunk`, in the virtual machine of `scripts/vm`: many test kernels can't filter vlans. Others test
//! the errors of such a kernel.

mod in_vm;
mod others_in_vm;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Ns, Pod, Snapshot, need, skip};

/// All networks have the same name, subnet and leases, so pods differ only in these keys.
fn network<'h>(host: &'h Host, keys: &Value) -> Network<'h> {
    let mut config = json!({
        "cniVersion": "1.0.0",
        "name": "vlans",
        "type": "bridge",
        "bridge": "br0",
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.9.0.0/24"}]],
        },
    });
    for (key, value) in keys.as_object().unwrap() {
        config[key] = value.clone();
    }
    Network::new(host, config)
}

struct Member {
    pod: Pod,
    attachment: Attachment,
    result: Value,
}

impl Member {
    #[track_caller]
    fn of(network: &Network<'_>, id: &str) -> Self {
        let pod = Pod::new();
        let attachment = Attachment::new(id, &pod);
        let result = network.added(&attachment);
        Member { pod, attachment, result }
    }

    fn port(&self) -> &str {
        self.result["interfaces"][1]["name"].as_str().unwrap()
    }

    fn address(&self) -> &str {
        let address = self.result["ips"][0]["address"].as_str().unwrap();
        address.split('/').next().unwrap()
    }

    fn reaches(&self, to: &str) -> bool {
        self.pod.pings(to)
    }

    /// Half a second for half a millisecond.
    fn misses(&self, to: &str) -> bool {
        self.pod.run(&format!("ping -n -c 1 -W 0.5 {to}")).status == 1
    }
}

/// As `bridge vlan show` prints them: `100 pvid untagged`.
fn vids(host: &Host, device: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in all_vids(host).as_array().unwrap() {
        if entry["ifname"] != device {
            continue;
        }
        for vlan in entry["vlans"].as_array().unwrap() {
            assert!(vlan["vlanEnd"].is_null(), "a range: {vlan}");
            let flags = vlan["flags"].as_array().cloned().unwrap_or_default();
            let has =
                |flag: &str, word: &'static str| if flags.iter().any(|f| f == flag) { word } else { "" };
            let (pvid, untagged) = (has("PVID", " pvid"), has("Egress Untagged", " untagged"));
            found.push(format!("{}{pvid}{untagged}", vlan["vlan"]));
        }
    }
    found
}

fn all_vids(host: &Host) -> Value {
    let text = host.sh("bridge -j vlan show");
    if text.trim().is_empty() { json!([]) } else { serde_json::from_str(&text).unwrap() }
}

fn filters(host: &Host) -> bool {
    host.link("br0")["linkinfo"]["info_data"]["vlan_filtering"] == 1
}

#[test]
fn a_kernel_without_vlan_filtering_gives_one_clear_error_and_nothing_changes() {
    need!("ip", "nft");
    let trial = Ns::new();
    if trial.run("ip link add br0 type bridge vlan_filtering 1").status == 0 {
        skip!("this kernel filters vlans");
    }
    for keys in [
        json!({"vlan": 100}),
        json!({"vlanTrunk": [{"id": 5}]}),
        json!({"vlan": 100, "isGateway": true, "ipMasq": true}),
    ] {
        for bridge_exists in [false, true] {
            let host = Host::new();
            if bridge_exists {
                host.ip("link add br0 type bridge");
                host.ip("link set br0 up");
            }
            let (pod, network) = (Pod::new(), network(&host, &keys));
            let (host_before, pod_before) = (Snapshot::of(&host), Snapshot::of_ns(&pod));
            let attachment = Attachment::new("one", &pod);
            let outcome = network.add(&attachment);
            let error = outcome.error();
            assert!(error.all().contains("br0"), "{keys}: {error:?}");
            assert!(error.msg.contains("can't filter vlans"), "{keys}: {error:?}");
            assert_eq!(outcome.stderr, "", "{keys}: more than one report");
            host_before.assert_same(&Snapshot::of(&host), "after ADD failed");
            pod_before.assert_same(&Snapshot::of_ns(&pod), "after ADD failed");
            network.deleted(&attachment, None);
        }
    }
}
