//! The shape of values: the words of the column *type*, and the tree that a page's keys form.
//!
//! | type | |
//! |---|---|
//! | `boolean`, `string`, `integer`, `object` | as in JSON Schema |
//! | `integer from 0`, `integer A to B` | both ends included |
//! | ``string: `a`, `b` or `c` `` | one of these |
//! | `interface`, `MAC`, `address`, `network`, `address or network` | texts of that form |
//! | `list of …`, `one or more …`, `object of …` | of an object's values |
//! | ``object of `a`, `b` `` | an object with these keys of the page |
//! | ``as `key` ``, `as above` | as that key; as the key of the same last name |
//! | `routes`, `DNS` | as in a result |

use std::collections::BTreeMap;

/// A key with the columns of a page's table.
#[derive(Debug, Clone)]
pub struct Key {
    /// A path such as `ipam.ranges[][].subnet`.
    pub path: &'static str,
    /// The words of its type.
    pub kind: &'static str,
    /// The default. It begins with `required` if the key must be there.
    pub default: &'static str,
    /// An example of the key, or of one key in a row that several share.
    pub example: &'static str,
    /// The sentence about it.
    pub about: &'static str,
    /// Whether the Go plugin of the same name reads the key. On the page `†` marks the others.
    pub is_in_go: bool,
}

impl Key {
    /// Returns whether the key must be there.
    pub fn required(&self) -> bool {
        self.default.starts_with("required")
    }
}

/// What a value may be. `null` counts as a missing value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    Any,
    Bool,
    /// Both ends are included.
    Integer(i128, i128),
    Text,
    OneOf(Vec<String>),
    Interface,
    Address,
    Network,
    AddressOrNetwork,
    Mac,
    List(Box<Shape>),
    /// A value, or a list of such.
    OneOrMore(Box<Shape>),
    /// Any keys, with values of this shape.
    Map(Box<Shape>),
    Object(Fields),
}

/// The boolean is whether the key is required.
pub(crate) type Fields = BTreeMap<String, (Shape, bool)>;

const NATURAL: Shape = Shape::Integer(0, u64::MAX as i128);

/// Returns the tree of a page's keys. A key with unknown words may have any value.
pub(crate) fn build_shape(keys: &[Key]) -> Shape {
    let mut root = Shape::Object(Fields::new());
    // Keys that refer to other keys are inserted last.
    let (refer, plain): (Vec<&Key>, Vec<&Key>) = keys.iter().partition(|key| refers(key.kind));
    for key in plain.into_iter().chain(refer) {
        let shape = of_key(key, &root).unwrap_or(Shape::Any);
        insert(&mut root, key.path, &shape, key.required());
    }
    root
}

/// Returns the shape of a key. `root` has the keys to which it may refer. It returns `None` for unknown words.
pub(crate) fn of_key(key: &Key, root: &Shape) -> Option<Shape> {
    named(key.kind, root).or_else(|| similar(key, root))
}

/// Returns whether the words refer to other keys: `as …`, or an object of named keys.
fn refers(kind: &str) -> bool {
    kind.starts_with("as ") || kind.starts_with("object of `")
}

/// Returns the shape that the words describe, or `None` for unknown words.
pub(crate) fn named(kind: &str, root: &Shape) -> Option<Shape> {
    if let Some(of) = kind.strip_prefix("list of ").or_else(|| kind.strip_prefix("lists of ")) {
        return Some(Shape::List(Box::new(named(of, root)?)));
    }
    if let Some(of) = kind.strip_prefix("one or more ") {
        return Some(Shape::OneOrMore(Box::new(named(of, root)?)));
    }
    if let Some(of) = kind.strip_prefix("object of ").filter(|of| !of.starts_with('`')) {
        return Some(Shape::Map(Box::new(named(of, root)?)));
    }
    let quoted = || kind.split('`').skip(1).step_by(2);
    Some(match kind {
        "boolean" => Shape::Bool,
        "integer" => Shape::Integer(i128::from(i64::MIN), i128::from(i64::MAX)),
        "integer from 0" => NATURAL,
        "string" | "strings" => Shape::Text,
        "interface" | "interfaces" => Shape::Interface,
        "address" | "addresses" => Shape::Address,
        "network" | "networks" => Shape::Network,
        "address or network" | "addresses or networks" => Shape::AddressOrNetwork,
        "MAC" => Shape::Mac,
        "list" => Shape::List(Box::new(Shape::Any)),
        "object" => Shape::Any,
        "routes" => routes(),
        "DNS" => dns(),
        _ if kind.starts_with("string: `") => Shape::OneOf(quoted().map(str::to_owned).collect()),
        _ if kind.starts_with("object of `") => Shape::Object(
            quoted()
                .filter_map(|key| Some((key.to_owned(), (find_shape(root, key)?.clone(), false))))
                .collect(),
        ),
        _ if kind.starts_with("as `") => find_shape(root, quoted().next()?)?.clone(),
        _ => {
            let (low, high) = kind.strip_prefix("integer ")?.split_once(" to ")?;
            Shape::Integer(low.parse().ok()?, high.parse().ok()?)
        }
    })
}

/// Returns the shape for `as above`, which means the key with the same last name. It returns `None` for other words.
fn similar(key: &Key, root: &Shape) -> Option<Shape> {
    let last = key.path.rsplit('.').next()?;
    find_shape(root, last).filter(|_| key.kind == "as above").cloned()
}

/// Returns the shape at a path, in which `[]` stands for an element. It returns `None` if there is no such key.
pub(crate) fn find_shape<'a>(root: &'a Shape, path: &str) -> Option<&'a Shape> {
    let Shape::Object(fields) = root else { return None };
    let (part, rest) = split_first_key(path);
    let mut shape = &fields.get(part.trim_end_matches("[]"))?.0;
    for _ in 0..part.matches("[]").count() {
        let Shape::List(of) = shape else { return None };
        shape = of;
    }
    rest.map_or(Some(shape), |rest| find_shape(shape, rest))
}

/// Splits a path after its first key. A path that begins with `io.` is one key, the capability with annotations.
fn split_first_key(path: &str) -> (&str, Option<&str>) {
    match path.split_once('.') {
        Some((key, rest)) if key != "io" => (key, Some(rest)),
        _ => (path, None),
    }
}

/// Inserts a shape at a path, and makes the objects and lists on the way.
fn insert(root: &mut Shape, path: &str, leaf: &Shape, required: bool) {
    let Shape::Object(fields) = root else { return };
    let (part, rest) = split_first_key(path);
    let (name, lists) = (part.trim_end_matches("[]"), part.matches("[]").count());
    let Some(rest) = rest else {
        let shape = (0..lists).fold(leaf.clone(), |shape, _| Shape::List(Box::new(shape)));
        fields.insert(name.to_owned(), (shape, required));
        return;
    };
    let (below, _) = fields.entry(name.to_owned()).or_insert_with(|| {
        let empty = Shape::Object(Fields::new());
        ((0..lists).fold(empty, |shape, _| Shape::List(Box::new(shape))), false)
    });
    let mut below = below;
    while let Shape::List(of) = below {
        below = of;
    }
    insert(below, rest, leaf, required);
}

/// Merges two objects, for a plugin and its IPAM plugin. If one is no object, the first counts.
pub(crate) fn merge(one: &Shape, other: &Shape) -> Shape {
    let (Shape::Object(one), Shape::Object(other)) = (one, other) else { return one.clone() };
    let mut fields = one.clone();
    for (name, (shape, required)) in other {
        let merged = match fields.get(name) {
            Some((mine, needed)) => (merge(mine, shape), *required || *needed),
            None => (shape.clone(), *required),
        };
        fields.insert(name.clone(), merged);
    }
    Shape::Object(fields)
}

/// Returns the shape of an object with these keys. A key that is true in the last place is required.
pub(crate) fn object(fields: &[(&str, Shape, bool)]) -> Shape {
    let fields =
        fields.iter().map(|(name, shape, required)| ((*name).to_owned(), (shape.clone(), *required)));
    Shape::Object(fields.collect())
}

fn routes() -> Shape {
    const NUMBER: Shape = Shape::Integer(0, u32::MAX as i128);
    Shape::List(Box::new(object(&[
        ("dst", Shape::Network, true),
        ("gw", Shape::Address, false),
        ("mtu", NUMBER, false),
        ("advmss", NUMBER, false),
        ("priority", NUMBER, false),
        ("table", NUMBER, false),
        ("scope", Shape::Integer(0, 255), false),
    ])))
}

/// Returns the shape of the DNS settings of a result.
pub(crate) fn dns() -> Shape {
    let texts = || Shape::List(Box::new(Shape::Text));
    object(&[
        ("nameservers", texts(), false),
        ("domain", Shape::Text, false),
        ("search", texts(), false),
        ("options", texts(), false),
    ])
}
