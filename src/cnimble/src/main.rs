//! The entry point. `args` has the options of all subcommands, and `run` below the function of each.

mod args;
mod cri;
mod doctor;
mod driver;
mod etcd;
mod events;
mod existing;
mod explain;
mod finding;
mod gc_cri;
mod guard;
mod hand_over;
mod init;
mod interrupt;
mod ipam;
mod learn;
mod lint;
mod list;
mod logging;
mod ls;
mod man;
mod names;
mod network;
mod networks;
mod node;
mod output;
mod plain;
mod plugin_files;
mod pod;
mod reclaim;
mod report;
mod run;
mod schema;
mod serve;
mod services;
mod stats;
mod style;
mod target;
mod trace;
mod tree;
mod verbs;
mod version;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use nix::sys::stat::{Mode, umask};
use serde_json::Value;

use cnimble_os::shell;
use cnimble_runtime::locks::{self as locks, Locks};
use cnimble_runtime::{Cache, ConfDir, DEFAULT_CACHE_DIR, DEFAULT_CNI_PATH, DEFAULT_CONF_DIR, Invoker};

use args::{Cli, Command, Global, help};
use output::{print, print_as_is, print_json};
use report::{Exit, Report};
use style::Paint;

/// The settings that all subcommands share.
struct Session {
    invoker: Invoker,
    conf: ConfDir,
    /// The output is JSON.
    json: bool,
    /// The user has named the cache's directory.
    own_cache: bool,
    /// The user has named the networks' directory.
    own_conf: bool,
    /// The user has named the plugins' directories.
    own_path: bool,
    /// The options of directories on the command line, each behind a space, for the commands in hints.
    directories: String,
    /// The same without the cache's option.
    directories_without_cache: String,
    /// The time limit for a run of a plugin; 0 without one.
    timeout: Duration,
    /// Stdout is a terminal.
    terminal: bool,
    /// Whether stdout gets colours.
    paint: Paint,
}

impl Session {
    fn new(global: &Global) -> Self {
        // An empty variable counts as unset.
        let path = |given: &Option<PathBuf>, or: &str| {
            let given = given.clone().filter(|path| !path.as_os_str().is_empty());
            given.unwrap_or_else(|| PathBuf::from(or))
        };
        let conf_dir = global.conf_dir.clone().map(PathBuf::from);
        let lock_dir = global.lock_dir.clone().map(PathBuf::from);
        let cni_path = global.cni_path.clone().filter(|text| !text.is_empty());
        let cni_path = cni_path.unwrap_or_else(|| DEFAULT_CNI_PATH.into());
        let mut invoker = Invoker::new(std::env::split_paths(&cni_path))
            .with_cache_dir(path(&global.cache_dir, DEFAULT_CACHE_DIR))
            .with_locks(Locks::new(path(&lock_dir, locks::DEFAULT_DIR)));
        if global.timeout > 0 {
            invoker = invoker.with_time_limit(Duration::from_secs(global.timeout));
        }
        let stdout = std::io::stdout();
        Session {
            invoker,
            conf: ConfDir::new(path(&conf_dir, DEFAULT_CONF_DIR)),
            json: global.json,
            own_cache: global.cache_dir.is_some(),
            own_conf: global.conf_dir.as_ref().is_some_and(|dir| !dir.as_os_str().is_empty()),
            own_path: global.cni_path.as_ref().is_some_and(|path| !path.is_empty()),
            directories: directories(global) + &cache_option(global),
            directories_without_cache: directories(global),
            timeout: Duration::from_secs(global.timeout),
            terminal: std::io::IsTerminal::is_terminal(&stdout),
            paint: Paint::for_stream(&stdout),
        }
    }

    /// Returns the cache that the user has named, or else the usual ones: libcni's, and that of `cnimble pod`.
    fn caches(&self) -> Vec<Cache> {
        if self.own_cache {
            vec![self.invoker.cache().clone()]
        } else {
            [DEFAULT_CACHE_DIR, cnimble_liveness::DEFAULT_PODS_CACHE_DIR].map(Cache::new).into()
        }
    }

    /// Returns the same settings with another invoker.
    fn with_invoker(&self, invoker: Invoker) -> Self {
        Session {
            invoker,
            conf: self.conf.clone(),
            directories: self.directories.clone(),
            directories_without_cache: self.directories_without_cache.clone(),
            ..*self
        }
    }

    /// Returns whether stdout is a terminal and the output is text.
    fn human(&self) -> bool {
        self.terminal && !self.json
    }

    /// Reports success: as text on a terminal, as JSON with `--json`, or else by the exit status alone, like cnitool.
    fn done(&self, words: &str, object: &Value) -> Result<(), Report> {
        match (self.json, self.terminal) {
            (true, _) => print_json(object),
            (false, true) => print(&format!("{} {}\n", self.paint.good("ok"), plain::line(words))),
            (false, false) => Ok(()),
        }
    }
}

/// Returns the option of the cache on the command line, behind a space, or nothing.
fn cache_option(global: &Global) -> String {
    let dir = global.cache_dir.as_ref().filter(|dir| !dir.as_os_str().is_empty());
    dir.map(|dir| shell::option("--cache-dir", dir.as_os_str())).unwrap_or_default()
}

/// Returns the options of the other directories on the command line, each behind a space and quoted for a shell. A value
/// of a variable counts for the next command, too, and needs no option.
fn directories(global: &Global) -> String {
    let options = [
        ("--cni-path", global.cni_path.as_deref(), "CNI_PATH"),
        ("--conf-dir", global.conf_dir.as_deref(), "NETCONFPATH"),
        ("--lock-dir", global.lock_dir.as_deref(), "CNIMBLE_LOCK_DIR"),
    ];
    let mut text = String::new();
    for (option, given, variable) in options {
        let Some(value) = given.filter(|value| !value.is_empty()) else { continue };
        if std::env::var_os(variable).is_none_or(|of_variable| of_variable != value) {
            text += &shell::option(option, value);
        }
    }
    text
}

fn main() -> ExitCode {
    // Only root may write to a directory that root makes, with any umask of the caller.
    let others = Mode::S_IWGRP | Mode::S_IWOTH;
    umask(umask(others) | others);
    if driver::is_called() {
        return driver::main();
    }
    if let Some(answered) = learn::answer() {
        return answered;
    }
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => return not_understood(&err),
    };
    if let Err(report) = cli.place_ifname() {
        return fail(&Session::new(&cli.global), &report);
    }
    let session = Session::new(&cli.global);
    // Long-running services get more threads and log at the level info.
    let is_service =
        matches!(cli.command, Command::Run(_) | Command::Serve(_) | Command::Node(_) | Command::Guard(_))
            || matches!(&cli.command, Command::Ipam(given) if given.is_service());
    let usual = if is_service { log::LevelFilter::Info } else { log::LevelFilter::Warn };
    if let Err(report) = logging::init(cli.command.log_format(), usual) {
        return fail(&session, &report);
    }
    let mut runtime = match &cli.command {
        Command::Run(_) | Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    // Has no effect on a single-threaded runtime.
    runtime.worker_threads(2);
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(err) => {
            let report = Report::because(Exit::Files, "can't start", err);
            return fail(&session, &report);
        }
    };
    match runtime.block_on(run(&session, &cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(report) => fail(&session, &report),
    }
}

/// Answers a command line that clap refuses, or a request for help or the version.
fn not_understood(err: &clap::Error) -> ExitCode {
    let is_help =
        matches!(err.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
    // Only help needs the command line that is slower to build.
    let with_help = is_help.then(|| help::command().try_get_matches().err()).flatten();
    let err = with_help.as_ref().unwrap_or(err);
    if !err.use_stderr() {
        let text = if Paint::for_stream(&std::io::stdout()).is_on() {
            err.render().ansi().to_string()
        } else {
            err.render().to_string()
        };
        return match print_as_is(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(report) => print_report(Format::Words, &report),
        };
    }
    let wants_json = std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json");
    if let Some(ContextValue::String(word)) = err.get(ContextKind::InvalidSubcommand)
        && let Some(right) = help::right_verb(word)
    {
        let report = report::usage(format!("there is no verb {word}")).hint(right);
        return print_report(if wants_json { Format::Json } else { Format::Words }, &report);
    }
    if !wants_json {
        // The message quotes the command line, which can contain names from untrusted input.
        let text = plain::text(&err.render().to_string());
        // A closed stderr doesn't change the exit status.
        let _ = std::io::stderr().write_all(text.as_bytes());
        return ExitCode::from(Exit::Usage as u8);
    }
    let text = err.render().to_string();
    let why = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    print_report(Format::Json, &report::usage(why).hint("`cnimble help` has the verbs and options"))
}

/// Prints the report of a failed command, and returns its exit status.
fn fail(session: &Session, report: &Report) -> ExitCode {
    let format = if session.json { Format::Json } else { Format::Words };
    print_report(format, &report.clone().with_reason())
}

/// How a report is printed: as words on stderr, or as JSON on stdout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Words,
    Json,
}

/// Prints a report, and returns its exit status even if that fails. A report without text prints nothing.
fn print_report(format: Format, report: &Report) -> ExitCode {
    let paint = Paint::for_stream(&std::io::stderr());
    match (report.has_text(), format) {
        (false, _) => {}
        (true, Format::Words) => report.print(paint),
        (true, Format::Json) => {
            if let Err(unwritten) = print_json(&report.json()) {
                report.print(paint);
                unwritten.print(paint);
            }
        }
    }
    ExitCode::from(report.exit as u8)
}

/// Runs the subcommand.
async fn run(session: &Session, command: &Command) -> Result<(), Report> {
    match command {
        Command::Add(given) => verbs::add(session, given).await,
        Command::Del(given) => verbs::del(session, given).await,
        Command::Check(given) => verbs::check(session, given).await,
        Command::Gc(given) => network::gc(session, given).await,
        Command::Status(given) => network::status(session, &given.network).await,
        Command::Validate(given) if given.strict => lint::strict(session, given).await,
        Command::Validate(given) => {
            network::validate(session, given.network.as_deref().unwrap_or_default()).await
        }
        Command::Init(given) => init::init(session, given),
        Command::Schema(given) => schema::schema(given),
        Command::Explain(given) => explain::explain(session, &given.what),
        Command::Completions(given) => learn::completions(given),
        Command::Man(given) => man::man(given),
        Command::Plugins => list::plugins(session).await,
        Command::Network(given) => networks::network(session, given).await,
        Command::Networks => list::networks(session),
        Command::Ls(given) => ls::ls(session, given),
        Command::Version => version::version(session),
        Command::Events(given) => events::events(session, given),
        Command::Stats(given) => stats::stats(session, given),
        Command::Trace(given) => trace::trace(session, given),
        Command::Tree(given) => tree::tree(session, given).await,
        Command::Doctor(given) => doctor::doctor(session, given).await,
        Command::Guard(given) => guard::guard(session, given).await,
        Command::HandOver(given) => hand_over::hand_over(session, given).await,
        Command::Pod(given) => pod::pod(session, given).await,
        Command::Cri(given) => cri::cri(session, given).await,
        Command::Ipam(given) => ipam::ipam(session, given).await,
        Command::Run(given) => run::run(session, given).await,
        Command::Serve(given) => serve::serve(session, given).await,
        Command::Node(given) => node::node(session, given).await,
    }
}
