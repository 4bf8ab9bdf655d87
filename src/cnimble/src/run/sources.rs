//! Converts the command line into sources.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cnimble_api::Server;
use cnimble_pod::manifest::Defaults;
use cnimble_pod::source::{ApiSource, Directory, Sources, UrlSource};

use crate::args::run;
use crate::report::Report;
use crate::report::usage;

impl run::Sources {
    /// Returns the sources that the user has chosen. It fails without one.
    pub(super) fn sources(&self) -> Result<Sources, Report> {
        if self.manifests.is_none() && self.url.is_none() && self.kubeconfig.is_none() && !self.in_cluster {
            return Err(usage("no source of pods is given")
                .hint("give a directory (--manifests), a URL (--url) or an API server (--kubeconfig)"));
        }
        let defaults = Defaults { node: self.node(), suffix: self.suffix };
        let period = Duration::from_secs(self.poll.max(1));
        let directory = self.manifests.as_ref().map(|path| Directory {
            defaults: defaults.clone(),
            period,
            ..Directory::new(path)
        });
        let url = self.url.as_ref().map(|url| UrlSource {
            headers: self.url_header.iter().filter(|text| !text.starts_with('@')).cloned().collect(),
            header_files: self
                .url_header
                .iter()
                .filter_map(|text| text.strip_prefix('@'))
                .map(PathBuf::from)
                .collect(),
            defaults: defaults.clone(),
            period,
            ..UrlSource::new(url)
        });
        let kubeconfig = self.kubeconfig.clone().unwrap_or_default();
        let api = (self.in_cluster || self.kubeconfig.is_some()).then(|| ApiSource {
            server: Server { kubeconfig, in_cluster: self.in_cluster },
            only_managed: Arc::new(AtomicBool::new(self.only_managed)),
            ..ApiSource::new("", self.node())
        });
        Ok(Sources { directory, url, api })
    }

    /// Returns the name of this node. The default is the host's name.
    fn node(&self) -> String {
        self.node_name.clone().unwrap_or_else(host_name)
    }
}

/// Returns the host's name in lower case, as the kubelet uses it. It is empty if it can't be read.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_lowercase()
}
