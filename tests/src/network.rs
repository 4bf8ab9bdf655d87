//! A network on a host: its configuration, and the verbs for one attachment.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Call, Host, Ns, Outcome, plugin_dir};

/// One interface in one container.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// The value of CNI_CONTAINERID.
    pub id: String,
    /// The value of CNI_NETNS.
    pub netns: String,
    /// The value of CNI_IFNAME.
    pub ifname: String,
    /// The value of CNI_ARGS.
    pub args: String,
}

impl Attachment {
    /// eth0 of container `id` in `pod`.
    pub fn new(id: &str, pod: &Ns) -> Self {
        Attachment { id: id.into(), netns: pod.path().into(), ifname: "eth0".into(), args: String::new() }
    }

    /// The same with another CNI_NETNS.
    #[must_use]
    pub fn netns(mut self, path: &str) -> Self {
        self.netns = path.into();
        self
    }

    /// The same with another CNI_IFNAME.
    #[must_use]
    pub fn ifname(mut self, name: &str) -> Self {
        self.ifname = name.into();
        self
    }

    /// The same with CNI_ARGS.
    #[must_use]
    pub fn args(mut self, args: &str) -> Self {
        self.args = args.into();
        self
    }

    /// As an entry of `cni.dev/valid-attachments`.
    pub fn listed(&self) -> Value {
        json!({"containerID": self.id, "ifname": self.ifname})
    }
}

/// A plugin configuration on a host.
#[derive(Clone)]
pub struct Network<'h> {
    /// The node of the network.
    pub host: &'h Host,
    /// The configuration. `type` says which plugin is called.
    pub config: Value,
    /// Where the plugin is.
    pub plugins: PathBuf,
    /// PATH in the plugin's environment, if it isn't the usual one.
    pub path: Option<String>,
}

impl<'h> Network<'h> {
    /// Served by the plugins under test.
    pub fn new(host: &'h Host, config: Value) -> Self {
        Self::by(plugin_dir(), host, config)
    }

    /// Served by the plugins in a directory.
    pub fn by(plugins: &Path, host: &'h Host, config: Value) -> Self {
        Network { host, config, plugins: plugins.into(), path: None }
    }

    /// The same network with other plugins.
    #[must_use]
    pub fn served_by(&self, plugins: &Path) -> Self {
        Network { plugins: plugins.into(), ..self.clone() }
    }

    /// The same network with a key (a JSON pointer's last step may be new) set.
    #[must_use]
    pub fn with(&self, pointer: &str, value: Value) -> Self {
        let mut other = self.clone();
        let (parent, key) = pointer.rsplit_once('/').expect("a JSON pointer");
        other.config.pointer_mut(parent).expect("the parent")[key] = value;
        other
    }

    /// A call that only needs [`Call::run`].
    pub fn call(&self, verb: &str, attachment: &Attachment, prev: Option<&Value>) -> Call<'h> {
        let mut config = self.config.clone();
        if let Some(prev) = prev {
            config["prevResult"] = prev.clone();
        }
        let call = self.bare(verb).config(&config);
        call.attachment(&attachment.id, &attachment.netns, &attachment.ifname)
            .env("CNI_ARGS", &attachment.args)
    }

    /// Runs the verb ADD.
    pub fn add(&self, attachment: &Attachment) -> Outcome {
        self.call("ADD", attachment, None).run()
    }

    /// ADD that must succeed.
    #[track_caller]
    pub fn added(&self, attachment: &Attachment) -> Value {
        self.add(attachment).result()
    }

    /// Runs the verb CHECK.
    pub fn check(&self, attachment: &Attachment, prev: &Value) -> Outcome {
        self.call("CHECK", attachment, Some(prev)).run()
    }

    /// DEL, with or without prevResult.
    pub fn del(&self, attachment: &Attachment, prev: Option<&Value>) -> Outcome {
        self.call("DEL", attachment, prev).run()
    }

    /// DEL that must succeed and say nothing.
    #[track_caller]
    pub fn deleted(&self, attachment: &Attachment, prev: Option<&Value>) {
        let outcome = self.del(attachment, prev).success();
        assert!(outcome.stdout.is_empty(), "DEL talks: {}", outcome.describe());
    }

    /// Runs GC with the given list of valid attachments. `None` leaves the key out.
    pub fn gc(&self, valid: Option<Value>) -> Outcome {
        self.gc_call(valid).run()
    }

    /// The same, to be run.
    pub fn gc_call(&self, valid: Option<Value>) -> Call<'h> {
        let mut config = self.config.clone();
        if let Some(valid) = valid {
            config["cni.dev/valid-attachments"] = valid;
        }
        self.bare("GC").config(&config)
    }

    /// Runs the verb STATUS.
    pub fn status(&self) -> Outcome {
        self.status_call().run()
    }

    /// The same, to be run.
    pub fn status_call(&self) -> Call<'h> {
        self.bare("STATUS").config(&self.config)
    }

    fn bare(&self, verb: &str) -> Call<'h> {
        let plugin = self.config["type"].as_str().expect("a type");
        let call = self.host.call_in(&self.plugins, plugin).command(verb);
        match &self.path {
            Some(path) => call.env("PATH", path),
            None => call,
        }
    }
}
