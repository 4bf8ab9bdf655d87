//! The addresses of a cluster, of which a node owns a share: blocks, and single addresses.
//!
//! The plugin cluster-local gives addresses from the [`share`]. The node's agent claims and returns parts of it in the
//! store. Both read the same configuration ([`config`]) and file, and start the same [`program`], so these are here,
//! where there is no client of a store.

use std::path::{Path, PathBuf};

pub mod config;
pub mod share;

pub use crate::range::{address, number};

/// The program that speaks to the store. It is installed beside the plugins.
pub const PROGRAM: &str = "cluster-local-store";
/// The name that the program had in earlier builds. Now it is a link, for their plugins.
const FORMER: &str = "cluster-local-etcd";

/// Returns the path of the program. The former name counts only if no directory has [`PROGRAM`].
pub fn program<D: AsRef<Path>>(dirs: &[D]) -> Option<PathBuf> {
    let mut paths =
        [PROGRAM, FORMER].into_iter().flat_map(|name| dirs.iter().map(move |dir| dir.as_ref().join(name)));
    paths.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_former_name_of_the_program_counts_where_no_directory_has_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = ["one", "two"].map(|name| dir.path().join(name));
        for dir in &dirs {
            std::fs::create_dir(dir).unwrap();
        }
        assert_eq!(program(&dirs), None);
        std::fs::write(dirs[0].join(FORMER), "").unwrap();
        assert_eq!(program(&dirs), Some(dirs[0].join(FORMER)));
        std::fs::write(dirs[1].join(PROGRAM), "").unwrap();
        assert_eq!(program(&dirs), Some(dirs[1].join(PROGRAM)));
        symlink("nowhere", dirs[0].join(PROGRAM)).unwrap();
        assert_eq!(program(&dirs), Some(dirs[1].join(PROGRAM)));
    }
}
