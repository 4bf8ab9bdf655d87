//! Finds a plugin's file: the first regular file of its name in CNI_PATH.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::PluginError;

/// Returns the file of plugin `name`. Links are followed. It need not be executable. An empty directory in `path` is
/// skipped, and is not the working directory.
///
/// # Errors
/// Fails with [`PluginError::BadName`] for a name with `/`, which would leave the directories that the administrator
/// chose (CVE-2021-20206). Fails with [`PluginError::Missing`] if no directory has it. The path of a file that can't be
/// looked at is returned if no other directory has one.
pub fn find_plugin(name: &str, path: &[PathBuf]) -> Result<PathBuf, PluginError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(PluginError::BadName { name: name.to_owned() });
    }
    let dirs = path.iter().filter(|dir| !dir.as_os_str().is_empty());
    let files: Vec<PathBuf> = dirs.map(|dir| dir.join(name)).collect();
    if let Some(file) = files.iter().find(|file| file.is_file()) {
        return Ok(file.clone());
    }
    // A file that can't be looked at may be there. The start fails then, and says why.
    let is_hidden = |file: &&PathBuf| {
        let seen = std::fs::metadata(file);
        seen.is_err_and(|err| !matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    };
    let missing = || PluginError::Missing { name: name.to_owned(), dirs: path.to_vec() };
    files.iter().find(is_hidden).cloned().ok_or_else(missing)
}

/// Returns every executable file in CNI_PATH by name. Of several with one name the first counts. Unreadable directories
/// are skipped with a warning. A missing directory is a warning only if no other one exists.
pub fn all(path: &[PathBuf]) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for dir in path {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(err) if err.kind() == ErrorKind::NotFound && path.iter().any(|dir| dir.is_dir()) => continue,
            Err(err) => {
                log::warn!("can't list the plugin directory {}: {err}", dir.display());
                continue;
            }
        };
        for entry in entries.flatten() {
            if let Ok(name) = entry.file_name().into_string()
                && is_executable(&entry.path())
            {
                found.entry(name).or_insert_with(|| entry.path());
            }
        }
    }
    found
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_directory_wins_and_directories_do_not_count() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(first.path().join("bridge")).unwrap();
        std::fs::write(second.path().join("bridge"), "").unwrap();
        std::fs::write(first.path().join("ptp"), "").unwrap();
        std::fs::write(second.path().join("ptp"), "").unwrap();
        let path = [first.path().to_owned(), second.path().to_owned()];
        assert_eq!(find_plugin("bridge", &path).unwrap(), second.path().join("bridge"));
        assert_eq!(find_plugin("ptp", &path).unwrap(), first.path().join("ptp"));
        let text = find_plugin("vlan", &path).unwrap_err().to_string();
        assert!(text.starts_with("no plugin \"vlan\" in CNI_PATH [/"), "{text}");
    }

    #[test]
    fn an_empty_directory_is_not_the_working_directory() {
        assert!(std::path::Path::new("Cargo.toml").is_file());
        assert!(matches!(find_plugin("Cargo.toml", &["".into()]), Err(PluginError::Missing { .. })));
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        for name in ["", ".", "..", "a/b", "/bin/sh", "../sh", "a\0b"] {
            assert!(
                matches!(find_plugin(name, &["/bin".into()]), Err(PluginError::BadName { .. })),
                "{name:?}"
            );
        }
    }

    #[test]
    fn only_executable_files_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bridge");
        std::fs::write(&file, "").unwrap();
        std::fs::write(dir.path().join("README"), "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let found = all(&[dir.path().to_owned(), "/nonexistent".into()]);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("bridge".to_owned(), file)]);
    }
}
