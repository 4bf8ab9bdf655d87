//! Tests of the plugin sbr after bridge.
#![cfg(test)]

mod company;
mod reference;
mod verbs;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Outcome, Pod, configs};

struct Site {
    host: Host,
    pod: Pod,
}

impl Site {
    fn new() -> Self {
        Site { host: Host::new(), pod: Pod::new() }
    }

    /// Bridge number `number`, with both families.
    fn front(&self, number: u8) -> Network<'_> {
        let mut config = configs::dual(&self.host);
        config["cniVersion"] = "1.1.0".into();
        config["name"] = format!("net{number}").into();
        config["bridge"] = format!("br{number}").into();
        config["ipam"]["ranges"] = json!([[{"subnet": format!("10.7.{number}.0/24")}], [{"subnet": format!("fd00:7:{number}::/64")}]]);
        Network::new(&self.host, config)
    }

    fn sbr(&self) -> Network<'_> {
        Network::new(&self.host, json!({"cniVersion": "1.1.0", "name": "net1", "type": "sbr"}))
    }

    fn attachment(&self, ifname: &str) -> Attachment {
        Attachment::new("c1", &self.pod).ifname(ifname)
    }

    fn rules(&self) -> Vec<(String, String)> {
        let all = format!("{}{}", self.pod.ip("rule show"), self.pod.ip("-6 rule show"));
        let mut rules: Vec<(String, String)> = all
            .lines()
            .filter_map(|line| line.split_once("from ")?.1.split_once(" lookup "))
            .filter(|(from, _)| *from != "all")
            .map(|(from, rest)| (from.to_owned(), rest.split(' ').next().unwrap().to_owned()))
            .collect();
        rules.sort();
        rules
    }

    fn way(&self, from: &str) -> String {
        let to = if from.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
        let told = self.pod.ip(&format!("route get {to} from {from}"));
        told.split_once(" dev ")
            .map(|(_, rest)| rest.split(' ').next().unwrap().to_owned())
            .unwrap_or_default()
    }
}

fn add(sbr: &Network<'_>, attachment: &Attachment, prev: &Value) -> Outcome {
    sbr.call("ADD", attachment, Some(prev)).run()
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

#[track_caller]
fn refused(outcome: &Outcome, code: u64, why: &str) {
    let err = outcome.error();
    assert!(err.code == code && err.all().contains(why), "{err:?}");
}
