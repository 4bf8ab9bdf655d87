//! Limits that keep the memory of a manifest within a few times the size of its text. One byte may become a container
//! of a kilobyte.

use serde_json::Value;

use cnimble_api::yaml::Step;

/// How many entries a list in a pod's spec may have, such as containers or volumes.
pub(crate) const MAX_MEMBERS: usize = 1000;
/// How many faults of a text are reported. Further ones are only counted.
pub(super) const MAX_FAULTS: usize = 100;

/// Returns at least the number of values that JSON has, or that a parser makes of bad JSON.
pub(super) fn values(json: &str) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' | b',' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// Returns the path of the first list in a pod's spec with too many entries.
pub(super) fn crowded(pod: &Value) -> Option<Vec<Step>> {
    let spec = pod.get("spec")?.as_object()?;
    let (key, _) =
        spec.iter().find(|(_, value)| value.as_array().is_some_and(|list| list.len() > MAX_MEMBERS))?;
    Some(vec![Step::from("spec"), Step::from(key.as_str())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
            Value::Object(entries) => 1 + entries.values().map(count).sum::<usize>(),
            _ => 1,
        }
    }

    #[test]
    fn values_are_counted_and_never_too_few() {
        for value in [
            json!(1),
            json!({}),
            json!([]),
            json!([1, {"a": [{}, {}], "b,[{": ",\\\"{"}]),
            json!({"\\": ",,"}),
        ] {
            let all = values(&value.to_string());
            assert!((count(&value)..=2 * count(&value)).contains(&all), "{value}: {all}");
        }
        assert_eq!(values(r#"["{[,\"{[,"]"#), 2);
    }

    #[test]
    fn a_crowd_is_found_where_it_is() {
        assert!(crowded(&json!({"spec": {"containers": vec![json!({}); MAX_MEMBERS]}})).is_none());
        let many = json!({"spec": {"a": 1, "volumes": vec![json!({}); MAX_MEMBERS + 1]}});
        assert_eq!(crowded(&many), Some(vec!["spec".into(), "volumes".into()]));
        assert!(crowded(&json!(["spec"])).is_none());
    }
}
