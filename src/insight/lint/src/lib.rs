#![doc = include_str!("../README.md")]

mod document;
mod entry;
mod finding;
mod go;
mod host;
mod network;
mod page;
mod rules;
pub mod sarif;
pub mod schema;
mod shape;
mod subnets;
mod walk;

pub use document::{Data, Document, File, Member, Node};
pub use finding::{Finding, Level, Rule};
pub use go::{Lost, lost_with_go};
pub use host::{Host, Route, on_host};
pub use network::{NamedPlugin, lint, lint_entry, lint_plugins, meant, named};
pub use page::{Page, Role, network as network_keys, page, pages, understood};
pub use shape::{Key, Shape};
pub use subnets::together;
pub use walk::nearest;

use finding::Findings;
