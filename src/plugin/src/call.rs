//! One invocation, validated.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use cnimble_cni::{Attachment, CniArgs, CniResult, Code, Error, Owner, PluginConfig};
use cnimble_netlink::NetNs;

use super::wanted::Wanted;
use super::{Command, Plugin, Undo, delegate, signal};

/// One invocation of a plugin. Every field has been validated for the verb.
pub struct Call {
    /// The verb.
    pub command: Command,
    /// `CNI_CONTAINERID`; empty for GC and STATUS.
    pub container_id: String,
    /// `CNI_NETNS`, to the letter; may be empty for DEL.
    pub netns: String,
    /// `CNI_IFNAME`; empty for GC and STATUS.
    pub ifname: String,
    /// `CNI_ARGS`, unparsed: loopback must not care what is in it.
    pub raw_args: String,
    /// `CNI_PATH`, split.
    pub path: Vec<PathBuf>,
    /// The configuration.
    pub config: PluginConfig,
    /// The configuration as it came, for delegates.
    pub stdin: Rc<Vec<u8>>,
    /// How to take back what ADD did so far.
    pub undo: Undo,
    /// The plugins that live in this binary.
    pub plugins: &'static [&'static dyn Plugin],
    /// The path that this program was started by, as its caller tells it; may be anything.
    pub program: PathBuf,
    /// The plugin's own namespace, if CNI_NETNS names another.
    pub home: Option<Arc<NetNs>>,
    /// The plugin that `ipam.type` names, once it was looked for.
    pub delegate: delegate::Known,
    /// What CHECK does about a difference.
    pub wanted: Wanted,
}

/// The keys of CNI_ARGS that some plugin of ours understands. A runtime hands the same
/// variable to the plugin and its delegate, so each knows the other's.
const KNOWN_ARGS: &[&str] = &["IP", "GATEWAY", "MAC"];

impl Call {
    /// The parsed `CNI_ARGS`.
    ///
    /// # Errors
    /// Code 4 for a malformed pair or an unknown key without `IgnoreUnknown`.
    pub fn args(&self) -> Result<CniArgs, Error> {
        let args = CniArgs::parse(&self.raw_args)?;
        args.allow(KNOWN_ARGS)?;
        Ok(args)
    }

    /// Opens the namespace that CNI_NETNS names.
    ///
    /// # Errors
    /// Code 8 with the path and the reason.
    pub fn open_netns(&self) -> Result<NetNs, Error> {
        let opened = NetNs::open(std::path::Path::new(&self.netns));
        opened.map(|netns| netns.with_home(self.home.clone())).map_err(|err| {
            let why = Error::from(err);
            Error::new(Code::INVALID_NETNS, format!("failed to open netns \"{}\"", self.netns))
                .details(why.details)
        })
    }

    /// The namespace that CNI_NETNS names, or `None` if it names none, is gone or is no namespace: then
    /// there is nothing of ours in it.
    ///
    /// # Errors
    /// It can't be told whether it is there.
    pub fn find_netns(&self) -> Result<Option<NetNs>, Error> {
        if self.netns.is_empty() {
            return Ok(None);
        }
        let found = NetNs::find(std::path::Path::new(&self.netns))?;
        Ok(found.map(|netns| netns.with_home(self.home.clone())))
    }

    /// The container's interface in this network, as leases are keyed.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.container_id.clone(), ifname: self.ifname.clone() }
    }

    /// The attachment with its network, as links and rules are marked.
    pub fn owner(&self) -> Owner {
        Owner { network: self.config.name.clone(), attachment: self.attachment() }
    }

    /// The result of the plugin in front of this one in the chain.
    ///
    /// # Errors
    /// Code 7 if there is none.
    pub fn previous(&self) -> Result<&CniResult, Error> {
        self.config.prev_result.as_ref().ok_or_else(|| {
            Error::config("Required prevResult missing")
                .details("it works on the interface of another plugin; hint: put one in front of it")
        })
    }

    /// Runs one step of a verb: `what` goes in front of its error, and a signal that has
    /// arrived stops before it.
    ///
    /// # Errors
    /// The step's own, or code 11 if the process was told to stop.
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
