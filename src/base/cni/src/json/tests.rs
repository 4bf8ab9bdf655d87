//! Documents as they come, and as they had better not.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mapping {
    host_port: u16,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    vlan: u16,
    port_mappings: Vec<Mapping>,
    nested: Option<Mapping>,
    by_name: HashMap<String, Mapping>,
    pools: Vec<Vec<Mapping>>,
    choice: Choice,
    #[serde(alias = "name2")]
    name: Option<String>,
    on: bool,
    any: Option<Value>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Choice {
    #[default]
    Auto,
    Nftables,
}

fn read(value: &Value) -> Config {
    from_value(value, "").unwrap()
}

fn message(value: &Value) -> String {
    let err = from_value::<Config>(value, "").unwrap_err();
    assert_eq!(err.code, Code::INVALID_CONFIG);
    err.msg
}

fn mapping(host_port: u16, host_ip: &str) -> Mapping {
    Mapping { host_port, host_ip: host_ip.into() }
}

#[test]
fn keys_match_in_any_case_at_every_depth() {
    let config = read(&json!({
        "VLAN": 5,
        "PortMappings": [{ "HostPort": 80, "HostIP": "10.0.0.1" }, { "hostport": 81 }],
        "NESTED": { "HOSTIP": "x" },
        "byname": { "Key": { "HostPort": 1 } },
        "Pools": [[{ "HostPort": 2 }], []],
        "Name2": "n",
    }));
    assert_eq!(config.vlan, 5);
    assert_eq!(config.port_mappings, [mapping(80, "10.0.0.1"), mapping(81, "")]);
    assert_eq!(config.nested, Some(mapping(0, "x")));
    // Keys of a map are data: they stay as they are.
    assert_eq!(config.by_name["Key"], mapping(1, ""));
    assert_eq!(config.pools, [vec![mapping(2, "")], vec![]]);
    assert_eq!(config.name.as_deref(), Some("n"));
}

#[test]
fn the_exact_spelling_wins_unless_it_is_null() {
    for (value, vlan) in [
        (json!({ "VLAN": 1, "vlan": 2, "Vlan": 3 }), 2),
        (json!({ "vlan": null, "Vlan": 3 }), 3),
        (json!({ "Vlan": null, "vlAN": 4 }), 4),
        (json!({ "Vlan": null, "vlan": null }), 0),
    ] {
        assert_eq!(read(&value).vlan, vlan, "{value}");
    }
    let value = json!({ "B": null, "a": null, "A": 1, "b": null });
    assert_eq!(get(&value, "a"), Some(&json!(1)));
    assert_eq!(get(&value, "b"), Some(&Value::Null));
    assert_eq!(get(&value, "c"), None);
    assert_eq!(get(&json!([1]), "a"), None);
}

#[test]
fn a_key_that_differs_only_in_case_from_another_field_is_not_taken_for_it() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Twins {
        #[serde(default)]
        mac: String,
        #[serde(default, rename = "MAC")]
        upper: String,
    }
    let twins: Twins = from_value(&json!({ "MAC": "x" }), "").unwrap();
    assert_eq!((twins.mac.as_str(), twins.upper.as_str()), ("", "x"));
}

#[test]
fn null_is_absent_and_unknown_keys_are_ignored() {
    let value = json!({
        "vlan": null, "portMappings": null, "nested": null, "byName": null, "pools": null,
        "choice": null, "name": null, "on": null, "any": null,
        "unknown": { "deep": [1, { "x": null }] }, "": 1,
    });
    assert_eq!(read(&value), Config::default());
    // As elements: a list or an object is empty, a key of a map is not there.
    let value = json!({ "pools": [null], "portMappings": [null], "byName": { "x": null } });
    let config = read(&value);
    assert_eq!(config.pools, [vec![]]);
    assert_eq!(config.port_mappings, [Mapping::default()]);
    assert!(config.by_name.is_empty());
    assert_eq!(from_value::<Config>(&Value::Null, "").unwrap(), Config::default());
}

#[test]
fn errors_have_the_exact_path_and_a_plain_sentence() {
    for (value, expected) in [
        (json!({ "vlan": "x" }), "vlan: invalid type: string \"x\", expected u16"),
        (json!({ "VLAN": 70000 }), "vlan: invalid value: integer `70000`, expected u16"),
        (json!({ "vlan": -1 }), "vlan: invalid value: integer `-1`, expected u16"),
        (json!({ "vlan": 1.0 }), "vlan: invalid type: floating point `1.0`, expected u16"),
        (json!({ "vlan": 1e30 }), "vlan: invalid type: floating point `1e+30`, expected u16"),
        (json!({ "vlan": true }), "vlan: invalid type: boolean `true`, expected u16"),
        (json!({ "vlan": [1] }), "vlan: invalid type: list, expected u16"),
        (json!({ "vlan": {} }), "vlan: invalid type: object, expected u16"),
        (json!({ "nested": [80, "x"] }), "nested: invalid type: list, expected an object"),
        (json!({ "portMappings": {} }), "portMappings: invalid type: object, expected a list"),
        (
            json!({ "portMappings": [{}, { "HostPort": "80" }] }),
            "portMappings[1].hostPort: invalid type: string \"80\", expected u16",
        ),
        (
            json!({ "pools": [[], [{}, { "hostIP": 1 }]] }),
            "pools[1][1].hostIP: invalid type: integer `1`, expected a string",
        ),
        (
            json!({ "byName": { "a": { "hostIP": [] } } }),
            "byName.a.hostIP: invalid type: list, expected a string",
        ),
        (json!({ "byName": 1 }), "byName: invalid type: integer `1`, expected an object"),
        (
            json!({ "choice": "firewalld" }),
            "choice: unknown variant `firewalld`, expected `auto` or `nftables`",
        ),
        (json!({ "on": "true" }), "on: invalid type: string \"true\", expected a boolean"),
        (json!("text"), "invalid type: string \"text\", expected an object"),
    ] {
        assert_eq!(message(&value), expected);
    }
}

#[test]
fn the_prefix_joins_the_path() {
    let msg = |value: Value| from_value::<Vec<Mapping>>(&value, "a.b").unwrap_err().msg;
    assert_eq!(
        msg(json!([{ "hostPort": "x" }])),
        "a.b[0].hostPort: invalid type: string \"x\", expected u16"
    );
    assert_eq!(msg(json!(1)), "a.b: invalid type: integer `1`, expected a list");
    let err = from_value::<Mapping>(&json!({ "hostIP": 1 }), "a").unwrap_err();
    assert_eq!(err.msg, "a.hostIP: invalid type: integer `1`, expected a string");
}

#[test]
fn hostile_documents_are_errors() {
    let deep = |open: &str, close: &str, n: usize| (open.repeat(n) + &close.repeat(n)).into_bytes();
    for bytes in [
        b"".to_vec(),
        b" \n".to_vec(),
        b"{".to_vec(),
        b"{} x".to_vec(),
        b"{\"a\":1,}".to_vec(),
        b"{'a':1}".to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
        b"{\"a\":\"\xff\"}".to_vec(),
        b"{\"a\":\"\\ud800\"}".to_vec(),
        b"{\"a\":1e999}".to_vec(),
        b"{\"a\":NaN}".to_vec(),
        b"{\"a\":01}".to_vec(),
        b"\0".to_vec(),
        deep("[", "]", 100_000),
        deep("{\"a\":", "}", 100_000),
    ] {
        let err = parse(&bytes, "configuration").unwrap_err();
        assert_eq!(err.code, Code::DECODE);
        assert!(err.msg.starts_with("configuration is "), "{}", err.msg);
    }
    let err = parse(b"{\n  \"a\": x\n}", "configuration").unwrap_err();
    assert_eq!(err.msg, "configuration is not valid JSON: expected value at line 2 column 8");
    for (text, what) in [
        ("[]", "list"),
        ("null", "null"),
        ("1", "integer `1`"),
        ("-1", "integer `-1`"),
        ("1.5", "floating point `1.5`"),
        ("\"x\"", "string \"x\""),
        ("true", "boolean `true`"),
    ] {
        let err = parse_object(text.as_bytes(), "it").unwrap_err();
        assert_eq!(
            (err.code, err.msg),
            (Code::DECODE, format!("it: invalid type: {what}, expected an object"))
        );
    }
    // Of equal keys the last counts, as in Go; a number beyond 64 bits is a float.
    let twice = parse(b"{\"vlan\":\"x\",\"vlan\":7}", "configuration").unwrap();
    assert_eq!(read(&twice).vlan, 7);
    let huge = parse(b"{\"vlan\":99999999999999999999999}", "configuration").unwrap();
    assert_eq!(message(&huge), "vlan: invalid type: floating point `1e+23`, expected u16");
}

#[test]
fn a_text_is_found_in_what_is_broken_further_on() {
    let find = |text: &str| text_member(text.as_bytes(), "cniVersion");
    let found = |text| Some(String::from(text));
    assert_eq!(find(r#"{"name":[{}],"cniVersion":"0.4.0",!"#), found("0.4.0"));
    assert_eq!(find(r#"{"CNIVersion":"0.3.0"}"#), found("0.3.0"));
    // The exact spelling wins, and of two of one kind the last.
    assert_eq!(find(r#"{"cniVersion":"1.0.0","CNIVERSION":"0.4.0"}"#), found("1.0.0"));
    assert_eq!(find(r#"{"CNIVERSION":"0.4.0","cniVersion":"1.0.0"}"#), found("1.0.0"));
    assert_eq!(find(r#"{"CNIVersion":"0.3.0","CNIVERSION":"0.4.0"}"#), found("0.4.0"));
    for text in ["", "[]", r#"{"name":"cniVersion"}"#, r#"{"cniVersion":1}"#, r#"{!"cniVersion":"1.0.0"}"#] {
        assert_eq!(find(text), None, "{text}");
    }
}

#[test]
fn writes_like_go() {
    assert_eq!(
        to_pretty(&json!({ "b": [], "a": { "<&>": "\u{2028}\u{2029}\u{7f}é\t\u{1}\"\\/" }, "c": {} })),
        "{\n    \"a\": {\n        \"\\u003c\\u0026\\u003e\": \"\\u2028\\u2029\u{7f}é\\t\\u0001\\\"\\\\/\"\n    },\n    \"b\": [],\n    \"c\": {}\n}"
    );
}

#[test]
fn a_document_is_read_as_serde_reads_it() {
    for text in [
        "null",
        " true ",
        "-1",
        "18446744073709551615",
        "1e3",
        r#""a\u00e9\n""#,
        r#"[1,[],{},"x",null]"#,
        r#"{"a":1,"a":{"b":[2.5]},"A":null,"":""}"#,
    ] {
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(super::parse(text.as_bytes(), "it").unwrap(), expected, "{text}");
    }
    for text in ["[1", "[1]]", "nul", "{\"a\" 1}", &"[".repeat(200), "1e999", "\"\u{1}\""] {
        let expected = serde_json::from_str::<Value>(text).unwrap_err();
        let error = super::parse(text.as_bytes(), "it").unwrap_err();
        assert_eq!(error.msg, format!("it is not valid JSON: {expected}"), "{text}");
    }
}

#[test]
fn what_takes_too_much_memory_is_an_error() {
    let many = |part: &str, count: usize| format!("[{}0]", part.repeat(count));
    for (text, bound) in [
        (many("{\"\":0},", 200_000), "its values would take more than 80 MiB of memory"),
        (many("0,", 1_400_000), "its values would take more than 80 MiB of memory"),
        (many(&format!("\"{}\",", "x".repeat(1 << 20)), 5), "there are more than 4 MiB of text in it"),
    ] {
        let error = super::parse(text.as_bytes(), "it").unwrap_err();
        assert_eq!((error.code, error.msg), (Code::DECODE, format!("it is too large: {bound}")));
    }
    // Each node of a map counts, not only the first.
    let wide: String = (0..700_000).map(|n| format!("\"{n:x}\":0,")).collect();
    let error = super::parse(format!("{{{wide}\"\":0}}").as_bytes(), "it").unwrap_err();
    assert!(error.msg.contains("80 MiB of memory"), "{}", error.msg);
    for text in [many("{\"\":0},", 100_000), many("0,", 1_000_000)] {
        super::parse(text.as_bytes(), "it").unwrap();
    }
}

#[test]
fn what_json_lacks_is_said() {
    for (text, said) in [
        ("\u{feff}{}", Some("byte order mark")),
        ("{\n  // the pods\n  \"a\": 1}", Some("no comments")),
        ("{\"a\": 1, # the pods\n \"b\": 2}", Some("no comments")),
        ("{\"a\": 1 /* the pods */}", Some("no comments")),
        ("{\"a\": True}", Some("true and false")),
        ("{\"a\": None}", Some("null")),
        ("{'a': 1}", Some("double quotes")),
        ("{\"a\": 1,}", None),
        ("{\"a\": 1", None),
        ("{\"a\": x}", None),
    ] {
        let details = super::parse(text.as_bytes(), "it").unwrap_err().details;
        match said {
            Some(said) => assert!(details.contains(said), "{text}: {details}"),
            None => assert_eq!(details, "", "{text}"),
        }
    }
}
