//! Running iptables.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cnimble_cni::{Code, Error};
use cnimble_netlink::nft::Family;

use super::xtables::FAMILIES;

/// Where system commands are, for runtimes that call plugins with a bare PATH.
const DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"];

/// The command, from PATH or from the usual directories.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .chain(DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| {
            std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// The command of a family: `iptables-save`, `ip6tables-restore` and so on.
pub(super) fn tool(family: Family, action: &str) -> String {
    let iptables = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    format!("{iptables}-{action}")
}

/// Changes a table of a family by lines for `iptables-restore`, all or nothing.
///
/// # Errors
/// As [`run`].
pub(super) fn restore(family: Family, table: &str, lines: &[String]) -> Result<(), Error> {
    let input = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
    run(&tool(family, "restore"), &["--noflush", "--wait=10"], &input).map(drop)
}

/// Whether the commands that change tables are there.
pub(super) fn installed() -> bool {
    FAMILIES.into_iter().all(|family| find(&tool(family, "restore")).is_some())
}

/// Whether a table can be changed. `option` is the one that chooses another backend.
///
/// # Errors
/// Code 50 without the commands, code 100 with what they printed.
pub(super) fn usable(table: &str, option: &str) -> Result<(), Error> {
    for name in FAMILIES.map(|family| tool(family, "restore")) {
        if find(&name).is_none() {
            return Err(Error::new(Code::NOT_AVAILABLE, format!("the command {name} is not installed"))
                .details(format!("install iptables, or set \"{option}\": \"nftables\"")));
        }
    }
    let name = tool(Family::Ipv4, "restore");
    run(&name, &["--test", "--noflush", "--wait=10"], &format!("*{table}\nCOMMIT\n")).map(drop)
}

/// Runs it with `input` and returns what it printed.
///
/// # Errors
/// Code 100 with what it printed on stderr.
pub(super) fn run(name: &str, args: &[&str], input: &str) -> Result<String, Error> {
    let program = find(name).ok_or_else(|| missing(name))?;
    let failed = |err: &std::io::Error| Error::io("run", &program, err);
    let mut child = Command::new(&program)
        .args(args.iter().map(OsStr::new))
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|err| failed(&err))?;
    if let Some(mut stdin) = child.stdin.take() {
        // iptables reads all before it prints; one that doesn't read says why itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|err| failed(&err))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).take(5).collect();
    Err(Error::new(Code::KERNEL, format!("{name} failed ({})", output.status)).details(said.join("; ")))
}

fn missing(name: &str) -> Error {
    Error::new(Code::KERNEL, format!("the command {name} is not installed"))
        .details("install iptables, or set the plugin's backend to \"nftables\"")
}
