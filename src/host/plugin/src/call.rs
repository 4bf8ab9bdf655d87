//! One invocation of a plugin, with validated parameters.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use cnimble_cni::{Attachment, CniArgs, CniResult, Code, Error, Owner, PluginConfig};
use cnimble_netlink::NetNs;

use super::wanted::Wanted;
use super::{Command, Plugin, Undo, delegate, signal};

/// One invocation of a plugin. Every field has been validated for the verb.
pub struct Call {
    /// The verb of the invocation.
    pub command: Command,
    /// The value of `CNI_CONTAINERID`. GC and STATUS need none, and it is usually empty for them.
    pub container_id: String,
    /// The value of `CNI_NETNS`, unchanged but for one case. It is cleared for a DEL whose path leads to the plugin's
    /// own namespace (without `CNI_NETNS_OVERRIDE`), so that DEL leaves the host alone. It may also be empty for DEL,
    /// and usually is for GC and STATUS.
    pub netns: String,
    /// The value of `CNI_IFNAME`. GC and STATUS need none, and it is usually empty for them.
    pub ifname: String,
    /// The unparsed value of `CNI_ARGS`, because loopback must accept any content.
    pub raw_args: String,
    /// The directories of `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// The configuration of the plugin.
    pub config: PluginConfig,
    /// The unchanged bytes of the configuration, for delegates.
    pub stdin: Rc<Vec<u8>>,
    /// The undo actions for the steps of ADD so far.
    pub undo: Undo,
    /// The plugins of this binary.
    pub(crate) plugins: &'static [&'static dyn Plugin],
    /// The path by which the caller started this program. It may be anything.
    pub program: PathBuf,
    /// The plugin's own namespace, if CNI_NETNS names another.
    pub(crate) home: Option<Arc<NetNs>>,
    /// The first delegate that was found, for later calls.
    pub(crate) delegate: delegate::FoundDelegate,
    /// What CHECK does about differences, and those that it has noted.
    pub(crate) wanted: Wanted,
}

/// The keys of CNI_ARGS that any plugin of this binary accepts. A runtime passes the same variable to a delegate, so
/// each accepts the other's keys.
const KNOWN_ARGS: &[&str] = &["IP", "GATEWAY", "MAC"];

impl Call {
    /// A call of a program that runs a verb in its own process, as tests do. It has no attachment: set the fields.
    pub fn new(command: Command, config: PluginConfig, stdin: Vec<u8>) -> Self {
        Call {
            command,
            container_id: String::new(),
            netns: String::new(),
            ifname: String::new(),
            raw_args: String::new(),
            path: Vec::new(),
            config,
            stdin: Rc::new(stdin),
            undo: Undo::new(),
            plugins: &[],
            program: PathBuf::new(),
            home: None,
            delegate: delegate::FoundDelegate::default(),
            wanted: Wanted::default(),
        }
    }

    /// Parses `CNI_ARGS`.
    ///
    /// # Errors
    /// Fails with code 4 for a malformed pair, or for an unknown key without `IgnoreUnknown`.
    pub fn args(&self) -> Result<CniArgs, Error> {
        let args = CniArgs::parse(&self.raw_args)?;
        args.allow(KNOWN_ARGS)?;
        Ok(args)
    }

    /// Opens the namespace in CNI_NETNS.
    ///
    /// # Errors
    /// Fails with code 8, the path and the reason.
    pub fn open_netns(&self) -> Result<NetNs, Error> {
        let opened = NetNs::open(std::path::Path::new(&self.netns));
        opened.map(|netns| netns.with_home(self.home.clone())).map_err(|err| {
            let why = Error::from(err);
            Error::new(Code::INVALID_NETNS, format!("failed to open netns \"{}\"", self.netns))
                .details(why.details)
        })
    }

    /// Opens the namespace in CNI_NETNS. Returns `None` if the variable is empty, or if the path no longer leads to a
    /// namespace. No interface of the attachment exists then.
    ///
    /// # Errors
    /// Fails if it is unknown whether the namespace exists.
    pub fn find_netns(&self) -> Result<Option<NetNs>, Error> {
        if self.netns.is_empty() {
            return Ok(None);
        }
        let found = NetNs::find(std::path::Path::new(&self.netns))?;
        Ok(found.map(|netns| netns.with_home(self.home.clone())))
    }

    /// The container's interface in this network, which is the key of leases.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() }
    }

    /// The attachment with its network, which is the owner of links and rules.
    pub fn owner(&self) -> Owner {
        Owner { network: self.config.name.clone(), attachment: self.attachment() }
    }

    /// The result of the previous plugin in the chain.
    ///
    /// # Errors
    /// Fails with code 7 if there is none.
    pub fn previous(&self) -> Result<&CniResult, Error> {
        self.config.prev_result.as_ref().ok_or_else(|| {
            Error::config("Required prevResult missing")
                .details("it works on the interface of another plugin; hint: put one in front of it")
        })
    }

    /// Runs one step of a verb. `what` is put in front of its error. The step is not started if a termination signal
    /// has arrived.
    ///
    /// # Errors
    /// Returns the error of the step, or code 11 after a termination signal.
    pub fn step<T, E: Into<Error>>(
        &self,
        what: &str,
        run: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Error> {
        signal::check()?;
        log::debug!("{what}");
        run().map_err(|err| err.into().context(what))
    }
}
