//! A device's interface and driver in sysfs (sysfs(5)).

use std::path::{Path, PathBuf};

use cnimble_cni::{Code, Error};
use cnimble_os::files::{self, IfPresent as _, is_absent};

use crate::config::DeviceSelector;

/// Drivers that leave a PCI device to a program (DPDK), without an interface.
const USERSPACE: &[&str] = &["vfio-pci", "uio_pci_generic", "igb_uio"];

/// A sysfs, by its mount point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sysfs<'a>(pub(crate) &'a Path);

impl Sysfs<'_> {
    fn pci(self, id: &str) -> PathBuf {
        self.0.join("bus/pci/devices").join(id)
    }

    fn auxiliary(self, id: &str) -> PathBuf {
        self.0.join("bus/auxiliary/devices").join(id)
    }

    /// Returns the directory of the device. Fails with code 100 if neither the PCI bus nor the auxiliary bus has the
    /// device `Id`. Other paths may be missing.
    fn device(self, wanted: &DeviceSelector) -> Result<PathBuf, Error> {
        match wanted {
            DeviceSelector::Pci(id) => Ok(self.pci(id)),
            DeviceSelector::Id(id) => {
                for path in [self.pci(id), self.auxiliary(id)] {
                    let found = path.symlink_metadata().unless_absent();
                    if found.map_err(|err| Error::io("look up", &path, &err))?.is_some() {
                        return Ok(path);
                    }
                }
                Err(Error::new(Code::KERNEL, format!("device \"{id}\" is missing on the host")).details(
                    "neither the PCI bus nor the auxiliary bus has it; runtimeConfig.deviceID names it",
                ))
            }
            DeviceSelector::KernelPath(path) => Ok(self.0.join(path.strip_prefix("/sys").unwrap_or(path))),
            DeviceSelector::Name(_) | DeviceSelector::Mac(_) => Ok(self.0.to_owned()),
        }
    }

    /// Returns true if the driver of a PCI device leaves it to a program. False for a device of any other bus. Fails
    /// with code 100 if the PCI device is missing or has no driver.
    pub(crate) fn is_for_programs(self, wanted: &DeviceSelector) -> Result<bool, Error> {
        let device = self.device(wanted)?;
        if !device.starts_with(self.0.join("bus/pci")) {
            return Ok(false);
        }
        let link = device.join("driver");
        match std::fs::read_link(&link) {
            Ok(driver) => {
                let name = driver.file_name().unwrap_or_default();
                Ok(USERSPACE.iter().any(|driver| name == *driver))
            }
            Err(err) if is_absent(&err) => Err(Error::new(
                Code::KERNEL,
                format!("PCI device \"{}\" is missing on the host, or has no driver", name_of(&device)),
            )
            .details(Error::io("read", &link, &err).to_string())),
            Err(err) => Err(Error::io("read", &link, &err)),
        }
    }

    /// Returns the device's interface, the first one by name if it has several, as in the Go plugin. Fails with code
    /// 100 if it has none in this namespace.
    pub(crate) fn interface(self, wanted: &DeviceSelector) -> Result<String, Error> {
        let device = self.device(wanted)?;
        let mut found = names(&device.join("net"))?;
        if found.is_empty() && matches!(wanted, DeviceSelector::Pci(_) | DeviceSelector::Id(_)) {
            // The interface of a virtio device is one level below the PCI device.
            let mut below = names(&device)?;
            below.retain(|name| name.starts_with("virtio"));
            below.sort();
            for name in below {
                found.extend(names(&device.join(name).join("net"))?);
            }
        }
        found.into_iter().min().ok_or_else(|| {
            Error::new(Code::KERNEL, format!("device \"{}\" has no interface on the host", name_of(&device)))
                .details(format!("{} lists none", device.join("net").display()))
        })
    }
}

/// Returns the last part of a path, with unusual characters escaped, for error texts.
fn name_of(device: &Path) -> String {
    device.file_name().unwrap_or_default().to_string_lossy().escape_default().to_string()
}

/// Returns the names in a directory, or none if the directory is missing. Fails with code 5 if it cannot be read.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let names = files::names(dir).map_err(|err| Error::io("list", dir, &err))?;
    Ok(names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in [
            "devices/pci0000:00/0000:00:03.0/virtio2/net/eth0",
            "devices/pci0000:00/0000:00:04.0/net/ens4",
            "devices/pci0000:00/0000:00:04.0/net/ens4rep1",
            "devices/pci0000:00/0000:00:04.0/sf.4/net/sf4",
            "devices/pci0000:00/0000:00:05.0",
            "devices/pci0000:00/0000:00:06.0/net",
            "bus/pci/devices",
            "bus/auxiliary/devices",
        ] {
            create_dir_all(at(path)).unwrap();
        }
        for driver in ["virtio-pci", "ice", "vfio-pci", "e1000e"] {
            create_dir_all(at("bus/pci/drivers").join(driver)).unwrap();
        }
        for (id, driver) in [("3", "virtio-pci"), ("4", "ice"), ("5", "vfio-pci"), ("6", "e1000e")] {
            let device = format!("0000:00:0{id}.0");
            symlink(format!("../../../devices/pci0000:00/{device}"), at("bus/pci/devices").join(&device))
                .unwrap();
            let drivers = format!("../../../bus/pci/drivers/{driver}");
            symlink(drivers, at("devices/pci0000:00").join(&device).join("driver")).unwrap();
        }
        symlink("../../../devices/pci0000:00/0000:00:04.0/sf.4", at("bus/auxiliary/devices/mlx5_core.sf.4"))
            .unwrap();
        dir
    }

    #[test]
    fn an_interface_is_found_by_its_device() {
        let dir = tree();
        let name = |wanted: DeviceSelector| Sysfs(dir.path()).interface(&wanted).map_err(|err| err.msg);
        let pci = |id: &str| DeviceSelector::Pci(format!("0000:00:0{id}.0"));
        assert_eq!(name(pci("3")), Ok("eth0".to_owned()));
        assert_eq!(name(pci("4")), Ok("ens4".to_owned()));
        assert_eq!(name(DeviceSelector::Id("0000:00:04.0".to_owned())), Ok("ens4".to_owned()));
        assert_eq!(name(DeviceSelector::Id("mlx5_core.sf.4".to_owned())), Ok("sf4".to_owned()));
        let path = DeviceSelector::KernelPath("/sys/devices/pci0000:00/0000:00:03.0/virtio2".into());
        assert_eq!(name(path), Ok("eth0".to_owned()));
        let none = |id: &str| Err(format!("device \"0000:00:0{id}.0\" has no interface on the host"));
        // In another network namespace, and missing.
        assert_eq!((name(pci("6")), name(pci("9"))), (none("6"), none("9")));
        let missing = Err("device \"mlx5_core.sf.9\" is missing on the host".to_owned());
        assert_eq!(name(DeviceSelector::Id("mlx5_core.sf.9".to_owned())), missing);
    }

    #[test]
    fn a_device_of_a_program_is_recognized_by_its_driver() {
        let dir = tree();
        let is = |wanted: DeviceSelector| Sysfs(dir.path()).is_for_programs(&wanted).map_err(|err| err.msg);
        let pci = |id: &str| DeviceSelector::Pci(format!("0000:00:0{id}.0"));
        assert_eq!((is(pci("4")), is(pci("5"))), (Ok(false), Ok(true)));
        assert_eq!(is(DeviceSelector::Id("0000:00:05.0".to_owned())), Ok(true));
        assert_eq!(is(DeviceSelector::Id("mlx5_core.sf.4".to_owned())), Ok(false));
        let missing = "PCI device \"0000:00:09.0\" is missing on the host, or has no driver";
        assert_eq!(is(pci("9")), Err(missing.to_owned()));
    }
}
