#![doc = include_str!("../README.md")]

mod document;
mod finding;
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
pub use host::{Host, Route, on_host};
pub use network::{Named, lint, lint_entry, meant, named};
pub use page::{Key, Page, Role, page, pages};
pub use shape::{Shape, understood};
pub use subnets::together;
pub use walk::nearest;
