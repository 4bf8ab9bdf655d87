//! The properties of an attachment: those in its ADD's result, and those that the kernel and the stores have.

use std::fs::File;
use std::path::Path;

use cnimble_cni::{Attachment, Owner};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use super::log::Facts;
use super::plan::Net;
use super::site::Site;

/// An attachment that was added.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// The ID of its container.
    pub(crate) id: String,
    pub(crate) net: Net,
    /// Its namespace's path on the node.
    pub(crate) netns: String,
    pub(crate) told: Facts,
}

impl Claim {
    /// Creates a claim from the result of its ADD. `cache` is the file in which its runtime stores the result.
    pub(crate) fn new(
        id: &str,
        net: Net,
        netns: &str,
        result: &Value,
        port: Option<u16>,
        cache: &str,
    ) -> Self {
        let mut told = Facts::from([format!("cache {cache}")]);
        for ip in result["ips"].as_array().into_iter().flatten() {
            let address = ip["address"].as_str().unwrap_or_default();
            let bare = address.split('/').next().unwrap_or_default();
            told.extend([
                format!("address {address}"),
                format!("lease {bare}"),
                format!("masquerade {bare}"),
            ]);
        }
        for link in result["interfaces"].as_array().into_iter().flatten() {
            let name = link["name"].as_str().unwrap_or_default();
            if link["sandbox"].as_str().unwrap_or_default().is_empty() && name.starts_with("veth") {
                told.insert(format!("port {name}"));
            }
        }
        told.extend(port.map(|port| format!("published {port}")));
        Claim { id: id.to_owned(), net, netns: netns.to_owned(), told }
    }

    fn tag(&self) -> String {
        let attachment = Attachment { container_id: self.id.clone(), ifname: "eth0".to_owned() };
        Owner { network: self.net.name().to_owned(), attachment }.tag()
    }

    /// Creates a claim from the result in a runtime's cache.
    pub(crate) fn cached(
        site: &Site,
        id: &str,
        net: Net,
        netns: &str,
        port: Option<u16>,
        cache: &str,
    ) -> Result<Self, String> {
        let text = std::fs::read_to_string(site.path(cache)).map_err(|err| format!("{cache}: {err}"))?;
        let entry: Value = serde_json::from_str(&text).map_err(|err| format!("{cache}: {err}"))?;
        Ok(Self::new(id, net, netns, &entry["result"], port, cache))
    }
}

/// The lists that are searched for all attachments.
struct Lists {
    /// The host's ends, from `ip -o link`.
    links: String,
    /// Our table, and the nat table of iptables.
    rules: String,
}

impl Site {
    /// Reads each attachment, and logs the properties that still exist.
    pub(crate) fn look(&self, claims: &[(String, Claim)]) {
        if claims.is_empty() {
            return;
        }
        let from = self.log.now();
        let lists = Lists { links: self.links(), rules: self.rules() };
        for (who, claim) in claims {
            let addresses = addresses(&self.path(&claim.netns));
            let has = |fact: &&String| self.has(&lists, &addresses, claim, fact);
            let mut seen: Facts = claim.told.iter().filter(has).cloned().collect();
            // The kernel's list of links may miss a link while others are removed. A lost link does not return.
            for _ in 0..5 {
                let missing: Vec<_> =
                    claim.told.difference(&seen).filter(|fact| fact.starts_with("port ")).collect();
                if missing.is_empty() {
                    break;
                }
                let again = Lists { links: self.links(), rules: String::new() };
                let more: Facts =
                    missing.into_iter().filter(|fact| self.has(&again, "", claim, fact)).cloned().collect();
                seen.extend(more);
            }
            self.log.look(from, who, seen);
        }
    }

    /// Returns the remains of pods, at a time without pods.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.links().lines().map(str::to_owned).collect();
        for net in Net::ALL {
            let dir = self.path(&format!("/var/lib/cni/networks/{}", net.name()));
            let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let leases = names.filter(|name| name.parse::<std::net::IpAddr>().is_ok());
            left.extend(leases.map(|name| format!("lease {name} of {}", net.name())));
        }
        left.extend(self.rules().lines().filter(|line| line.contains("id: ")).map(str::to_owned));
        left
    }

    fn links(&self) -> String {
        self.node.run_with("ip -o link show type veth", b"").text()
    }

    /// Returns the packet rules as their own tools print them.
    fn rules(&self) -> String {
        // Fails as long as there is no pod.
        let mut text = self.node.run_with("nft list table inet cnimble", b"").text();
        if self.go.is_some() {
            text.push_str(&self.node.run_with("iptables-nft-save -t nat", b"").text());
        }
        text
    }

    fn has(&self, lists: &Lists, addresses: &str, claim: &Claim, fact: &str) -> bool {
        let (kind, name) = fact.split_once(' ').unwrap();
        match kind {
            "address" => addresses.lines().any(|line| line == name),
            "port" => {
                let master = format!("master {} ", claim.net.bridge());
                lists.links.lines().any(|line| line.contains(&format!(" {name}@")) && line.contains(&master))
            }
            "lease" => {
                let path = format!("/var/lib/cni/networks/{}/{name}", claim.net.name());
                let content = std::fs::read_to_string(self.path(&path)).unwrap_or_default();
                content == format!("{}\r\neth0", claim.id)
            }
            "masquerade" | "published" => {
                // Our comments shorten a long ID. Those of the Go plugins have only the tag.
                let whose = [claim.id.clone(), claim.tag()];
                let of_claim = |line: &str| whose.iter().any(|word| has_word(line, word));
                lists.rules.lines().any(|line| has_word(line, name) && of_claim(line))
            }
            "cache" => self.path(name).exists(),
            other => panic!("{other} is no kind of fact"),
        }
    }
}

/// Returns true if the word is in the line, and not as a part of another word.
fn has_word(line: &str, word: &str) -> bool {
    let part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == ':');
    line.match_indices(word)
        .any(|(at, _)| !part(line[..at].chars().next_back()) && !part(line[at + word.len()..].chars().next()))
}

/// Returns the addresses of eth0, one a line, or nothing if the namespace doesn't exist.
fn addresses(netns: &Path) -> String {
    let Ok(file) = File::open(netns) else { return String::new() };
    let list = || {
        setns(&file, CloneFlags::CLONE_NEWNET).ok()?;
        let all = nix::ifaddrs::getifaddrs().ok()?.filter(|of| of.interface_name == "eth0");
        let lines = all.filter_map(|of| {
            let (address, mask) = (of.address?, of.netmask?);
            if let (Some(address), Some(mask)) = (address.as_sockaddr_in(), mask.as_sockaddr_in()) {
                return Some(format!("{}/{}\n", address.ip(), u32::from(mask.ip()).count_ones()));
            }
            let (address, mask) = (address.as_sockaddr_in6()?.ip(), mask.as_sockaddr_in6()?.ip());
            Some(format!("{address}/{}\n", u128::from(mask).count_ones()))
        });
        Some(lines.collect::<String>())
    };
    std::thread::scope(|scope| scope.spawn(list).join().unwrap()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::has_word;

    #[test]
    fn an_address_or_id_is_not_found_within_a_longer_one() {
        let line = r#"10.1.0.25 comment "b7-c2, net: own, if: eth0, id: w1n12""#;
        assert!(has_word(line, "10.1.0.25") && has_word(line, "w1n12"));
        assert!(!has_word(line, "10.1.0.2") && !has_word(line, "w1n1") && !has_word(line, "0.1.0.25"));
        assert!(!has_word("fd00::2:1 accept", "fd00::2"));
        let theirs =
            r#"-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"own\" id: \"w1n1\"" -j X"#;
        assert!(has_word(theirs, "10.1.0.2") && has_word(theirs, "w1n1"));
    }
}
