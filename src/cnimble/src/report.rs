//! Formats errors: what failed, where, why, and a hint.

use std::io::{ErrorKind, Write as _};
use std::path::Path;

use serde_json::{Map, Value};

use cnimble_cni as cni;
use cnimble_os::shell;
use cnimble_runtime::locks::LockError;
use cnimble_runtime::{
    ConfError, DEFAULT_CNI_PATH, DEFAULT_CONF_DIR, Error, Failure, Failures, PluginError, Verb,
};

use super::style::{Paint, rows};
use super::{Session, plain};

/// The exit status of a failure. `--help` lists them for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// A plugin refused.
    Plugin = 1,
    /// The command line or a variable is wrong.
    Usage = 2,
    /// A network's configuration is missing or wrong.
    Config = 3,
    /// A plugin or another program could not be run.
    Execution = 4,
    /// A file, a lock, a socket or the kernel's state could not be read or changed.
    Files = 5,
    /// A check has found a fault.
    Found = 6,
    /// Work is left.
    Left = 7,
    /// A question has no certain answer.
    Unknown = 8,
    /// SIGHUP.
    HungUp = 129,
    /// SIGINT.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
}

/// The command that removes an attachment, for a hint. `directories` are the options of directories
/// ([`Session::directories`]).
enum Del<'a> {
    Known {
        command: &'a str,
        directories: &'a str,
    },
    /// It is made of the names in the failure, and of the options.
    Unknown {
        directories: &'a str,
    },
}

/// What commands in hints are made of.
struct Next<'a> {
    /// The command that removes the attachment.
    del: String,
    /// The options of directories.
    directories: &'a str,
}

/// The failure of a verb, as words or as JSON.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) exit: Exit,
    what: String,
    rows: Vec<(&'static str, String)>,
    hint: Option<String>,
    error: Option<Box<cni::Error>>,
}

impl Report {
    /// Creates a report without a cause. An empty `what` means that the failure is already printed, and only the exit
    /// status remains.
    pub(super) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Report { exit, what: what.into(), rows: Vec::new(), hint: None, error: None }
    }

    /// Creates a report with a cause: an error or a text.
    #[allow(clippy::needless_pass_by_value)] // callers pass a literal, a formatted text or an error
    pub(super) fn because(exit: Exit, what: impl Into<String>, why: impl ToString) -> Self {
        Report::new(exit, what).row("why", why.to_string())
    }

    /// Adds a row. In JSON at most the first row with the name `why` remains.
    pub(super) fn row(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.rows.push((name, text.into()));
        self
    }

    /// Sets the hint, and replaces an earlier one.
    pub(super) fn hint(mut self, text: impl Into<String>) -> Self {
        self.hint = Some(text.into());
        self
    }

    /// Adds a hint to the earlier one, if there is one.
    pub(super) fn or_hint(mut self, text: &str) -> Self {
        self.hint = Some(self.hint.map_or_else(|| text.to_owned(), |hint| format!("{hint}; or {text}")));
        self
    }

    /// Converts an error of the library. `what` is like "can't add eth0 to network demo".
    pub(super) fn from_error(session: &Session, what: impl Into<String>, error: &Error) -> Self {
        Report::with_del(what, error, &Del::Unknown { directories: &session.directories })
    }

    /// Does the same as [`from_error`](Self::from_error) for an attachment that the caller knows. `del` is the command
    /// that removes it, for the hint.
    pub(super) fn of_attachment(
        session: &Session,
        what: impl Into<String>,
        error: &Error,
        del: &str,
    ) -> Self {
        Report::with_del(what, error, &Del::Known { command: del, directories: &session.directories })
    }

    /// Does the same as [`from_error`](Self::from_error) without the options of the command line.
    pub(super) fn of_pod(what: impl Into<String>, error: &Error) -> Self {
        Report::with_del(what, error, &Del::Unknown { directories: "" })
    }

    fn with_del(what: impl Into<String>, error: &Error, del: &Del<'_>) -> Self {
        let mut report = match error {
            Error::Conf(error) => return Report::conf(what, error),
            Error::Plugins(failures) => Report::plugins(what, failures, del),
            Error::Locked(reason) => Report::locked(what, reason),
            Error::Node(reason) => Report::because(Exit::Files, what, reason),
            Error::Parameter(reason) => Report::because(Exit::Usage, what, reason),
            Error::Unsupported { network, since, .. } => Report::new(Exit::Config, what)
                .row("network", network)
                .row("why", error.to_string())
                .hint(format!(
                    "raise the network's cniVersion to {since} or later, delete the attachment, and add it again"
                )),
            Error::NoResult { network, .. } => {
                Report::new(Exit::Files, what).row("network", network).row("why", error.to_string())
            }
            Error::Cache { cause, rollback, .. } => {
                let mut report = Report::new(Exit::Files, what)
                    .row("file", cause.path.display().to_string())
                    .row("why", cause.to_string());
                if matches!(
                    cause.source.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                ) {
                    report = report.hint("make the directory readable and writable");
                }
                rollback.iter().fold(report, |report, failure| report.row("then", failure.to_string()))
            }
            _ => Report::because(Exit::Plugin, what, error),
        };
        report.error = Some(Box::new(error.to_spec()));
        report
    }

    /// Returns the report for a lock that could not be taken.
    fn locked(what: impl Into<String>, error: &LockError) -> Self {
        let report = Report::because(Exit::Files, what, error);
        report.hint(match error {
            LockError::Busy { .. } => "wait until it is free; a lock ends with the process that holds it",
            _ => "run it as root, or give every command of this node another --lock-dir",
        })
    }

    /// Converts a failure to load a network.
    pub(super) fn conf(what: impl Into<String>, error: &ConfError) -> Self {
        let report = Report::new(Exit::Config, what);
        match error {
            ConfError::NoNetwork { dir, name, known, bad } => {
                let mut report = report.row("network", name).row("directory", dir.display().to_string());
                report = match known.as_slice() {
                    [] if !dir.exists() => report.row("why", "there is no such directory"),
                    [] => report.row("why", "the directory has no usable network"),
                    known => report.row("why", format!("there is only {}", known.join(", "))),
                };
                bad.iter().fold(report, |report, bad| report.row("skipped", bad.to_string())).hint(
                    if Path::new(name).is_file() {
                        format!("write ./{name} for the file in this directory")
                    } else {
                        format!(
                            "`cnimble networks{}` lists them; --conf-dir or NETCONFPATH names another directory",
                            option("--conf-dir", dir, DEFAULT_CONF_DIR)
                        )
                    },
                )
            }
            ConfError::Dir { dir, source, .. } => report
                .row("directory", dir.display().to_string())
                .row("why", source.to_string())
                .hint("--conf-dir or NETCONFPATH names another directory"),
            other => report.row("why", other.to_string()),
        }
    }

    /// Converts the failures of plugins. The first decides the exit status and the hint.
    fn plugins(what: impl Into<String>, failures: &Failures, del: &Del<'_>) -> Self {
        let Failure { network, plugin, cause, verb, attachment, .. } = &failures.first;
        let exit = if cause.is_refusal() { Exit::Plugin } else { Exit::Execution };
        let mut report =
            Report::new(exit, what).row("network", network).row("plugin", format!("{plugin} ({verb})"));
        if let Some(of) = attachment {
            report = report.row("container", format!("{} {}", of.container_id, of.ifname));
        }
        report = report.row("why", cause.to_string());
        for other in &failures.others {
            report = report.row("then", other.to_string());
        }
        if let Some(note) = &failures.note {
            report = report.row("note", note);
        }
        let directories = match del {
            Del::Known { directories, .. } | Del::Unknown { directories } => *directories,
        };
        let del = match (del, attachment) {
            (Del::Known { command, .. }, _) => (*command).to_owned(),
            (Del::Unknown { directories }, Some(of)) if of.ifname == "eth0" => {
                format!("cnimble del {network} --container-id {}{directories}", of.container_id)
            }
            (Del::Unknown { directories }, Some(of)) => {
                format!(
                    "cnimble del {network} --container-id {} -i {}{directories}",
                    of.container_id, of.ifname
                )
            }
            (Del::Unknown { directories }, None) => format!("cnimble del {network} NETNS{directories}"),
        };
        report.hint = match failures.note {
            Some(_) => Some(format!("`{del}`, and add it again")),
            None => hint(&Next { del, directories }, plugin, *verb, cause),
        };
        report
    }

    /// Puts `run it as root` in front of the hint if a row names a missing permission and the caller isn't root.
    pub(super) fn with_reason(mut self) -> Self {
        const ROOT: &str = "run it as root";
        let told = self.hint.as_deref().is_some_and(|hint| hint.contains(ROOT));
        if !told
            && !nix::unistd::geteuid().is_root()
            && self.rows.iter().any(|(_, text)| names_permission(text))
        {
            self.hint = Some(match self.hint.take() {
                Some(hint) => format!("{ROOT}; or {hint}"),
                None => ROOT.to_owned(),
            });
        }
        self
    }

    /// Returns the report as one line, without its hint.
    pub(super) fn line(&self) -> String {
        let reasons: Vec<&str> = self.rows.iter().map(|(_, text)| text.as_str()).collect();
        if reasons.is_empty() { self.what.clone() } else { format!("{}: {}", self.what, reasons.join("; ")) }
    }

    /// Returns whether something remains to be printed.
    pub(super) fn has_text(&self) -> bool {
        !self.what.is_empty()
    }

    /// Prints the report on stderr.
    pub(super) fn print(&self, paint: Paint) {
        let mut lines = self.rows.clone();
        if let Some(hint) = &self.hint {
            lines.push(("try", hint.clone()));
        }
        let what = plain::line(&self.what);
        let text = format!("{} {what}\n{}", paint.bad("cnimble:"), rows(&lines, paint));
        // A closed stderr doesn't change the exit status.
        let _ = std::io::stderr().write_all(plain::text(&text).as_bytes());
    }

    /// Returns the report as JSON: a CNI error with the keys `exitStatus` and `hint`.
    pub(super) fn json(&self) -> Value {
        let mut map = Map::new();
        let error = self.error.as_deref().cloned();
        let error = error.unwrap_or_else(|| {
            let code = match self.exit {
                Exit::Usage => cni::Code::INVALID_ENVIRONMENT,
                Exit::Config => cni::Code::INVALID_CONFIG,
                Exit::HungUp | Exit::Interrupted | Exit::Terminated => cni::Code::TRY_AGAIN_LATER,
                Exit::Plugin | Exit::Execution => cni::Code::DELEGATE,
                Exit::Files | Exit::Found | Exit::Left | Exit::Unknown => cni::Code::IO,
            };
            let why = self.rows.iter().find(|(name, _)| *name == "why");
            let why = why.map(|(_, text)| text.clone()).unwrap_or_default();
            cni::Error::new(code, self.what.clone()).details(why)
        });
        map.insert("cniVersion".into(), cni::Version::LATEST.as_str().into());
        map.insert("code".into(), error.code.0.into());
        map.insert("msg".into(), error.msg.into());
        if !error.details.is_empty() {
            map.insert("details".into(), error.details.into());
        }
        map.insert("exitStatus".into(), (self.exit as u8).into());
        if let Some(hint) = &self.hint {
            map.insert("hint".into(), hint.as_str().into());
        }
        Value::Object(map)
    }
}

/// Returns whether the text names a missing permission.
fn names_permission(text: &str) -> bool {
    ["(os error 13)", "(os error 1)", "EACCES", "EPERM"].iter().any(|word| text.contains(word))
}

/// Returns an option of a directory ([`shell::option`]), or nothing for the usual one.
fn option(name: &str, dir: &Path, usual: &str) -> String {
    if dir == Path::new(usual) { String::new() } else { shell::option(name, dir.as_os_str()) }
}

/// Returns the hint for a plugin's failure, or `None` if there is nothing to advise. What another maker's plugin means by a
/// code is not known: those from 100 on are a plugin's own, and any plugin can use the others for a passing fault. So only
/// the codes of the reference set have a hint.
fn hint(next: &Next<'_>, plugin: &str, verb: Verb, cause: &PluginError) -> Option<String> {
    let is_reference = cnimble_lint::page(plugin).is_some();
    let is_del = verb == Verb::Del;
    let Next { del, directories } = next;
    // Leases of removed pods can fill a range.
    let full = format!("`cnimble doctor{directories}` lists leases of removed pods, and --repair frees them");
    let text = match cause {
        PluginError::Missing { dirs, .. } => {
            let path = std::env::join_paths(dirs).unwrap_or_default();
            format!(
                "install it, or name its directory with --cni-path or CNI_PATH; `cnimble plugins{}` lists what is there",
                option("--cni-path", path.as_ref(), DEFAULT_CNI_PATH)
            )
        }
        PluginError::BadName { .. } => "write the plugin's bare name as type".to_owned(),
        PluginError::Start { path, .. } => format!(
            "check that {} is an executable for this machine, and that you may read it",
            path.display()
        ),
        PluginError::TimeLimit { .. } => "raise --timeout, or find out why the plugin waits".to_owned(),
        PluginError::Version { supported, .. } => match supported.last() {
            Some(newest) => format!(
                "write cniVersion {newest} into the configuration, and nothing newer into cniVersions; or install a newer plugin"
            ),
            None => return None,
        },
        PluginError::NoError { .. } | PluginError::BadOutput { .. } => {
            "check that it is a CNI plugin; what it wrote to stderr stands above, if it wrote anything".to_owned()
        }
        PluginError::Refused { error, .. } => match error.code.0 {
            11 => "the plugin asks to try again later".to_owned(),
            101 if is_reference && verb == Verb::Add => full,
            _ if !nix::unistd::geteuid().is_root() => "run it as root".to_owned(),
            103 if is_reference => format!("`{del}`, and add it again"),
            // The Go plugin has no separate code for a full range. This match only chooses a hint.
            _ if verb == Verb::Add && error.msg.contains("no IP addresses available") => full,
            4 if is_del && is_reference => {
                "a repetition with the same arguments fails in the same way".to_owned()
            }
            // The result of ADD is not in the file.
            1 | 2 | 6 | 7 if is_del && is_reference && !error.msg.contains("prevResult") => {
                "a repetition with the same configuration fails in the same way; correct the network's file, and use \
                 --from-file"
                    .to_owned()
            }
            _ if is_del => "DEL may be repeated".to_owned(),
            _ => return None,
        },
        _ => return None,
    };
    Some(text)
}

/// Fails with the exit status alone, because the output already shows the faults. `None` is success.
pub(super) fn fail_with(exit: Option<Exit>) -> Result<(), Report> {
    exit.map_or(Ok(()), |exit| Err(Report::new(exit, "")))
}

/// Fails if the caller isn't root. `what` is what can't be done without.
pub(super) fn must_be_root(what: &str) -> Result<(), Report> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(Report::because(Exit::Files, what, "only root may enter other network namespaces")
            .hint("run it as root"))
    }
}

/// Returns the report for a wrong command line or variable.
pub(crate) fn usage(why: impl Into<String>) -> Report {
    Report::new(Exit::Usage, "the command line or an environment variable is wrong").row("why", why)
}
