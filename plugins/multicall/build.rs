//! Writes the list of the plugins to `$OUT_DIR/plugins.rs`, as an expression for `include!`: `&[NAME::PLUGIN, …]`. Each
//! dependency in Cargo.toml with a path is a plugin, and its crate has a `PLUGIN`. In a release build a linker script
//! places the functions of common verbs side by side.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=Cargo.toml");
    let manifest = std::fs::read_to_string("Cargo.toml")?;
    let mut crates: Vec<String> = manifest
        .lines()
        .filter(|line| line.contains("{ path = "))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.replace('-', "_"))
        .collect();
    crates.sort();
    let list: String = crates.iter().map(|name| format!("    {name}::PLUGIN,\n")).collect();
    let out = std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?;
    std::fs::write(Path::new(&out).join("plugins.rs"), format!("&[\n{list}]\n"))?;
    println!("cargo::rerun-if-changed=order.ld");
    // Only release builds use the script, because it needs a linker with INSERT (gold and mold lack it).
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        // The binary doesn't contain the path.
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", Path::new("order.ld").canonicalize()?.display());
    }
    Ok(())
}
