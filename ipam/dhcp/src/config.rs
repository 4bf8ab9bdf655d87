//! The configuration of the plugin.

use std::path::PathBuf;

use serde::Deserialize;

use cnimble_cni::{Error, PluginConfig, fields};

use crate::ipc::Family;
use crate::v4::message::code;

/// The default socket of the lease daemon. It is not the Go daemon's, because that daemon has another protocol.
pub(crate) const SOCKET: &str = "/run/cnimble/dhcp.sock";

/// The longest path of a socket in bytes: sun_path of unix(7), without its NUL.
const LONGEST_PATH: usize = 107;

/// The longest value of an option, in bytes.
const LONGEST_VALUE: usize = 255;

/// The options that the Go plugin knows by name, from dhcp-options(5). Any option can be given by its number.
const NAMES: &[(&str, u8)] = &[
    ("dhcp-client-identifier", code::CLIENT_ID),
    ("subnet-mask", code::SUBNET_MASK),
    ("routers", code::ROUTERS),
    ("host-name", code::HOST_NAME),
    ("user-class", code::USER_CLASS),
    ("vendor-class-identifier", code::VENDOR_CLASS),
];

/// The options that `provide` must not have, because the protocol needs them.
const RESERVED: &[u8] = &[
    code::PAD,
    code::REQUESTED_ADDRESS,
    code::OVERLOAD,
    code::MESSAGE_TYPE,
    code::SERVER,
    code::REQUEST_LIST,
    code::END,
];

/// The options that a server is asked for unless `skipDefault` is set. Classless routes precede the router (RFC 3442).
const REQUEST: &[u8] = &[
    code::CLASSLESS_ROUTES,
    code::CLASSLESS_ROUTES_MS,
    code::ROUTERS,
    code::SUBNET_MASK,
    code::NAME_SERVERS,
    code::DOMAIN_NAME,
    code::DOMAIN_SEARCH,
    code::MTU,
];

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// The path of the socket of the lease daemon.
    pub(crate) socket: PathBuf,
    /// The options that go with every message. The client ID is here only if it is configured.
    pub(crate) provide: Vec<(u8, Vec<u8>)>,
    /// The codes of the options that a server is asked for, each once.
    pub(crate) request: Vec<u8>,
    /// The metric of the routes. `None` leaves it to the kernel.
    pub(crate) priority: Option<u32>,
    /// The families of addresses, each at most once. IPv4 if the key is missing or empty.
    pub(crate) families: Vec<Family>,
    /// The longest wait for an address, in seconds. `None` takes the daemon's limit.
    pub(crate) timeout: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Option<Ipam>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    #[serde(deserialize_with = "fields::text_opt")]
    daemon_socket_path: Option<String>,
    provide: Vec<Provide>,
    request: Vec<Request>,
    #[serde(deserialize_with = "fields::nonzero_opt")]
    priority: Option<u32>,
    families: Vec<String>,
    #[serde(deserialize_with = "fields::nonzero_opt")]
    timeout: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Provide {
    option: String,
    value: String,
    /// The key of CNI_ARGS that has the value.
    #[serde(rename = "fromArg")]
    from_arg: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request {
    skip_default: bool,
    option: String,
}

impl Config {
    /// Reads the configuration. `args` is CNI_ARGS, whose unknown keys are accepted. Fails with code 7 and the path to
    /// the bad value.
    pub(crate) fn read(config: &PluginConfig, args: &str) -> Result<Self, Error> {
        let document: Document = config.decode()?;
        let ipam = document.ipam.ok_or_else(|| Error::config("IPAM config missing 'ipam' key"))?;
        Ok(Config {
            socket: socket(ipam.daemon_socket_path)?,
            provide: provided(&ipam.provide, args)?,
            request: requested(&ipam.request)?,
            priority: ipam.priority,
            families: families(&ipam.families)?,
            timeout: ipam.timeout,
        })
    }
}

/// Reads the path of the socket for DEL, and ignores all other keys, which may be invalid by now. Fails with code 7.
pub(crate) fn socket_of(config: &PluginConfig) -> Result<PathBuf, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Ipam {
        #[serde(deserialize_with = "fields::text_opt")]
        daemon_socket_path: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Document {
        ipam: Ipam,
    }
    socket(config.decode::<Document>()?.ipam.daemon_socket_path)
}

/// Returns the path of the socket. Fails with code 7 for a path that is not absolute or too long.
fn socket(path: Option<String>) -> Result<PathBuf, Error> {
    let path = PathBuf::from(path.unwrap_or_else(|| SOCKET.to_owned()));
    let why = if !path.is_absolute() {
        "it must be an absolute path"
    } else if path.as_os_str().len() > LONGEST_PATH {
        "the path of a socket has at most 107 bytes"
    } else if path.file_name().is_none() {
        "it must be the path of a file"
    } else {
        return Ok(path);
    };
    let path = path.display().to_string();
    Err(Error::config(format!("ipam.daemonSocketPath: invalid path: {}", path.escape_debug())).details(why))
}

/// Returns the families of the names. Fails with code 7 for an unknown or repeated name.
fn families(names: &[String]) -> Result<Vec<Family>, Error> {
    let mut families = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let family = match name.as_str() {
            "ipv4" => Family::Ipv4,
            "ipv6" => Family::Ipv6,
            other => {
                let shown: String = other.chars().take(80).flat_map(char::escape_debug).collect();
                let msg = format!("ipam.families[{n}]: unknown family \"{shown}\", expected ipv4 or ipv6");
                return Err(Error::config(msg));
            }
        };
        if families.contains(&family) {
            return Err(Error::config(format!("ipam.families[{n}]: {name} is there twice")));
        }
        families.push(family);
    }
    Ok(if families.is_empty() { vec![Family::Ipv4] } else { families })
}

/// Returns the options of `provide` with their values. A value in CNI_ARGS precedes that in the configuration, and the
/// last item of an option counts. An option without any value is left out. Fails with code 7.
fn provided(provide: &[Provide], args: &str) -> Result<Vec<(u8, Vec<u8>)>, Error> {
    let mut options: Vec<(u8, Vec<u8>)> = Vec::new();
    for (n, Provide { option, value, from_arg }) in provide.iter().enumerate() {
        let at = format!("ipam.provide[{n}]");
        let code = code_of(option, &at)?;
        if RESERVED.contains(&code) {
            return Err(Error::config(format!("{at}.option: {code} is the protocol's own option")));
        }
        let values = [Some(value.as_str()).filter(|value| !value.is_empty()), argument(args, from_arg)];
        for value in values.into_iter().flatten() {
            if value.len() > LONGEST_VALUE {
                return Err(Error::config(format!("{at}: the value for option \"{option}\" is too long"))
                    .details(format!("it has {} bytes, and an option has room for 255", value.len())));
            }
            options.retain(|(other, _)| *other != code);
            options.push((code, value.as_bytes().to_vec()));
        }
    }
    Ok(options)
}

/// Returns the value of the last argument with this name. `None` for an empty name.
fn argument<'a>(args: &'a str, name: &str) -> Option<&'a str> {
    let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| !name.is_empty() && *key == name).map(|(_, value)| value).next_back()
}

/// Returns the codes of `request`, and the default ones unless an item has `skipDefault`. Fails with code 7.
fn requested(request: &[Request]) -> Result<Vec<u8>, Error> {
    let mut codes = Vec::new();
    for (n, Request { option, .. }) in request.iter().enumerate() {
        if !option.is_empty() {
            codes.push(code_of(option, &format!("ipam.request[{n}]"))?);
        }
    }
    if !request.iter().any(|request| request.skip_default) {
        codes.extend_from_slice(REQUEST);
    }
    let mut seen = [false; 256];
    codes.retain(|code| {
        let seen = seen.get_mut(usize::from(*code));
        seen.is_some_and(|seen| !std::mem::replace(seen, true))
    });
    Ok(codes)
}

/// Returns the code of an option that is given by name or number. Fails with code 7. `at` is the path for the error.
fn code_of(option: &str, at: &str) -> Result<u8, Error> {
    let named = NAMES.iter().find(|(name, _)| *name == option).map(|(_, code)| *code);
    named.or_else(|| parse_number(option)).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let shown: String = option.chars().take(80).flat_map(char::escape_debug).collect();
        Error::config(format!("{at}.option: unknown DHCP option \"{shown}\""))
            .details(format!("it is a number from 0 to 255, or one of {}", names.join(", ")))
    })
}

/// Returns the number of an option that is given by decimal digits. `None` for any other text, and above 255.
fn parse_number(option: &str) -> Option<u8> {
    // The digits are checked, because parse() would accept a sign.
    option.bytes().all(|byte| byte.is_ascii_digit()).then(|| option.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(ipam: &Value, args: &str) -> Result<Config, Error> {
        let document = json!({ "cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam });
        Config::read(&PluginConfig::parse(document.to_string().as_bytes())?, args)
    }

    #[test]
    fn every_key_has_a_default() {
        let config = read(&json!({ "type": "dhcp" }), "").unwrap();
        let expected = Config {
            socket: "/run/cnimble/dhcp.sock".into(),
            provide: vec![],
            request: REQUEST.to_vec(),
            priority: None,
            families: vec![Family::Ipv4],
            timeout: None,
        };
        assert_eq!(config, expected);
        let nulls = json!({
            "daemonSocketPath": null, "provide": null, "request": null, "priority": 0, "families": null,
            "timeout": null,
        });
        assert_eq!(read(&nulls, "").unwrap(), expected);
        assert_eq!(read(&json!({ "families": [] }), "").unwrap(), expected);
    }

    #[test]
    fn families_keep_their_order() {
        let of = |families: Value| read(&json!({ "families": families }), "").unwrap().families;
        assert_eq!(of(json!(["ipv6"])), [Family::Ipv6]);
        assert_eq!(of(json!(["ipv6", "ipv4"])), [Family::Ipv6, Family::Ipv4]);
    }

    #[test]
    fn options_come_by_name_by_number_and_from_cni_args() {
        let ipam = json!({
            "daemonSocketPath": "/run/x/y.sock",
            "priority": 50,
            "timeout": 90,
            "provide": [
                { "option": "vendor-class-identifier", "value": "old" },
                { "option": "60", "value": "new" },
                { "option": "host-name", "fromArg": "K8S_POD_NAME" },
                { "option": "user-class", "value": "a", "fromArg": "NONE" },
                { "option": "77", "fromArg": "" },
            ],
            "request": [{ "skipDefault": true }, { "option": "routers" }, { "option": "42" }, { "option": "3" }],
        });
        let config = read(&ipam, "IgnoreUnknown=1;K8S_POD_NAME=web=1;x;=y").unwrap();
        let provide = vec![(60, b"new".to_vec()), (12, b"web=1".to_vec()), (77, b"a".to_vec())];
        let socket = "/run/x/y.sock".into();
        let families = vec![Family::Ipv4];
        let (request, priority, timeout) = (vec![3, 42], Some(50), Some(90));
        assert_eq!(config, Config { socket, provide, request, priority, families, timeout });
        let ipam = json!({ "request": [{ "option": "42" }, { "option": "1" }] });
        assert_eq!(read(&ipam, "").unwrap().request, [42, 1, 121, 249, 3, 6, 15, 119, 26]);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let long = "x".repeat(256);
        for (ipam, msg) in [
            (json!({ "daemonSocketPath": "x" }), "ipam.daemonSocketPath: invalid path: x"),
            (json!({ "daemonSocketPath": "/" }), "ipam.daemonSocketPath: invalid path: /"),
            (
                json!({ "provide": [{ "option": "hostname", "value": "a" }] }),
                "ipam.provide[0].option: unknown DHCP option \"hostname\"",
            ),
            (
                json!({ "families": ["ipv4", "ip\n"] }),
                "ipam.families[1]: unknown family \"ip\\n\", expected ipv4 or ipv6",
            ),
            (json!({ "families": ["ipv6", "ipv6"] }), "ipam.families[1]: ipv6 is there twice"),
            (json!({ "provide": [{}] }), "ipam.provide[0].option: unknown DHCP option \"\""),
            (
                json!({ "request": [{}, { "option": "+3" }] }),
                "ipam.request[1].option: unknown DHCP option \"+3\"",
            ),
            (
                json!({ "request": [{ "option": "256" }] }),
                "ipam.request[0].option: unknown DHCP option \"256\"",
            ),
            (
                json!({ "provide": [{ "option": "53", "value": "x" }] }),
                "ipam.provide[0].option: 53 is the protocol's own option",
            ),
            (
                json!({ "provide": [{ "option": "12", "value": long }] }),
                "ipam.provide[0]: the value for option \"12\" is too long",
            ),
        ] {
            let err = read(&ipam, "").unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
        assert!(read(&Value::Null, "").is_err());
    }
}
