//! A node: a namespace, a directory for its data, and plugins to call in it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{LIMIT, PATH, try_run};
use crate::trace::{self, Fate, Places, Stepped, Traced};
use crate::{Ns, Outcome, plugin_dir};

/// A node in a network namespace.
pub struct Host {
    ns: Ns,
    dir: TempDir,
}

impl Host {
    /// A new node.
    #[allow(clippy::new_without_default)] // a default that makes a namespace would surprise
    pub fn new() -> Self {
        Host { ns: Ns::new(), dir: tempfile::Builder::new().prefix("cnimble-test-").tempdir().unwrap() }
    }

    /// A new node without duplicate address detection, so a [`Snapshot`](crate::Snapshot) needs no wait. Not for tests of
    /// that detection.
    pub fn hasty() -> Self {
        let host = Self::new();
        host.set_sysctl("ipv6/conf/default/accept_dad", "0");
        host
    }

    /// The machine boots: what the kernel had is gone, files stay.
    pub fn reboot(&mut self) {
        self.ns = Ns::new();
    }

    /// A directory of its own, removed with the host.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A command that will run on the host. Its locks are the host's own, not the machine's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.ns.command(program);
        command.env("CNIMBLE_LOCK_DIR", self.lock_dir());
        command
    }

    /// Where `cnimble` keeps its locks on this host.
    pub fn lock_dir(&self) -> PathBuf {
        self.dir.path().join("locks")
    }

    /// The `dataDir` for host-local. Made by the plugin.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("networks")
    }

    /// A call of one of the plugins under test.
    pub fn call(&self, plugin: &str) -> Call<'_> {
        self.call_in(plugin_dir(), plugin)
    }

    /// A call of a plugin in `dir`, which is CNI_PATH too.
    pub fn call_in(&self, dir: &Path, plugin: &str) -> Call<'_> {
        let call = Call {
            host: self,
            program: dir.join(plugin),
            wrapper: Vec::new(),
            env: BTreeMap::new(),
            stdin: Vec::new(),
            limit: LIMIT,
            pins: None,
            unheard: false,
        };
        // The machine's own bus is not to be touched, whatever a test asks for.
        let call = call.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus");
        // Who waits for the kernel depends on the machine's process 1, and counts of calls on that.
        let wait = std::env::var("CNIMBLE_DEL_WAIT").unwrap_or_else(|_| "1".to_owned());
        call.env("PATH", PATH).env("CNI_PATH", dir).env("CNIMBLE_DEL_WAIT", wait)
    }
}

impl Deref for Host {
    type Target = Ns;

    fn deref(&self) -> &Ns {
        &self.ns
    }
}

/// One call of a plugin, being put together.
#[derive(Clone)]
pub struct Call<'h> {
    host: &'h Host,
    program: PathBuf,
    wrapper: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
    stdin: Vec<u8>,
    limit: Duration,
    /// Namespaces, each with the file that it is mounted on.
    pins: Option<Vec<(CString, CString)>>,
    unheard: bool,
}

impl Call<'_> {
    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.insert(key.into(), value.as_ref().into());
        self
    }

    /// Takes an environment variable away.
    #[must_use]
    pub fn unset(mut self, key: &str) -> Self {
        self.env.remove(OsStr::new(key));
        self
    }

    /// Sets CNI_COMMAND, the verb.
    #[must_use]
    pub fn command(self, verb: &str) -> Self {
        self.env("CNI_COMMAND", verb)
    }

    /// CNI_CONTAINERID, CNI_NETNS and CNI_IFNAME.
    #[must_use]
    pub fn attachment(self, id: &str, netns: &str, ifname: &str) -> Self {
        self.env("CNI_CONTAINERID", id).env("CNI_NETNS", netns).env("CNI_IFNAME", ifname)
    }

    /// Sets the configuration on stdin.
    #[must_use]
    pub fn config(self, config: &Value) -> Self {
        self.stdin(config.to_string())
    }

    /// Sets the bytes on stdin.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Runs the plugin as the last arguments of this command.
    #[must_use]
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(Into::into).collect();
        self
    }

    /// Lets it take so long; [`LIMIT`] without this.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Makes every write to its stdout fail.
    #[must_use]
    pub fn unheard(self) -> Self {
        Call { unheard: true, ..self }
    }

    /// Runs it in a new mount namespace that pins these network namespaces, as a runtime does, and none of the machine's
    /// below `/run`. The targets of the mounts are in `dir`.
    #[must_use]
    pub fn pinning(mut self, dir: &Path, namespaces: &[&Ns]) -> Self {
        let pin = |(number, ns): (usize, &&Ns)| {
            let file = dir.join(format!("pin{number}"));
            std::fs::write(&file, "").unwrap();
            (CString::new(ns.path()).unwrap(), CString::new(file.as_os_str().as_bytes()).unwrap())
        };
        self.pins = Some(namespaces.iter().enumerate().map(pin).collect());
        self
    }

    /// Runs it in the host's namespace, from an empty environment.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn run(&self) -> Outcome {
        self.try_run().unwrap_or_else(|slow| panic!("{slow}"))
    }

    /// Fails as [`run`](Self::run) panics.
    ///
    /// # Errors
    /// If it takes too long.
    pub fn try_run(&self) -> Result<Outcome, String> {
        Ok(Outcome::from(&self.what(), try_run(&mut self.build(), &self.stdin, self.limit)?))
    }

    /// Runs it in the host's namespace to the end that `fate` has for it.
    pub fn traced(&self, fate: &Fate) -> (Outcome, Traced) {
        let traced = trace::run(&mut self.build(), &self.stdin, fate, self.limit);
        (Outcome::from(&self.what(), traced.output.clone()), traced)
    }

    /// Starts it in the host's namespace and leads it to the first of these places.
    pub fn stepped(&self, places: Places) -> Stepped {
        Stepped::start(&mut self.build(), &self.stdin, places)
    }

    fn build(&self) -> Command {
        let mut words = self.wrapper.iter().map(OsString::as_os_str);
        let first = words.next();
        let mut command = self.host.command(first.unwrap_or(self.program.as_os_str()));
        command.args(words);
        if first.is_some() {
            command.arg(&self.program);
        }
        command.env_clear().envs(&self.env);
        if let Some(pins) = self.pins.clone() {
            seclude(&mut command, pins);
        }
        if self.unheard {
            fill(&mut command);
        }
        command
    }

    /// The call in messages.
    fn what(&self) -> String {
        let verb = self.env.get(OsStr::new("CNI_COMMAND"));
        format!(
            "{} {} {}",
            self.program.display(),
            verb.map_or("-".into(), |verb| verb.to_string_lossy()),
            String::from_utf8_lossy(&self.stdin)
        )
    }
}

/// Gives `command` /dev/full as its stdout.
fn fill(command: &mut Command) {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    // SAFETY: dup2(2) is a plain system call, safe between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::dup2(full.as_raw_fd(), libc::STDOUT_FILENO) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// Gives `command` mounts of its own: an empty `/run`, and these.
fn seclude(command: &mut Command, pins: Vec<(CString, CString)>) {
    // SAFETY: only system calls are made, and nothing is allocated there.
    unsafe {
        command.pre_exec(move || {
            empty_run()?;
            pins.iter().try_for_each(|(source, target)| mount(source, target, c"none", libc::MS_BIND))
        });
    }
}

/// Gives this thread, and the programs that it starts, mounts of its own with an empty `/run`. Locks there are the
/// node's: a verb that stands still would hold up those of other nodes.
///
/// # Panics
/// If the kernel refuses it.
pub fn seclude_thread() {
    empty_run().expect("an empty /run");
}

fn empty_run() -> std::io::Result<()> {
    // SAFETY: unshare(2) is a plain system call.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    mount(c"none", c"/", c"none", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"none", c"/run", c"tmpfs", 0)
}

fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: libc::c_ulong) -> std::io::Result<()> {
    // SAFETY: the texts end with a NUL and live until the call returns; no data is passed.
    match unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
