//! The custom resource definitions against the objects that nodes write.

use serde_json::Value;

use cnimble_tests::Host;

use super::cluster;

/// An API server drops keys that the schema lacks.
#[test]
fn the_custom_resource_definitions_have_all_keys_of_the_objects() {
    let host = Host::new();
    let (mut etcd, nodes) = cluster(&host, 1, "10.9.0.0/25");
    let node = nodes[0].offline(3);
    node.added("p1");
    node.listed(&["a"]).operate("tend 192.0.2.1").unwrap();
    let backup = etcd.backup();
    node.run("ADD", "p2", "IP=10.9.0.70", None).unwrap();
    etcd.restore(&backup);
    let _ = node.operate("confirm");
    let text = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/cluster-local/crds.yaml"));
    let (documents, fault) = cnimble_api::yaml::documents(std::str::from_utf8(&text.unwrap()).unwrap());
    assert!(fault.is_none());
    let mut kinds = 0;
    for crd in documents.iter().map(cnimble_api::yaml::Node::value) {
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let objects = etcd.server.objects(crd["spec"]["names"]["plural"].as_str().unwrap());
        assert!(!objects.is_empty());
        for object in &objects {
            assert_eq!(object["kind"], crd["spec"]["names"]["kind"]);
            for part in ["spec", "status"] {
                known(&object[part], &schema[part], part);
            }
        }
        keywords(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
        kinds += 1;
    }
    assert_eq!(kinds, 3);
    assert!(etcd.get("/cnimble/ipam/net/blocks/").contains("\"again\""));
    assert!(etcd.get("/cnimble/ipam/net/fence").contains("\"suspect\""));
}

/// Panics if the schema lacks a key of the value.
fn known(value: &Value, schema: &Value, way: &str) {
    for (key, value) in value.as_object().into_iter().flatten() {
        assert!(!schema["properties"][key].is_null(), "{way}.{key}");
        known(value, &schema["properties"][key], &format!("{way}.{key}"));
    }
    for value in value.as_array().into_iter().flatten() {
        known(value, &schema["items"], &format!("{way}[]"));
    }
}

/// Panics if a schema has a key that is no keyword, such as a part of a description without quotes.
fn keywords(schema: &Value) {
    const KNOWN: &str = "anyOf description enum format items maxItems maxLength maximum minItems minLength minimum \
                         properties required type";
    for (key, value) in schema.as_object().unwrap() {
        assert!(KNOWN.split(' ').any(|known| known == key) || key.starts_with("x-kubernetes-"), "{key}");
        match key.as_str() {
            "items" => keywords(value),
            "properties" => value.as_object().unwrap().values().for_each(keywords),
            _ => {}
        }
    }
}
