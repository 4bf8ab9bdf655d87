//! The pods' addresses from UpdateRuntimeConfig. A kubelet sends them only when it starts, so a file keeps them.

use std::path::Path;

use ipnetwork::IpNetwork;

use cnimble_os::files::{self as files, Links};

/// The largest file in bytes.
const LIMIT: usize = 4096;

/// Parses a list such as `10.244.3.0/24,fd00:3::/64`. An empty text is an empty list.
pub(crate) fn parse(text: &str) -> Result<Vec<IpNetwork>, String> {
    let mut subnets = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let subnet = parse_subnet(part).map_err(|why| {
            format!("pod_cidr: \"{:.64}\" is no subnet: {why}", part.escape_debug().to_string())
        });
        subnets.push(subnet?);
    }
    Ok(subnets)
}

/// Parses one subnet. An address without a prefix is an error, although the parser accepts it.
fn parse_subnet(text: &str) -> Result<IpNetwork, String> {
    let (address, prefix) = text.split_once('/').ok_or("there is no /")?;
    if address.is_empty() || prefix.is_empty() {
        return Err("expected ADDRESS/PREFIX".to_owned());
    }
    text.parse::<IpNetwork>().map_err(|err| err.to_string())
}

/// Reads the saved networks. It returns `None` if there are none, or they cannot be read, which is logged.
pub(crate) fn load(file: &Path) -> Option<Vec<IpNetwork>> {
    let read = match files::read(file, LIMIT, Links::Refuse) {
        Err(err) if files::is_absent(&err) => return None,
        Err(err) => Err(err.to_string()),
        Ok(bytes) => parse(&String::from_utf8_lossy(&bytes)),
    };
    match read {
        Ok(cidrs) => Some(cidrs).filter(|cidrs| !cidrs.is_empty()),
        Err(why) => {
            log::warn!(
                "{}: {why}: the pods' addresses are as configured until a kubelet says them again",
                file.display()
            );
            None
        }
    }
}

/// Replaces the file with these networks. Its directory must exist.
pub(crate) fn save(file: &Path, cidrs: &[IpNetwork]) -> Result<(), String> {
    let text: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
    let fresh = file.with_extension("new");
    files::replace(file, &fresh, text.join(",").as_bytes())
        .map_err(|err| format!("writing {}: {err}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pod-cidr");
        assert_eq!(load(&file), None);
        let cidrs = parse("10.244.3.0/24, fd00:3::/64").unwrap();
        assert_eq!(cidrs.len(), 2);
        for _ in 0..2 {
            save(&file, &cidrs).unwrap();
            assert_eq!(load(&file).as_ref(), Some(&cidrs));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        std::fs::write(&file, "10.0.0.0/99").unwrap();
        assert_eq!(load(&file), None);
    }

    #[test]
    fn what_is_no_subnet_is_refused() {
        assert_eq!(parse("").unwrap(), []);
        for bad in ["10.0.0.1", "10.0.0.0/33", "x/8", "/8", "10.0.0.0/", "10.0.0.0/8,x"] {
            let err = parse(bad).unwrap_err();
            assert!(err.contains("is no subnet"), "{bad}: {err}");
        }
    }
}
