//! Calls of another plugin, usually IPAM, on behalf of a verb. The delegate is searched in CNI_PATH. If the file is
//! this binary, its verb is called in the same process. A hard link has the same device and inode, and a copy by an
//! installer is also recognized. Any other file is executed with the same environment and stdin. A delegate that hangs
//! is ended with the verb.

use std::cell::OnceCell;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command as Process;
use std::rc::Rc;
use std::time::Duration;

use cnimble_cni::{CniResult, Code, Error, json};
use cnimble_os::child::{Failure, Limits, Output};

use super::{Call, Command, Plugin};

/// The longest answer. One with 10,000 routes has 1 MB.
const ANSWER_LIMIT: usize = 16 << 20;

/// The outcome of a delegate's ADD.
#[derive(Debug)]
#[non_exhaustive]
pub struct Added {
    /// The result of the delegate.
    pub result: CniResult,
    /// Whether the delegate is a plugin of this binary, which ensures that it checks known settings.
    pub here: bool,
}

/// Calls ADD of IPAM plugin `name`, with its undo.
///
/// # Errors
/// Returns the delegate's error. Fails with code 104 if the delegate cannot be run or assigns no address.
pub fn assigned(call: &Call, name: &str) -> Result<Added, Error> {
    let added = add(call, name)?;
    if added.result.ips.is_empty() {
        Err(Error::new(Code::DELEGATE, "IPAM plugin returned missing IP config")
            .details(format!("IPAM plugin {name}")))
    } else {
        Ok(added)
    }
}

/// Calls ADD of the network's IPAM plugin, with its undo. Without one, the result is empty.
///
/// # Errors
/// Fails as [`assigned`] does.
pub fn add_ipam(call: &Call) -> Result<CniResult, Error> {
    let assigned = call.config.ipam().map(|ipam| assigned(call, ipam)).transpose()?;
    Ok(assigned.map(|added| added.result).unwrap_or_default())
}

/// Calls ADD of plugin `name`, with its undo. A plugin of this binary pushes its own undo actions.
///
/// The undo of a program is its DEL. It runs after all other actions, so that no other pod gets the address while an
/// interface has it. Only a plugin that releases through the interface gets its DEL earlier, before the interface goes.
/// There is no DEL if the program could not be started, or has reported a CNI error: then it has undone its own
/// changes.
///
/// Fails with the delegate's error, for an invalid answer, and as [`resolve`] does. The result may have no addresses.
fn add(call: &Call, name: &str) -> Result<Added, Error> {
    match resolve(call, name)? {
        Delegate::Here(plugin) => Ok(Added { result: plugin.add(call)?, here: true }),
        Delegate::File(path) => {
            let undo = Execution::new(call, path.clone(), Command::Del);
            let outcome = Execution::new(call, path.clone(), Command::Add).run();
            // The delegate has done its work, even if its answer is invalid. A delegate that was cut short may have
            // done a part of it.
            if !matches!(outcome, Err((_, false))) {
                let run = move || undo.run().map(drop).map_err(|(err, _)| err);
                let step = format!("call DEL of delegate {name}");
                if needs_interface(call, name) {
                    call.undo.push(step, run);
                } else {
                    call.undo.push_last(step, run);
                }
            }
            let answer = outcome.map_err(|(err, _)| err)?;
            let value = json::parse(&answer, "result")
                .map_err(|err| err.context(format_args!("delegate {}", path.display())))?;
            // As with libcni, an answer without a version has the configuration's.
            let result = CniResult::from_value(&value, call.config.version, "")
                .map_err(|err| err.context(format!("result of delegate {}", path.display())))?;
            Ok(Added { result, here: false })
        }
    }
}

/// Calls CHECK of IPAM plugin `name`, after the caller's `own` CHECK. If both fail with code 103, returns IPAM's error
/// as the cause: the address of an ended lease no longer exists. If `own` has failed with another code, the IPAM plugin
/// is not called.
///
/// # Errors
/// Fails as [`call`] does, or with the error of `own`.
pub fn check(call: &Call, name: &str, own: Result<(), Error>) -> Result<(), Error> {
    if own.as_ref().is_err_and(|err| err.code != Code::CHECK_FAILED) {
        return own;
    }
    match self::call(call, name, Command::Check) {
        Err(err) if own.is_err() && err.code != Code::CHECK_FAILED => own,
        ipam => ipam.and(own),
    }
}

/// [`check`] of the network's IPAM plugin. Without one, the outcome is `own`.
///
/// # Errors
/// Fails as [`check`] does.
pub fn check_ipam(call: &Call, own: Result<(), Error>) -> Result<(), Error> {
    match call.config.ipam() {
        Some(ipam) => check(call, ipam, own),
        None => own,
    }
}

/// Calls a verb other than ADD of plugin `name`, and drops its result. A program that does not know GC or STATUS counts
/// as successful. So does one that does not implement CHECK.
///
/// # Errors
/// Returns the delegate's error. Fails with code 104 if the delegate cannot be found or run.
pub fn call(call: &Call, name: &str, command: Command) -> Result<(), Error> {
    match resolve(call, name)? {
        Delegate::Here(plugin) => super::run(plugin, call, command),
        Delegate::File(path) => match Execution::new(call, path, command).run() {
            // A plugin from before 1.1.0 does not know the verb. GC and STATUS need CNI_PATH only, which is set, so
            // code 4 proves this.
            Err((err, _)) if is_new(command) && err.code == Code::INVALID_ENVIRONMENT => Ok(()),
            // whereabouts answers so to each CHECK. Its addresses are checked on the interface.
            Err((err, _)) if command == Command::Check && err.msg.ends_with("is not implemented") => Ok(()),
            outcome => outcome.map(drop).map_err(|(err, _)| err),
        },
    }
}

/// Calls a verb other than ADD of the network's IPAM plugin, if there is one.
///
/// # Errors
/// Fails as [`call`](self::call) does.
pub fn call_ipam(call: &Call, command: Command) -> Result<(), Error> {
    call.config.ipam().map_or(Ok(()), |ipam| self::call(call, ipam, command))
}

/// Calls DEL of an IPAM plugin that releases through the pod's interface, before `plugin` removes the interface. An
/// error is only logged, because [`release`] fails in the same way later.
pub(crate) fn leave(call: &Call, plugin: &dyn Plugin) {
    let Some(ipam) = call.config.ipam().filter(|ipam| plugin.name() != *ipam && needs_interface(call, ipam))
    else {
        return;
    };
    if let Err(err) = self::call(call, ipam, Command::Del) {
        log::warn!("DEL goes on, but {ipam} could not release its lease through the interface: {err}");
    }
}

/// Returns whether DEL of IPAM plugin `name` releases through the pod's interface. False for plugins of other binaries.
fn needs_interface(call: &Call, name: &str) -> bool {
    call.plugins.iter().any(|plugin| plugin.name() == name && plugin.needs_interface_for_del())
}

/// Calls DEL or GC of the IPAM plugin, if the network has one and the removal of its `interfaces` has succeeded. An
/// address that is still on an interface must not be given to another pod. If the removal has failed, does nothing and
/// succeeds. So the caller must return that error, too.
///
/// # Errors
/// Fails as [`call`](self::call) does.
pub fn release(call: &Call, interfaces: &Result<(), Error>, command: Command) -> Result<(), Error> {
    if interfaces.is_ok() { call_ipam(call, command) } else { Ok(()) }
}

/// Returns whether version 1.1.0 of the specification introduced the verb.
fn is_new(command: Command) -> bool {
    matches!(command, Command::Gc | Command::Status)
}

/// How a delegate is called.
#[derive(Clone)]
pub(crate) enum Delegate {
    /// The delegate is a function of this binary.
    Here(&'static dyn Plugin),
    /// The delegate is a program.
    File(PathBuf),
}

/// The first delegate that was found, with its name.
#[derive(Default)]
pub(crate) struct FoundDelegate(OnceCell<(String, Delegate)>);

impl FoundDelegate {
    /// Returns a plugin that is linked into a program which is not a plugin itself.
    pub(crate) fn from_plugin(plugin: &'static dyn Plugin) -> Self {
        FoundDelegate((plugin.name().to_owned(), Delegate::Here(plugin)).into())
    }
}

/// Finds the first regular file of that name in CNI_PATH. The first delegate of a call is found only once. Fails with
/// code 104 if there is none, and with code 7 for a name with a slash.
pub(crate) fn resolve(call: &Call, name: &str) -> Result<Delegate, Error> {
    if let Some((_, found)) = call.delegate.0.get().filter(|(known, _)| known == name) {
        return Ok(found.clone());
    }
    let found = look_for(call, name)?;
    let _ = call.delegate.0.set((name.to_owned(), found.clone()));
    Ok(found)
}

fn look_for(call: &Call, name: &str) -> Result<Delegate, Error> {
    // A separator would allow paths outside of the administrator's directories (CVE-2021-20206).
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
    // The message must not contain "not found", because go-cni interprets that as "already removed".
    Err(Error::new(Code::DELEGATE, format!("no plugin \"{name}\" in CNI_PATH"))
        .details(format!("looked in [{}]", dirs.join(" "))))
}

/// Returns whether a file is the running program, or a copy that an installer made. A copy is on the same file system,
/// with the same size, owner and modification time, to the nanosecond. Reads the path from the caller first, because
/// /proc/self/exe costs the kernel several new entries of /proc.
fn is_this_program(call: &Call, found: &Metadata) -> bool {
    call.program.is_absolute() && std::fs::metadata(&call.program).is_ok_and(|own| is_same(&own, found))
        || std::fs::metadata("/proc/self/exe").is_ok_and(|own| is_same(&own, found))
}

/// Returns whether two files are the same, or one is a copy of the other as [`is_this_program`] says.
fn is_same(own: &Metadata, found: &Metadata) -> bool {
    (own.dev(), own.ino()) == (found.dev(), found.ino())
        || (own.dev(), own.len(), own.uid(), own.mtime(), own.mtime_nsec())
            == (found.dev(), found.len(), found.uid(), found.mtime(), found.mtime_nsec())
}

/// A delegate's process. It owns its data, so that an undo action can keep it.
struct Execution {
    path: PathBuf,
    env: [(&'static str, std::ffi::OsString); 6],
    stdin: Rc<Vec<u8>>,
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
        Execution { path, env, stdin: Rc::clone(&call.stdin) }
    }

    /// Runs the delegate and returns its answer. With an error returns whether the delegate may have left its work
    /// incomplete, so that its DEL must be called.
    fn run(&self) -> Result<Vec<u8>, (Error, bool)> {
        let path = self.path.display();
        let Output { status, stdout: answer, .. } = self.start().map_err(|failure| match failure {
            Failure::Start(err) => {
                (Error::new(Code::DELEGATE, format!("starting delegate {path}: {err}")), false)
            }
            Failure::Talk(err) => {
                (Error::new(Code::DELEGATE, format!("talking to delegate {path}: {err}")), true)
            }
            Failure::TooMuch(limit) => (
                Error::new(Code::DELEGATE, format!("delegate {path}: more than {limit} bytes on stdout")),
                true,
            ),
            Failure::Stopped(err) => (err.context(format_args!("delegate {path}")), true),
        })?;
        if status.success() {
            return Ok(answer);
        }
        match Error::from_json(&answer) {
            Some(err) => Err((err, false)),
            None => {
                let msg = format!("delegate {path} failed ({status}) without a CNI error");
                Err((Error::new(Code::DELEGATE, msg).details(first_line(&answer)), true))
            }
        }
    }

    /// Runs the program. Retries for a moment while the file is open for writing (ETXTBSY).
    fn start(&self) -> Result<Output, Failure> {
        let mut tries = 0;
        loop {
            let mut process = Process::new(&self.path);
            process.envs(self.env.iter().map(|(k, v)| (*k, v)));
            let limits = Limits { stdout: ANSWER_LIMIT, stderr: None };
            match cnimble_os::child::run(&mut process, &self.stdin, limits) {
                Err(Failure::Start(err)) if err.raw_os_error() == Some(libc::ETXTBSY) && tries < 5 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                outcome => return outcome,
            }
        }
    }
}

/// Returns the first line of an answer for an error, cut to 200 characters.
fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..1024).unwrap_or(bytes));
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}
