//! The start and the end of the process.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use cnimble_cni::{Code, Error, PluginConfig, Version, names};
use cnimble_netlink::{NetNs, deferred_close};

use super::env::Env;
use super::{Call, Command, Plugin, begun, delegate, restrain, signal, start, undo};

/// The largest configuration. A GC list of 10,000 attachments has 1 MB.
const STDIN_LIMIT: usize = 16 << 20;

const SUCCESS: i32 = 0;
const FAILURE: i32 = 1;

/// Runs the plugin among `plugins` that has the name of this process, which is the file name of the first of `args`. If
/// no plugin has it, the name of the executable is tried.
///
/// Returns the exit status: 0, or 1 after printing an error. With arguments it may be that of [`Plugin::program`].
/// With `--list-plugins` as the first one it prints the names of all plugins, under any name of the process. Without
/// CNI_COMMAND it prints a text for a person to stderr and returns 0.
pub fn main(plugins: &'static [&'static dyn Plugin], args: impl IntoIterator<Item = OsString>) -> i32 {
    main_like(plugins, args, None)
}

/// Does what [`main`] does, for plugins with the features of this release of the Go reference plugins.
#[doc(hidden)]
pub fn main_like(
    plugins: &'static [&'static dyn Plugin],
    args: impl IntoIterator<Item = OsString>,
    reference: Option<&str>,
) -> i32 {
    start::prepare();
    super::log::init();
    let mut args = args.into_iter();
    let argv0 = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    // Installers ask for the names to link. A runtime passes no arguments.
    if args.first().is_some_and(|arg| arg == "--list-plugins") {
        let names: String = plugins.iter().map(|plugin| format!("{}\n", plugin.name())).collect();
        return match print(&names) {
            Ok(()) => SUCCESS,
            Err(_) => FAILURE,
        };
    }
    let name = Path::new(&argv0).file_name().unwrap_or(OsStr::new(""));
    let Some(plugin) = find_plugin(plugins, name).or_else(|| {
        // A caller may put anything into argv[0], so the name of the file is tried, too.
        find_plugin(plugins, std::env::current_exe().ok()?.file_name()?)
    }) else {
        return unknown_name(name, plugins);
    };
    if !args.is_empty()
        && let Some(status) = plugin.program(&args)
    {
        return status;
    }
    let Some(command) = std::env::var_os("CNI_COMMAND").filter(|command| !command.is_empty()) else {
        let _ = writeln!(std::io::stderr(), "{}", about(plugin, reference));
        return SUCCESS;
    };
    install_panic_hook();
    signal::install();

    let outcome = run(plugin, &command, PathBuf::from(argv0), plugins);
    let status = match outcome {
        Ok(()) => SUCCESS,
        Err((err, version)) => fail(&err, version),
    };
    deferred_close::finish();
    status
}

fn find_plugin(plugins: &[&'static dyn Plugin], name: &OsStr) -> Option<&'static dyn Plugin> {
    plugins.iter().copied().find(|plugin| plugin.name().as_bytes() == name.as_bytes())
}

/// Prints an error. Returns the exit status 1 even if stdout is closed.
fn fail(err: &Error, version: Version) -> i32 {
    if let Err(io) = print(&err.to_json(version)) {
        log::error!("{err} (and stdout: {io})");
    }
    FAILURE
}

/// Writes to stdout without the line buffer of `Stdout`, which would need two system calls.
fn print(text: &str) -> std::io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match nix::unistd::write(std::io::stdout(), rest) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn unknown_name(name: &OsStr, plugins: &[&dyn Plugin]) -> i32 {
    let list: Vec<&str> = plugins.iter().map(|plugin| plugin.name()).collect();
    let err = Error::new(
        Code::INVALID_ENVIRONMENT,
        format!("\"{}\" is not the name of a plugin in this binary", name.to_string_lossy()),
    )
    .details(format!(
        "call it as one of: {}; hard links, symbolic links and copies all work",
        list.join(", ")
    ));
    // A person at a terminal reads stderr, a runtime reads stdout.
    if std::env::var_os("CNI_COMMAND").is_none() {
        let _ = writeln!(std::io::stderr(), "{err}");
        return FAILURE;
    }
    fail(&err, Version::LATEST)
}

/// Returns the text for a person. nerdctl parses the text after `CNI firewall plugin ` as a semantic version, and
/// disables features that a Go plugin of that version lacks.
fn about(plugin: &dyn Plugin, reference: Option<&str>) -> String {
    let versions: Vec<&str> = plugin.versions().iter().map(|v| v.as_str()).collect();
    let version = reference.map(|release| format!(" v{release}")).unwrap_or_default();
    let own = reference.map_or("", |_| {
        concat!(
            "This is cnimble v",
            env!("CARGO_PKG_VERSION"),
            ", with the features of that version of the reference plugin.\n"
        )
    });
    format!(
        "CNI {} plugin{version}\nCNI protocol versions supported: {}\n\
         {own}A container runtime calls it with CNI_COMMAND and a configuration on stdin.",
        plugin.name(),
        versions.join(", "),
    )
}

/// Makes a panic, which is a defect, print a JSON error after it has rolled back the changes.
fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let err =
            Error::new(Code::INTERNAL, "a panic, which is a defect of the plugin").details(info.to_string());
        let left = undo::rollback_current();
        let err = left.into_iter().fold(err, |err, failure| err.details(format!("left behind: {failure}")));
        super::log::outcome(Err(&err));
        let _ = print(&err.to_json(Version::LATEST));
        std::process::exit(1);
    }));
}

/// An error with the version of the specification in which it is printed.
type Failure = (Error, Version);

/// Returns the failure for an error that comes before the version of the configuration is known.
fn fail_early(err: Error) -> Failure {
    (err, Version::LATEST)
}

/// Runs the verb `command`. Reads and validates variables and configuration first, except for VERSION.
fn run(
    plugin: &dyn Plugin,
    command: &OsStr,
    program: PathBuf,
    plugins: &'static [&'static dyn Plugin],
) -> Result<(), Failure> {
    let command = command.to_str().and_then(Command::parse).ok_or_else(|| {
        // libcni looks for "unknown CNI_COMMAND" to tell plugins without VERSION.
        fail_early(Error::new(
            Code::INVALID_ENVIRONMENT,
            format!("unknown CNI_COMMAND: {}", command.to_string_lossy()),
        ))
    })?;
    if command == Command::Version {
        return version(plugin).map_err(fail_early);
    }
    let env = Env::read(command, |name| std::env::var_os(name)).map_err(fail_early)?;
    let stdin = read_stdin().map_err(fail_early)?;
    let config = parse(command, &stdin).map_err(|err| (err, PluginConfig::version_of(&stdin)))?;
    let version = config.version;
    let of = [
        ("plugin", plugin.name()),
        ("verb", command.as_str()),
        ("network", &config.name),
        ("containerID", &env.container_id),
        ("ifname", &env.ifname),
    ];
    match super::log::open(&config, &of) {
        // A DEL has to succeed whatever a key says.
        Err(err) if matches!(command, Command::Del | Command::Gc) => {
            log::warn!("there is no log file: {err}");
        }
        opened => opened.map_err(|err| (err, version))?,
    }
    let call = Call {
        container_id: env.container_id,
        netns: env.netns,
        ifname: env.ifname,
        raw_args: env.args,
        path: env.path,
        plugins,
        program,
        ..Call::new(command, config, stdin)
    };
    let outcome = verb(plugin, call, env.netns_override);
    super::log::outcome(outcome.as_ref().copied());
    outcome.map_err(|err| (err, version))
}

/// Parses the configuration. DEL continues without a prevResult that can't be read.
fn parse(command: Command, stdin: &[u8]) -> Result<PluginConfig, Error> {
    match command {
        Command::Del => {
            let (config, unreadable) = PluginConfig::parse_for_del(stdin)?;
            if let Some(err) = unreadable {
                log::warn!("going on without the result of ADD: {err}");
            }
            Ok(config)
        }
        Command::Add | Command::Version => PluginConfig::parse(stdin),
        // As in the Go library, the plugin first checks that the version has the verb, and then that it knows the
        // version.
        _ => {
            PluginConfig::parse(stdin).map_err(|err| PluginConfig::version_that_is_none(stdin).unwrap_or(err))
        }
    }
}

/// Returns the error that the configuration can't be read.
fn stdin_error(why: &str) -> Error {
    Error::new(Code::IO, format!("reading the configuration from stdin: {why}"))
}

/// Reads the configuration. Fails with code 11 if a termination signal interrupts a read, and with code 5 if stdin
/// can't be read or has more than [`STDIN_LIMIT`] bytes.
fn read_stdin() -> Result<Vec<u8>, Error> {
    let mut stdin = std::io::stdin().lock();
    let mut config = Vec::with_capacity(4096);
    let mut piece = [0; 4096];
    loop {
        // A caller that never closes the pipe must not prevent a termination.
        let length = match stdin.read(&mut piece) {
            Ok(0) => return Ok(config),
            Ok(length) => length,
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {
                signal::check()?;
                continue;
            }
            Err(err) => return Err(stdin_error(&err.to_string())),
        };
        config.extend_from_slice(piece.get(..length).unwrap_or_default());
        if config.len() > STDIN_LIMIT {
            return Err(stdin_error(&format!("it is larger than {STDIN_LIMIT} bytes")));
        }
    }
}

/// Prints the answer to VERSION: one compact line with a newline, unlike every other answer.
fn version(plugin: &dyn Plugin) -> Result<(), Error> {
    let versions: Vec<&str> = plugin.versions().iter().map(|v| v.as_str()).collect();
    let answer: Value = json!({"cniVersion": Version::LATEST.as_str(), "supportedVersions": versions});
    print(&format!("{answer}\n")).map_err(|err| Error::new(Code::IO, format!("writing to stdout: {err}")))
}

/// Validates the configuration, drops privileges and runs a verb other than VERSION.
fn verb(plugin: &dyn Plugin, mut call: Call, netns_override: bool) -> Result<(), Error> {
    validate(plugin, call.command, &call.config)?;
    find_home(&mut call, netns_override)?;
    begun::before(plugin, &call);
    restrain::restrain(plugin, &call);
    let outcome = match call.command {
        Command::Add => add(plugin, &call),
        command @ (Command::Del | Command::Gc) => {
            deferred_close::allow();
            if command == Command::Del {
                delegate::leave(&call, plugin);
            }
            super::run(plugin, &call, command)
        }
        command => super::run(plugin, &call, command),
    };
    begun::after(plugin, &call, &outcome);
    outcome
}

/// Runs ADD and prints its result. If either fails, or a termination signal has come before the print, rolls back the
/// changes.
///
/// A signal during the print rolls nothing back. `print` goes on after it (EINTR), so the caller gets the whole
/// result, and the ADD succeeds.
fn add(plugin: &dyn Plugin, call: &Call) -> Result<(), Error> {
    call.undo.make_current();
    let done = plugin
        .add(call)
        .and_then(|result| result.to_json(call.config.version))
        .and_then(|text| signal::check().map(|()| text))
        .and_then(|text| {
            print(&text).map_err(|err| Error::new(Code::IO, format!("writing the result to stdout: {err}")))
        });
    match done {
        Ok(()) => {
            call.undo.commit();
            Ok(())
        }
        Err(err) => {
            signal::forget();
            deferred_close::allow();
            Err(call.undo.rollback_into(err))
        }
    }
}

/// Validates the parts of a configuration that are the same for all plugins.
fn validate(plugin: &dyn Plugin, command: Command, config: &PluginConfig) -> Result<(), Error> {
    if !plugin.versions().contains(&config.version) {
        return Err(Version::incompatible(config.version.as_str(), plugin.versions()));
    }
    if config.name.is_empty() {
        return Err(Error::config("missing network name"));
    }
    if !names::is_identifier(&config.name) {
        return Err(Error::config(format!("invalid network name \"{}\"", config.name.escape_default()))
            .details("it must start with a letter or digit and hold only letters, digits, _ . -"));
    }
    match command {
        Command::Check => require_version(Version::V0_4_0, command, config),
        Command::Gc | Command::Status => require_version(Version::V1_1_0, command, config),
        _ => Ok(()),
    }
}

/// Fails with code 1 if the version of the configuration is older than `first`, which brought the verb.
fn require_version(first: Version, command: Command, config: &PluginConfig) -> Result<(), Error> {
    if config.version >= first {
        return Ok(());
    }
    let verb = command.as_str();
    Err(Error::new(Code::INCOMPATIBLE_VERSION, format!("config version does not allow {verb}"))
        .details(format!("it is {}, and {verb} exists from {first} on", config.version)))
}

/// Opens the plugin's own namespace, for the way back from the pod's. Refuses it as CNI_NETNS, because a plugin would
/// change the host's network there. DEL continues without a namespace instead: the path of a dead pod may lead to a
/// host process by now, and the rest of the attachment must still be removed.
fn find_home(call: &mut Call, netns_override: bool) -> Result<(), Error> {
    if call.netns.is_empty() {
        return Ok(());
    }
    let Ok(home) = NetNs::current() else { return Ok(()) };
    if !netns_override && home.is_at(Path::new(&call.netns)) {
        match call.command {
            Command::Add | Command::Check => {
                return Err(Error::new(
                    Code::INVALID_NETNS,
                    "plugin's netns and netns from CNI_NETNS should not be the same",
                )
                .details(format!(
                    "CNI_NETNS={}; set CNI_NETNS_OVERRIDE=1 if that is what you want",
                    call.netns
                )));
            }
            Command::Del => {
                log::warn!("CNI_NETNS={} is the plugin's own namespace; it is left alone", call.netns);
                call.netns.clear();
            }
            _ => {}
        }
    }
    call.home = Some(Arc::new(home));
    Ok(())
}
