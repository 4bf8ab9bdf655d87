mod properties;

use serde_json::json;

use super::*;
use crate::Code;

fn read(version: Version, value: &Value) -> Result<CniResult, Error> {
    CniResult::from_value(value, version, "prevResult")
}

#[test]
fn errors_have_the_path() {
    for (version, value, msg) in [
        (
            Version::V1_0_0,
            json!({ "ips": [{ "address": "10.1.2.3" }] }),
            "prevResult.ips[0].address: invalid CIDR address: 10.1.2.3",
        ),
        (Version::V1_0_0, json!({ "ips": [{}] }), "prevResult.ips[0]: missing field `address`"),
        (Version::V1_0_0, json!({ "ips": [null] }), "prevResult.ips[0]: missing field `address`"),
        (
            Version::V1_0_0,
            json!({ "ips": [{ "address": "10.0.0.1/8", "gateway": "x" }] }),
            "prevResult.ips[0].gateway: invalid IP address: x",
        ),
        (
            Version::V1_0_0,
            json!({ "ips": [{ "address": "10.0.0.1/8", "interface": -2 }] }),
            "prevResult.ips[0].interface: invalid value: integer `-2`, expected an index into the list of interfaces",
        ),
        (
            Version::V0_4_0,
            json!({ "routes": [{ "dst": "10.0.0.0" }] }),
            "prevResult.routes[0].dst: invalid CIDR address: 10.0.0.0",
        ),
        (
            Version::V1_1_0,
            json!({ "routes": [{ "dst": "::/0", "scope": 256 }] }),
            "prevResult.routes[0].scope: invalid value: integer `256`, expected u8",
        ),
        (
            Version::V0_2_0,
            json!({ "ip4": { "ip": "10.0.0.1/8", "routes": [{ "dst": "x" }] } }),
            "prevResult.ip4.routes[0].dst: invalid CIDR address: x",
        ),
        (Version::V0_1_0, json!({ "ip6": {} }), "prevResult.ip6: missing field `ip`"),
        (
            Version::V1_0_0,
            json!({ "dns": { "search": ["a", 1] } }),
            "prevResult.dns.search[1]: invalid type: integer `1`, expected a string",
        ),
        (
            Version::V1_0_0,
            json!({ "cniVersion": 1 }),
            "prevResult.cniVersion: invalid type: integer `1`, expected a string",
        ),
        (Version::V1_0_0, json!([]), "prevResult: invalid type: list, expected an object"),
    ] {
        let err = read(version, &value).unwrap_err();
        assert_eq!((err.code, err.msg.as_str()), (Code::INVALID_CONFIG, msg), "{value}");
    }
}

#[test]
fn reads_what_runtimes_and_old_plugins_write() {
    let result = read(
        Version::V0_3_0,
        &json!({
            "IPs": [{ "version": "4", "interface": -1, "address": "10.0.0.2/24", "gateway": "" }],
            "routes": null, "dns": {}, "interfaces": [{ "name": "eth0", "mtu": 0 }],
        }),
    )
    .unwrap();
    assert_eq!((result.ips[0].interface, result.ips[0].gateway), (None, None));
    assert_eq!(result.interfaces[0].mtu, None);
    assert!(result.dns.is_empty());
}

#[test]
fn without_an_address_there_is_no_old_form() {
    let err = CniResult::default().to_json(Version::V0_2_0).unwrap_err();
    assert_eq!(err.code, Code::INCOMPATIBLE_VERSION);
    assert_eq!(err.msg, "cannot convert: no valid IP addresses");
    assert_eq!(
        CniResult::default().to_json(Version::V0_3_0).unwrap(),
        "{\n    \"cniVersion\": \"0.3.0\",\n    \"dns\": {}\n}"
    );
}

/// The golden files of `version`: case and text.
#[test]
fn a_dns_key_that_is_there_replaces_ipams_settings() {
    let given = |value: &Value| json::from_value::<DnsKeys>(value, "dns").unwrap().given();
    for nothing in [json!({}), json!({ "domain": "" }), json!({ "nameservers": null })] {
        assert_eq!(given(&nothing), None, "{nothing}");
    }
    // A list that is there and empty is a setting.
    for empty in ["nameservers", "search", "options"] {
        assert_eq!(given(&json!({ empty: [] })), Some(Dns::default()), "{empty}");
    }
    let all = json!({ "nameservers": ["10.0.0.1"], "domain": "d", "search": ["s"], "options": ["o"] });
    let dns = given(&all).unwrap();
    assert_eq!((dns.nameservers, dns.domain.as_str()), (vec!["10.0.0.1".to_owned()], "d"));
    assert_eq!((dns.search, dns.options), (vec!["s".to_owned()], vec!["o".to_owned()]));
    assert_eq!(given(&json!({ "domain": "d" })).unwrap().domain, "d");
}

fn golden(version: Version) -> Vec<(String, String)> {
    let dir = format!("{}/../../../tests/golden/results/{version}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let case = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (case, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn parsed(text: &str) -> CniResult {
    // The file's own version counts, never the fallback.
    let fallback = if text.contains("\"ip4\"") { Version::V1_1_0 } else { Version::V0_1_0 };
    CniResult::from_value(&serde_json::from_str(text).unwrap(), fallback, "").unwrap()
}

#[test]
fn golden_files_survive_reading_and_writing() {
    let mut seen = 0;
    for version in Version::ALL.iter().copied() {
        for (case, text) in golden(version) {
            let result = parsed(&text);
            assert_eq!(result.to_json(version).unwrap(), text, "{version}/{case}");
            assert_eq!(
                result.to_value(version).unwrap(),
                serde_json::from_str::<Value>(&text).unwrap(),
                "{version}/{case}"
            );
            seen += 1;
        }
    }
    assert!(seen >= 48, "{seen}");
}

#[test]
fn golden_files_convert_into_each_other() {
    let mut seen = 0;
    for from in Version::ALL.iter().copied() {
        for to in Version::ALL.iter().copied() {
            let wanted = golden(to);
            for (case, text) in golden(from) {
                let Some((_, wanted)) = wanted.iter().find(|(other, _)| *other == case) else {
                    continue;
                };
                // Up again only where the older form has lost nothing.
                let lost = match case.as_str() {
                    "extras" => {
                        to > from && to >= Version::V0_3_0 && from < Version::V1_0_0 && !same_form(from, to)
                    }
                    "bridge" | "macvlan" => from <= Version::V0_2_0 && to >= Version::V0_3_0,
                    _ => false,
                };
                if !lost {
                    assert_eq!(&parsed(&text).to_json(to).unwrap(), wanted, "{case} from {from} to {to}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 250, "{seen}");
}

fn same_form(a: Version, b: Version) -> bool {
    let form = |version| match version {
        Version::V0_1_0 | Version::V0_2_0 => 2,
        Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => 4,
        Version::V1_0_0 | Version::V1_1_0 => 10,
    };
    form(a) == form(b)
}

#[test]
fn golden_errors() {
    for case in ["unclassified", "version", "escaped"] {
        let path = format!("{}/../../../tests/golden/errors/{case}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let error = Error::from_json(text.as_bytes()).unwrap();
        let ours = text.replacen("{\n", "{\n    \"cniVersion\": \"0.4.0\",\n", 1);
        assert_eq!(error.to_json(Version::V0_4_0), ours, "{case}");
    }
}

/// A small deterministic generator (xorshift64*): the same results at every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    fn option<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    fn list<T>(&mut self, make: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| make(self)).collect()
    }

    fn text(&mut self) -> String {
        const ALPHABET: &[char] =
            &['a', 'Z', '0', '/', '<', '>', '&', '"', '\\', '\n', '\u{1}', '\u{7f}', 'é', '\u{2028}', '😀'];
        (0..self.below(6)).map(|_| ALPHABET[self.below(ALPHABET.len() as u64) as usize]).collect()
    }

    fn ip(&mut self) -> IpAddr {
        let ip: IpAddr = match self.below(4) {
            0 | 1 => (self.next() as u32).to_be_bytes().into(),
            // Runs of zeros, which are printed short.
            2 => (u128::from(self.next()) << self.below(65)).to_be_bytes().into(),
            _ => ((u128::from(self.next()) << 64) | u128::from(self.next())).to_be_bytes().into(),
        };
        ip.to_canonical()
    }

    fn net(&mut self) -> IpNetwork {
        let ip = self.ip();
        let max = if ip.is_ipv4() { 33 } else { 129 };
        IpNetwork::new(ip, self.below(max) as u8).unwrap()
    }

    fn nonzero(&mut self) -> u32 {
        (self.next() as u32).max(1)
    }

    fn result(&mut self) -> CniResult {
        CniResult {
            interfaces: self.list(|r| Interface {
                name: r.text(),
                mac: r.text(),
                mtu: r.option(Self::nonzero),
                sandbox: r.text(),
                socket_path: r.text(),
                pci_id: r.text(),
            }),
            ips: self.list(|r| IpConfig {
                interface: r.option(|r| r.below(9) as u32),
                address: r.net(),
                gateway: r.option(Self::ip),
            }),
            routes: self.list(|r| Route {
                dst: r.net(),
                gw: r.option(Self::ip),
                mtu: r.option(Self::nonzero),
                advmss: r.option(Self::nonzero),
                priority: r.option(Self::nonzero),
                table: r.option(|r| r.next() as u32),
                scope: r.option(|r| r.next() as u8),
            }),
            dns: Dns {
                nameservers: self.list(Self::text),
                domain: self.text(),
                search: self.list(Self::text),
                options: self.list(Self::text),
            },
        }
    }
}

/// The part of `result` that the form of `version` keeps.
fn reduced(result: &CniResult, version: Version) -> CniResult {
    let mut left = result.clone();
    if version < Version::V1_0_0 {
        for link in &mut left.interfaces {
            (link.mtu, link.socket_path, link.pci_id) = (None, String::new(), String::new());
        }
    }
    if version < Version::V0_3_0 {
        left.interfaces.clear();
        let first = |v4: bool| result.ips.iter().find(|ip| ip.address.is_ipv4() == v4);
        let (v4, v6) = (first(true), first(false));
        left.ips = v4.into_iter().chain(v6).map(|ip| IpConfig { interface: None, ..ip.clone() }).collect();
        let routes = |v4: bool| result.routes.iter().filter(move |route| route.dst.is_ipv4() == v4);
        left.routes = routes(true)
            .filter(|_| v4.is_some())
            .chain(routes(false).filter(|_| v6.is_some()))
            .map(|route| Route::new(route.dst, route.gw))
            .collect();
    }
    left
}

/// The same document with the letters of every key in other cases.
fn shouted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(shouted).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.to_uppercase(), shouted(v))).collect(),
        scalar => scalar.clone(),
    }
}

#[test]
fn any_result_survives_every_version_as_far_as_it_can() {
    let mut random = Random(42);
    let mut refused = 0;
    for round in 0..400 {
        let result = random.result();
        for version in Version::ALL.iter().copied() {
            let text = match result.to_json(version) {
                Ok(text) => text,
                Err(err) => {
                    assert!(version < Version::V0_3_0 && result.ips.is_empty(), "{round} {version}: {err}");
                    refused += 1;
                    continue;
                }
            };
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(result.to_value(version).unwrap(), value, "{round} {version}");
            assert_eq!(value["cniVersion"], version.as_str());
            let expected = reduced(&result, version);
            let back = CniResult::from_value(&value, Version::V0_1_0, "").unwrap();
            assert_eq!(back, expected, "{round} {version}: {text}");
            assert_eq!(back.to_json(version).unwrap(), text, "{round} {version}");
            let shouted = CniResult::from_value(&shouted(&value), Version::V0_1_0, "").unwrap();
            assert_eq!(shouted, expected, "{round} {version}");
            for unescaped in ['<', '>', '&', '\u{2028}'] {
                assert!(!text.contains(unescaped), "{text}");
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn broken_documents_are_errors_and_never_panics() {
    let seed = json!({
        "cniVersion": "1.1.0", "name": "n", "type": "t", "ipam": { "type": "x" },
        "cniVersions": ["1.0.0"], "plugins": [{ "type": "a", "capabilities": { "ips": true } }],
        "cni.dev/valid-attachments": [{ "containerID": "c", "ifname": "e" }],
        "prevResult": Random(7).result().to_value(Version::V1_1_0).unwrap(),
    })
    .to_string()
    .into_bytes();
    let mut random = Random(43);
    let mut failed = 0;
    for _ in 0..3_000 {
        let mut bytes = seed.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, b"{}[]\",:0-n"[random.below(10) as usize]),
                _ => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                bytes.push(b'{');
            }
        }
        for err in [
            crate::PluginConfig::parse(&bytes).err(),
            crate::NetworkList::parse(&bytes).err(),
            crate::NetworkList::parse_single(&bytes).err(),
        ]
        .into_iter()
        .flatten()
        {
            assert!(matches!(err.code.0, 1 | 6 | 7), "{err:?}");
            assert!(!err.msg.is_empty() && !err.to_json(Version::LATEST).is_empty());
            failed += 1;
        }
    }
    assert!(failed > 4_000, "{failed}");
}
