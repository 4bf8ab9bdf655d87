//! `schema`: prints the JSON schemas for editors that check configurations.

use cnimble_lint::{pages, schema};

use super::args::config::Schema;
use super::print_json;
use super::report::{Exit, Report};

/// Prints the schema of a plugin, or of a network if no plugin is given. It fails for a plugin whose keys aren't known.
pub(super) fn schema(given: &Schema) -> Result<(), Report> {
    let Some(name) = given.plugin.as_deref().filter(|_| !given.all) else {
        return print_json(&schema::of_network());
    };
    let Some(schema) = schema::of_plugin(name) else {
        let known: Vec<&str> = pages().iter().map(|page| page.name).collect();
        return Err(Report::because(
            Exit::Usage,
            format!("there is no schema of {name}"),
            "the keys of this plugin aren't known",
        )
        .hint(format!("known are {}", known.join(", "))));
    };
    print_json(&schema)
}
