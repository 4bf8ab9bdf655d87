//! `tree`: the node's networks as a picture.

use std::path::{Path, PathBuf};

use cnimble_runtime::{Cache, ConfDir};
use cnimble_tree::{self as tree, Look, Sources};

use super::args::Tree;
use super::report::{Exit, Report};
use super::{Session, print, print_json};

/// Where runtimes keep named namespaces.
const NETNS_DIRS: [&str; 3] = ["/run/netns", "/run/cnimble/netns", "/run/docker/netns"];

pub(super) fn tree(session: &Session, given: &Tree) -> Result<(), Report> {
    let configured = configured(&session.conf);
    let netns_dirs: Vec<PathBuf> = NETNS_DIRS.iter().map(PathBuf::from).collect();
    let mut caches = vec![session.invoker.cache().clone()];
    if !session.own_cache {
        // Pods of `cnimble pod` and `cnimble run`.
        caches.push(Cache::new("/var/lib/cnimble/cni"));
    }
    let sources = Sources { caches: &caches, configured: &configured, netns_dirs: &netns_dirs };
    let tree = tree::read(&sources)
        .map_err(|err| Report::new(Exit::Files, "can't draw the networks").row("why", err.to_string()))?;
    if let Some(path) = &given.svg {
        write(path, &tree::svg(&tree))?;
    }
    if session.json {
        let value = serde_json::to_value(&tree);
        let failed = |err: serde_json::Error| {
            Report::new(Exit::Files, "can't write the networks as JSON").row("why", err.to_string())
        };
        print_json(&value.map_err(failed)?);
    } else if given.svg.is_none() {
        let ascii = given.ascii || !speaks_unicode();
        print(&tree::text(&tree, Look { ascii, colour: session.paint.is_on() }));
    }
    Ok(())
}

/// Networks that could be used, the first of each name. What is wrong with the others
/// `cnimble networks` tells.
fn configured(conf: &ConfDir) -> Vec<cnimble_cni::NetworkList> {
    let Ok(listing) = conf.list() else { return Vec::new() };
    listing.networks.into_iter().map(|network| network.list).collect()
}

/// Whether the locale's letters are UTF-8 (locale(7): the first of these that is set counts).
/// Without any, lines of Unicode still are what most terminals take.
fn speaks_unicode() -> bool {
    let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set) {
        Some(locale) => locale.to_ascii_lowercase().replace('-', "").contains("utf8"),
        None => true,
    }
}

fn write(path: &Path, svg: &str) -> Result<(), Report> {
    if path == Path::new("-") {
        print(svg);
        return Ok(());
    }
    std::fs::write(path, svg).map_err(|err| {
        Report::new(Exit::Files, "can't write the picture")
            .row("file", path.display().to_string())
            .row("why", err.to_string())
    })
}
