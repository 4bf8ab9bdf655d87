use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use cnimble_cni::{Dns, DnsKeys, Error, PluginConfig, names};
use cnimble_netlink::link::Mac;

const DEFAULT_DATA_DIR: &str = "/run/cni/host-device";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    dns: DnsKeys,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    #[serde(rename = "deviceID")]
    device_id: String,
}

/// The key that names the device, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceSelector {
    /// `device`, the name or alternative name of an interface.
    Name(String),
    /// `hwaddr`, the MAC address of an interface.
    Mac(Mac),
    /// `kernelpath`, a directory below /sys/devices.
    KernelPath(PathBuf),
    /// `pciBusID`, an address on the PCI bus.
    Pci(String),
    /// `runtimeConfig.deviceID`, an address on the PCI bus or a device of the auxiliary bus.
    Id(String),
}

#[derive(Debug)]
pub(crate) struct Config {
    /// The device by the first configured key: `device`, `hwaddr`, `kernelpath`, then [`Config::bus_id`]. The order is
    /// the Go plugin's.
    pub(crate) wanted: DeviceSelector,
    /// `runtimeConfig.deviceID`, else `pciBusID`. The driver of this device decides whether it has an interface. `None`
    /// without either key.
    pub(crate) bus_id: Option<DeviceSelector>,
    /// The directory of the records (`dataDir`).
    pub(crate) data_dir: PathBuf,
    /// `None` keeps the value of the IPAM plugin's result.
    pub(crate) dns: Option<Dns>,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the key if a value is invalid or if no key names a device.
    pub(crate) fn read(config: &PluginConfig) -> Result<Self, Error> {
        let keys: Keys = config.decode()?;
        let bus_id = match (keys.runtime_config.device_id.as_str(), keys.pci_bus_id.as_str()) {
            ("", "") => None,
            ("", pci) => Some(DeviceSelector::Pci(bus_id("pciBusID", pci)?)),
            (device, _) => Some(DeviceSelector::Id(bus_id("runtimeConfig.deviceID", device)?)),
        };
        let wanted = if !keys.device.is_empty() {
            if let Some(problem) = names::new_interface_problem(&keys.device) {
                let name = keys.device.escape_default();
                return Err(Error::config(format!("device: invalid name \"{name}\"")).details(problem));
            }
            DeviceSelector::Name(keys.device)
        } else if !keys.hwaddr.is_empty() {
            DeviceSelector::Mac(Mac::parse(&keys.hwaddr).ok_or_else(|| {
                Error::config(format!(
                    "hwaddr: invalid hardware address \"{}\"",
                    keys.hwaddr.escape_default()
                ))
                .details("expected six bytes like 02:00:5e:10:00:01")
            })?)
        } else if !keys.kernelpath.is_empty() {
            DeviceSelector::KernelPath(kernel_path(&keys.kernelpath)?)
        } else if let Some(id) = &bus_id {
            id.clone()
        } else {
            return Err(Error::config(
                "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"",
            )
            .details("or the runtime has to tell a deviceID"));
        };
        Ok(Config { wanted, bus_id, data_dir: data_dir(config)?, dns: keys.dns.given() })
    }
}

/// Returns the ID of a device of a bus. Fails with code 7 and the key if it cannot be the name of a directory, because
/// it is looked up in sysfs.
fn bus_id(key: &str, text: &str) -> Result<String, Error> {
    match text {
        "." | ".." => Err(Error::config(format!("{key}: \"{text}\" is no device of a bus"))),
        _ if text.contains(['/', '\0']) => {
            Err(Error::config(format!("{key}: \"{}\" is no device of a bus", text.escape_default())))
        }
        _ => Ok(text.to_owned()),
    }
}

/// Returns the directory of the records, or its default. DEL and GC need no other key. Fails with code 7 if it is no
/// string.
pub(crate) fn data_dir(config: &PluginConfig) -> Result<PathBuf, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Key {
        data_dir: String,
    }
    let Key { data_dir } = config.decode()?;
    Ok(if data_dir.is_empty() { DEFAULT_DATA_DIR.into() } else { data_dir.into() })
}

/// Checks that the path is below /sys/devices and has no `..`. Fails with code 7 otherwise.
fn kernel_path(text: &str) -> Result<PathBuf, Error> {
    let path = Path::new(text);
    let below = path.strip_prefix("/sys/devices").ok();
    let plain = below.is_some_and(|below| {
        below.components().next().is_some()
            && below.components().all(|part| matches!(part, Component::Normal(_)))
    });
    if !plain || text.contains('\0') {
        let text = text.escape_default();
        return Err(Error::config(format!(
            "kernelpath: \"{text}\" must be absolute and begin with /sys/devices/"
        )));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Config, Error> {
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn the_first_key_wins_and_the_runtimes_device_wins_over_the_configurations() {
        let wanted = |json: &str| read(json).unwrap().wanted;
        let all = r#"{"name":"n","Device":"eth7","hwaddr":"02:00:00:00:00:01","kernelpath":"/sys/devices/a",
                      "pciBusID":"0000:03:00.1","runtimeConfig":{"deviceID":"0000:03:00.2"}}"#;
        assert_eq!(wanted(all), DeviceSelector::Name("eth7".to_owned()));
        let all = all.replace(r#""Device":"eth7","#, "");
        assert_eq!(wanted(&all), DeviceSelector::Mac(Mac([2, 0, 0, 0, 0, 1])));
        let all = all.replace(r#""hwaddr":"02:00:00:00:00:01","#, "");
        assert_eq!(wanted(&all), DeviceSelector::KernelPath("/sys/devices/a".into()));
        let all = all.replace(r#""kernelpath":"/sys/devices/a","#, "");
        assert_eq!(wanted(&all), DeviceSelector::Id("0000:03:00.2".to_owned()));
        let all = all.replace(r#""0000:03:00.2""#, r#""""#);
        assert_eq!(wanted(&all), DeviceSelector::Pci("0000:03:00.1".to_owned()));
    }

    #[test]
    fn the_identity_of_a_directory_is_read_without_its_device() {
        let config = |json: &str| PluginConfig::parse(json.as_bytes()).unwrap();
        assert_eq!(data_dir(&config(r#"{"name":"n"}"#)).unwrap(), Path::new("/run/cni/host-device"));
        assert_eq!(data_dir(&config(r#"{"name":"n","dataDir":"/x"}"#)).unwrap(), Path::new("/x"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (json, msg) in [
            (r"{}", "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\""),
            (r#"{"device":"a b"}"#, "device: invalid name \"a b\""),
            (r#"{"device":"eth%d"}"#, "device: invalid name \"eth%d\""),
            (r#"{"hwaddr":"02:00"}"#, "hwaddr: invalid hardware address \"02:00\""),
            (r#"{"kernelpath":"/sys/class/net"}"#, "kernelpath: \"/sys/class/net\" must be absolute"),
            (r#"{"kernelpath":"/sys/devices/../class"}"#, "kernelpath: \"/sys/devices/../class\" must be"),
            (r#"{"kernelpath":"/sys/devices/"}"#, "kernelpath: \"/sys/devices/\" must be"),
            (r#"{"pciBusID":"../x"}"#, "pciBusID: \"../x\" is no device of a bus"),
            (
                r#"{"runtimeConfig":{"deviceID":".."}}"#,
                "runtimeConfig.deviceID: \"..\" is no device of a bus",
            ),
        ] {
            let err = read(json).unwrap_err();
            assert!(err.code.0 == 7 && err.msg.starts_with(msg), "{json}: {err:?}");
        }
    }
}
