//! Calling another plugin, usually IPAM, on behalf of a verb.
//!
//! The delegate is looked for in CNI_PATH. If what is found there is this very binary
//! (same device and inode, which hard links share), its verb is called in the same
//! process; otherwise the file is executed, with our environment and the same stdin. Its
//! error comes through with its own code.

use std::fs::Metadata;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use cnimble_cni::{CniResult, Code, Error, Version};

use super::{Call, Command, Plugin};

/// No result comes near this; one with 10,000 routes has 1 MB.
const ANSWER_LIMIT: usize = 16 << 20;
/// What a pipe takes before anybody reads (pipe(7)).
const PIPE: usize = 64 << 10;

/// ADD of plugin `name`. Its undo is on the call's stack when this returns.
///
/// # Errors
/// The delegate's, or code 104 if it can't be run.
pub fn add(call: &Call, name: &str) -> Result<CniResult, Error> {
    match resolve(call, name)? {
        Delegate::Here(plugin) => plugin.add(call),
        Delegate::File(path) => {
            let undo = Execution::new(call, path.clone(), Command::Del);
            let answer = Execution::new(call, path.clone(), Command::Add).run()?;
            // The delegate has done its work, whatever we make of its answer.
            call.undo.push(format!("call DEL of delegate {name}"), move || undo.run().map(drop));
            let value = serde_json::from_slice(&answer).map_err(|err| {
                Error::new(Code::DECODE, format!("delegate {}: result is not JSON: {err}", path.display()))
            })?;
            CniResult::from_value(&value, Version::V0_1_0, "")
                .map_err(|err| err.context(format!("result of delegate {}", path.display())))
        }
    }
}

/// Any other verb of plugin `name`.
///
/// # Errors
/// As [`add`].
pub fn call(call: &Call, name: &str, command: Command) -> Result<(), Error> {
    match resolve(call, name)? {
        Delegate::Here(plugin) => super::run(plugin, call, command),
        Delegate::File(path) => match Execution::new(call, path, command).run() {
            // Plugins from before 1.1.0 have neither; they have nothing to say then.
            Err(err) if is_new(command) && err.msg.contains("unknown CNI_COMMAND") => Ok(()),
            outcome => outcome.map(drop),
        },
    }
}

/// DEL or GC of the IPAM plugin, if the network has one and its `interfaces` are gone: an address
/// that is still on an interface must not be given to another pod.
///
/// # Errors
/// As [`add`].
pub fn release(call: &Call, interfaces: &Result<(), Error>, command: Command) -> Result<(), Error> {
    match (interfaces, call.config.ipam_type.as_str()) {
        (Err(_), _) | (_, "") => Ok(()),
        (Ok(()), ipam) => self::call(call, ipam, command),
    }
}

/// The verbs that came with 1.1.0.
fn is_new(command: Command) -> bool {
    matches!(command, Command::Gc | Command::Status)
}

enum Delegate {
    Here(&'static dyn Plugin),
    File(PathBuf),
}

/// Finds `name`: the first regular file of that name in CNI_PATH.
fn resolve(call: &Call, name: &str) -> Result<Delegate, Error> {
    // A separator would leave the directories that the administrator chose (CVE-2021-20206).
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return Err(Error::config(format!("invalid plugin name \"{}\"", name.escape_default())));
    }
    for dir in &call.path {
        let path = dir.join(name);
        let Ok(found) = std::fs::metadata(&path) else {
            continue;
        };
        if !found.is_file() {
            continue;
        }
        if let Some(plugin) = call.plugins.iter().find(|plugin| plugin.name() == name)
            && is_this_program(call, &found)
        {
            return Ok(Delegate::Here(*plugin));
        }
        return Ok(Delegate::File(path));
    }
    let dirs: Vec<String> = call.path.iter().map(|dir| dir.display().to_string()).collect();
    // Not the words "not found": go-cni takes those for "already removed".
    Err(Error::new(Code::DELEGATE, format!("no plugin \"{name}\" in CNI_PATH"))
        .details(format!("looked in [{}]", dirs.join(" "))))
}

/// Whether `found` is the file that is running. The path that the caller gave is asked first:
/// /proc/self/exe costs the kernel several new entries of /proc.
fn is_this_program(call: &Call, found: &Metadata) -> bool {
    let is_found = |own: std::io::Result<Metadata>| {
        own.is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    };
    call.program.is_absolute() && is_found(std::fs::metadata(&call.program))
        || is_found(std::fs::metadata("/proc/self/exe"))
}

/// A delegate's process, described by data of its own so that an undo action can keep it.
struct Execution {
    path: PathBuf,
    env: [(&'static str, std::ffi::OsString); 6],
    stdin: Vec<u8>,
}

impl Execution {
    fn new(call: &Call, path: PathBuf, command: Command) -> Self {
        let dirs = std::env::join_paths(&call.path).unwrap_or_default();
        let env = [
            ("CNI_COMMAND", command.as_str().into()),
            ("CNI_CONTAINERID", call.container_id.as_str().into()),
            ("CNI_NETNS", call.netns.as_str().into()),
            ("CNI_IFNAME", call.ifname.as_str().into()),
            ("CNI_ARGS", call.raw_args.as_str().into()),
            ("CNI_PATH", dirs),
        ];
        Execution { path, env, stdin: call.stdin.clone() }
    }

    fn run(&self) -> Result<Vec<u8>, Error> {
        let failed = |what: &str, err: &std::io::Error| {
            Error::new(Code::DELEGATE, format!("{what} delegate {}: {err}", self.path.display()))
        };
        let mut child = self.spawn().map_err(|err| failed("starting", &err))?;
        let talk = converse(&mut child, &self.stdin);
        if !matches!(talk, Ok(Some(_))) {
            // It may be waiting for us to read on.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|err| failed("waiting for", &err))?;
        let Some(answer) = talk.map_err(|err| failed("talking to", &err))? else {
            let limit = format!("delegate {}: more than {ANSWER_LIMIT} bytes on stdout", self.path.display());
            return Err(Error::new(Code::DELEGATE, limit));
        };
        if status.success() {
            return Ok(answer);
        }
        Err(Error::from_json(&answer).unwrap_or_else(|| {
            Error::new(
                Code::DELEGATE,
                format!("delegate {} failed ({status}) without a CNI error", self.path.display()),
            )
            .details(first_line(&answer))
        }))
    }

    /// Starts the file; tries again for a moment while somebody is still writing it.
    fn spawn(&self) -> std::io::Result<Child> {
        let mut tries = 0;
        loop {
            let mut process = Process::new(&self.path);
            process.envs(self.env.iter().map(|(k, v)| (*k, v)));
            process.stdin(Stdio::piped()).stdout(Stdio::piped());
            match process.spawn() {
                Err(err) if err.raw_os_error() == Some(libc::ETXTBSY) && tries < 5 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                outcome => return outcome,
            }
        }
    }
}

/// Hands the configuration over and reads the answer; `None` if that doesn't end.
fn converse(child: &mut Child, config: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = move || {
        let Some(mut stdin) = stdin else { return Ok(()) };
        match stdin.write_all(config) {
            // A delegate that doesn't read its configuration closes the pipe; its answer counts.
            Err(err) if err.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome,
        }
    };
    let mut answer = Vec::new();
    let read = || match stdout {
        Some(stdout) => stdout.take(ANSWER_LIMIT as u64 + 1).read_to_end(&mut answer).map(drop),
        None => Ok(()),
    };
    if config.len() <= PIPE {
        write()?;
        read()?;
    } else {
        // Both would wait for ever if the delegate answers before it has read everything.
        std::thread::scope(|scope| {
            let writer = scope.spawn(write);
            // Dropping stdout, which `read` does, ends a delegate that won't stop.
            let outcome = read();
            outcome.and(writer.join().unwrap_or(Ok(())))
        })?;
    }
    Ok(Some(answer).filter(|answer| answer.len() <= ANSWER_LIMIT))
}

fn first_line(bytes: &[u8]) -> String {
    // All of a huge answer needn't be looked at.
    let text = String::from_utf8_lossy(bytes.get(..1024).unwrap_or(bytes));
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}
