//! JSON Schema (draft 2020-12) of the plugins' configurations, for editors.

use serde_json::{Map, Value, json};

use cnimble_cni::Version;

use super::entry::{every_plugins, shape_of};
use super::page::{Page, Role, network, page, pages};
use super::shape::{self, Key, Shape};

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Returns the schema of a plugin's entry, or `None` for an unknown plugin. That of an IPAM plugin describes the entry
/// of a plugin that delegates to it.
pub fn of_plugin(name: &str) -> Option<Value> {
    let page = page(name)?;
    let mut schema = entry(page);
    let object = schema.as_object_mut()?;
    if takes_ipam(page) {
        object.insert("$defs".to_owned(), ipams().collect::<Map<_, _>>().into());
    }
    object.insert("$schema".to_owned(), DRAFT.into());
    object.insert("title".to_owned(), format!("CNI plugin {name}").into());
    object.insert("description".to_owned(), page.about.into());
    Some(schema)
}

/// Returns the schema of a network: a list of plugins, or a single plugin.
pub fn of_network() -> Value {
    let mut defs: Map<String, Value> =
        plugin_pages().map(|page| (page.name.to_owned(), entry(page))).chain(ipams()).collect();
    defs.insert(
        "entry".to_owned(),
        json!({
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"type": "string", "minLength": 1}},
            "allOf": cases(plugin_pages(), |page| page.name.to_owned()),
        }),
    );
    described(json!({
        "$schema": DRAFT,
        "title": "CNI network",
        "description": "A network of the Container Network Interface: a list of plugins (.conflist), or one plugin (.conf)",
        "type": "object",
        "required": ["name"],
        "properties": {
            "cniVersion": version(),
            "cniVersions": {"type": "array", "items": version()},
            "name": {"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"},
            "disableCheck": {"type": ["boolean", "string"]},
            "disableGC": {"type": ["boolean", "string"]},
            "loadOnlyInlinedPlugins": {"type": ["boolean", "string"]},
            "plugins": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/entry"}},
        },
        "if": {"required": ["type"]},
        "then": {"$ref": "#/$defs/entry"},
        "$defs": defs,
    }))
}

/// Returns the schema of a version of the specification.
fn version() -> Value {
    let all: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    json!({"type": "string", "enum": all})
}

/// Returns the schema of an entry. The type in `ipam` decides which keys `ipam` may have.
fn entry(page: &Page) -> Value {
    let shape = match page.role {
        Role::Ipam => shape::merge(&page.shape, &every_plugins()),
        _ => shape_of(page.name, None).unwrap_or(Shape::Any),
    };
    let mut schema = build_schema(&shape, "", page);
    let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return schema };
    match page.role {
        Role::Ipam => fields.extend(ipam(page).map(|ipam| ("ipam".to_owned(), ipam))),
        _ => fields.extend([("type".to_owned(), json!({"const": page.name}))]),
    }
    fields.insert("cniVersion".to_owned(), version());
    // These may also contain the keys of IPAM plugins and of unknown plugins.
    for open in ["runtimeConfig", "args", "prevResult"] {
        if let Some(field) = fields.get_mut(open).and_then(Value::as_object_mut) {
            field.remove("additionalProperties");
        }
    }
    if let Some(ipam) = fields.get_mut("ipam").and_then(Value::as_object_mut).filter(|_| takes_ipam(page)) {
        ipam.remove("additionalProperties");
        ipam.remove("patternProperties");
        ipam.insert("allOf".to_owned(), cases(ipam_pages(), definition));
    }
    schema
}

/// Returns a condition for each plugin: if `type` is its name, its definition applies.
fn cases(plugins: impl Iterator<Item = &'static Page>, definition: fn(&Page) -> String) -> Value {
    let cases = plugins.map(|page| {
        json!({
            "if": {"properties": {"type": {"const": page.name}}, "required": ["type"]},
            "then": {"$ref": format!("#/$defs/{}", definition(page))},
        })
    });
    cases.collect()
}

/// Returns whether the plugin delegates to an IPAM plugin: it is none itself, and has the key `ipam.type`.
fn takes_ipam(page: &Page) -> bool {
    page.role != Role::Ipam && shape::find_shape(&page.shape, "ipam.type").is_some()
}

fn plugin_pages() -> impl Iterator<Item = &'static Page> {
    pages().iter().filter(|page| page.role != Role::Ipam)
}

fn ipam_pages() -> impl Iterator<Item = &'static Page> {
    pages().iter().filter(|page| page.role == Role::Ipam)
}

/// Returns the name of the definition of an IPAM plugin's keys.
fn definition(ipam: &Page) -> String {
    format!("ipam-{}", ipam.name)
}

/// Returns the definitions of the IPAM plugins' keys below `ipam`.
fn ipams() -> impl Iterator<Item = (String, Value)> {
    ipam_pages().filter_map(|page| Some((definition(page), ipam(page)?)))
}

/// Returns the schema of an IPAM plugin's keys below `ipam`.
fn ipam(page: &Page) -> Option<Value> {
    let mut schema = build_schema(shape::find_shape(&page.shape, "ipam")?, "ipam", page);
    schema.get_mut("properties")?.as_object_mut()?.insert("type".to_owned(), json!({"const": page.name}));
    Some(schema)
}

/// Returns the schema of a shape. `path` leads to it from the entry, for the descriptions of its keys.
fn build_schema(shape: &Shape, path: &str, page: &Page) -> Value {
    let mut schema = match shape {
        Shape::Any => json!({}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Integer(low, high) => {
            let mut schema = json!({"type": "integer"});
            let bounds = [("minimum", low), ("maximum", high)];
            // Editors do not distinguish numbers above 2⁵³.
            for (name, bound) in bounds.into_iter().filter(|(_, bound)| bound.unsigned_abs() < 1 << 53) {
                if let (Some(object), Ok(bound)) = (schema.as_object_mut(), i64::try_from(*bound)) {
                    object.insert(name.to_owned(), bound.into());
                }
            }
            schema
        }
        Shape::Text => json!({"type": "string"}),
        // An empty text has the same effect as a missing key.
        Shape::OneOf(words) => {
            json!({"enum": std::iter::once("").chain(words.iter().map(String::as_str)).collect::<Vec<_>>()})
        }
        Shape::Interface => json!({"type": "string", "maxLength": 15, "pattern": "^[^/:%\\s]*$"}),
        Shape::Mac => json!({"type": "string", "pattern": "^([0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5})?$"}),
        Shape::Address => json!({"type": "string", "pattern": "^[0-9a-fA-F:.]*$"}),
        Shape::Network => json!({"type": "string", "pattern": "^([0-9a-fA-F:.]+/[0-9]{1,3})?$"}),
        Shape::AddressOrNetwork => json!({"type": "string", "pattern": "^[0-9a-fA-F:.]+(/[0-9]{1,3})?$"}),
        Shape::List(item) => {
            json!({"type": "array", "items": build_schema(item, &format!("{path}[]"), page)})
        }
        Shape::OneOrMore(item) => {
            let one = build_schema(item, "", page);
            json!({"anyOf": [one, {"type": "array", "items": one}]})
        }
        Shape::Map(item) => json!({"type": "object", "additionalProperties": build_schema(item, "", page)}),
        Shape::Object(fields) => {
            let required: Vec<&String> =
                fields.iter().filter(|(_, (_, required))| *required).map(|(name, _)| name).collect();
            let properties: Map<String, Value> = fields
                .iter()
                .map(|(name, (shape, _))| (name.clone(), build_schema(shape, &join_path(path, name), page)))
                .collect();
            let mut schema = json!({
                "type": "object",
                "properties": properties,
                "patternProperties": {"^(_|\\$|#|/|x-|cni\\.dev/)": {}},
                "additionalProperties": false,
            });
            if let Some(object) = schema.as_object_mut().filter(|_| !required.is_empty()) {
                object.insert("required".to_owned(), json!(required));
            }
            schema
        }
    };
    let key = page.keys.iter().chain(network()).find(|key| key.path == path);
    if let (Some(object), Some(key)) = (schema.as_object_mut(), key) {
        describe(object, key);
    }
    schema
}

/// Returns the path of a key below another path, which is empty for the entry itself.
fn join_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Adds descriptions to the keys of the network itself.
fn described(mut schema: Value) -> Value {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if let (Some(object), Some(key)) =
            (property.as_object_mut(), network().iter().find(|key| key.path == name))
        {
            object.insert("description".to_owned(), key.about.into());
        }
    }
    schema
}

/// Adds description and default of a key.
fn describe(schema: &mut Map<String, Value>, key: &Key) {
    if !key.about.is_empty() {
        schema.insert("description".to_owned(), key.about.into());
    }
    if let Ok(default) = serde_json::from_str::<Value>(key.default.trim_matches('`')) {
        schema.insert("default".to_owned(), default);
    }
}
