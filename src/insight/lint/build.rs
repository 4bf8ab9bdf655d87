//! Takes the tables of keys from the plugins' pages, and their roles from their samples.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new("../../..");
    let mut folders: Vec<PathBuf> = Vec::new();
    for dir in ["plugins", "ipam"] {
        println!("cargo::rerun-if-changed=../../../{dir}");
        for entry in std::fs::read_dir(root.join(dir))? {
            folders.push(entry?.path());
        }
    }
    folders.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    let mut list = String::from("&[\n");
    for folder in folders {
        let (page, sample) = (folder.join("README.md"), folder.join("sample.json"));
        if !page.exists() || !sample.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&page)?;
        let mut lines = text.lines();
        let name =
            lines.next().and_then(|line| line.strip_prefix("# ")).ok_or("a page begins with a name")?;
        let about: Vec<&str> =
            lines.by_ref().skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty()).collect();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
        let sample = std::fs::read_to_string(sample)?;
        let role = ["main", "chained", "ipam"]
            .into_iter()
            .find(|role| sample.contains(&format!("\"role\": \"{role}\"")))
            .ok_or_else(|| format!("{name}: sample.json has no role"))?;
        let (about, rows) = (about.join(" "), rows.join("\n"));
        writeln!(list, "    ({name:?}, {role:?}, {about:?}, {rows:?}),")?;
    }
    list.push_str("]\n");
    let out = std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?;
    std::fs::write(Path::new(&out).join("pages.rs"), list)?;
    Ok(())
}
