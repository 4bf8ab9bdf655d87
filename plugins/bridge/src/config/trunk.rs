//! The key `vlanTrunk`: the tagged VLANs of a port.

use serde::Deserialize;

use cnimble_cni::Error;

use crate::config::MAX_VLAN;

/// The VLAN of untagged frames on a trunk port, if the configuration has no `vlan`. It is the kernel's default VLAN.
pub(crate) const NATIVE: u16 = 1;

/// An item of `vlanTrunk`: a range, a single ID, or both.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Trunk {
    #[serde(rename = "minID")]
    min_id: Option<u16>,
    #[serde(rename = "maxID")]
    max_id: Option<u16>,
    id: Option<u16>,
}

/// Returns all VLANs of the items as sorted ranges (first and last ID) without overlap. An item without any ID adds
/// nothing. Fails with code 7 and the invalid item.
pub(crate) fn ranges(items: &[Trunk]) -> Result<Vec<(u16, u16)>, Error> {
    let mut ranges = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match (item.min_id, item.max_id) {
            (Some(min), Some(max)) => {
                let (min, max) = (valid_id(index, "minID", min)?, valid_id(index, "maxID", max)?);
                if max < min {
                    return Err(invalid_item(index, &format!(": minID {min} is greater than maxID {max}")));
                }
                ranges.push((min, max));
            }
            (None, Some(_)) => return Err(invalid_item(index, ": maxID without minID")),
            (Some(_), None) => return Err(invalid_item(index, ": minID without maxID")),
            (None, None) => {}
        }
        if let Some(single) = item.id {
            let single = valid_id(index, "id", single)?;
            ranges.push((single, single));
        }
    }
    Ok(merge(ranges))
}

/// Returns the ID, or the error of the item's `key` if it is no ID of a VLAN.
fn valid_id(index: usize, key: &str, id: u16) -> Result<u16, Error> {
    if (1..=MAX_VLAN).contains(&id) {
        return Ok(id);
    }
    Err(invalid_item(index, &format!(".{key}: invalid VLAN ID {id} (must be between 1 and {MAX_VLAN})")))
}

/// Returns the error for the item `index`, with code 7. `why` follows the item in the text.
fn invalid_item(index: usize, why: &str) -> Error {
    Error::config(format!("vlanTrunk[{index}]{why}"))
}

/// Sorts the ranges, and joins those that overlap or follow each other.
fn merge(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Returns the ranges without this VLAN. A range that contains it is split. `None` removes nothing.
pub(crate) fn without(ranges: Vec<(u16, u16)>, vlan: Option<u16>) -> Vec<(u16, u16)> {
    let Some(vlan) = vlan else { return ranges };
    let mut rest = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        if vlan < first || last < vlan {
            rest.push((first, last));
            continue;
        }
        if first < vlan {
            rest.push((first, vlan - 1));
        }
        if vlan < last {
            rest.push((vlan + 1, last));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use cnimble_cni::PluginConfig;

    fn read(keys: &str) -> Result<Config, Error> {
        let json = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"bridge",{keys}}}"#);
        Config::read(&PluginConfig::parse(json.as_bytes())?)
    }

    #[test]
    fn trunks_merge_and_are_checked() {
        assert_eq!(merge(vec![(7, 9), (1, 3), (4, 5), (8, 12)]), [(1, 5), (7, 12)]);
        for (trunk, part) in [
            (r#"[{"minID":5,"maxID":4}]"#, "vlanTrunk[0]: minID 5 is greater than maxID 4"),
            (r#"[{"id":1},{"maxID":4}]"#, "vlanTrunk[1]: maxID without minID"),
            (r#"[{"id":0}]"#, "vlanTrunk[0].id: invalid VLAN ID 0"),
            (r#"[{"id":4095}]"#, "vlanTrunk[0].id: invalid VLAN ID 4095"),
        ] {
            let err = read(&format!(r#""vlanTrunk":{trunk}"#)).unwrap_err();
            assert!(err.msg.contains(part), "{err}");
        }
    }

    #[test]
    fn a_trunk_has_one_native_vlan_which_is_not_tagged() {
        for (keys, native, trunk) in [
            (r#""vlanTrunk":[{"id":5}]"#, Some(1), &[(5, 5)][..]),
            (r#""vlanTrunk":[{"minID":1,"maxID":3}]"#, Some(1), &[(2, 3)]),
            (r#""vlanTrunk":[{"id":1}]"#, Some(1), &[]),
            (r#""vlan":7,"vlanTrunk":[{"id":5}]"#, Some(7), &[(5, 5)]),
            (r#""vlan":7,"vlanTrunk":[{"minID":5,"maxID":9}]"#, Some(7), &[(5, 6), (8, 9)]),
            (r#""vlan":7,"vlanTrunk":[{"minID":5,"maxID":7}]"#, Some(7), &[(5, 6)]),
            (r#""vlan":4094,"vlanTrunk":[{"id":4094}]"#, Some(4094), &[]),
            (r#""vlanTrunk":[{}]"#, None, &[]),
            (r#""vlanTrunk":[]"#, None, &[]),
        ] {
            let config = read(keys).unwrap();
            assert_eq!((config.native, config.trunk.as_slice()), (native, trunk), "{keys}");
            assert_eq!(config.uses_vlans(), native.is_some(), "{keys}");
            assert!(config.filters_vlans, "{keys}");
        }
        assert!(!read(r#""vlanTrunk":null"#).unwrap().filters_vlans);
    }
}
