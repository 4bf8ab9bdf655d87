//! Makes a sandbox. After a failure [`Left`] decides what is removed, up to namespace and record. The network plugin
//! layer undoes its own part ([`NetworkPlugin::set_up`](crate::network::NetworkPlugin::set_up)).

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::network::Bandwidth;

use super::checkpoint::make_dir;
use super::config::{Sandbox, SandboxConfig, SandboxState};
use super::error::{Cause, Causes, SandboxError, SandboxOperation};
use super::{Sandboxes, dns, netns, process, random_id};

/// The remains of a failed set-up.
enum Left {
    Network,
    NoNetwork,
    /// The plugins could not undo their part. The record stays, and the next call tries again.
    Unknown,
}

impl Sandboxes {
    /// Returns the newest sandbox without a fault that [serves](SandboxConfig::serves) the pod as it is, or makes one.
    /// All other sandboxes of the pod are taken down first. A failure is undone. If the undo fails, the record stays,
    /// and the next call for this pod repeats it. **Cancellation.** After dropping the future call [`Sandboxes::down`],
    /// or this again.
    pub async fn run(&self, config: &SandboxConfig) -> Result<Sandbox, SandboxError> {
        let lock = self.lock(&config.pod).await;
        let _lock = lock.map_err(|causes| causes.into_error(SandboxOperation::Run, &config.pod))?;
        let sandbox = self.run_locked(config).await;
        sandbox.map_err(|causes| causes.into_error(SandboxOperation::Run, &config.pod))
    }

    async fn run_locked(&self, config: &SandboxConfig) -> Result<Sandbox, Causes> {
        Bandwidth::from_annotations(&config.annotations).map_err(Cause::from)?;
        let mut present = self.inner.store.of_pod(&config.pod)?;
        let attempt = present.last().map_or(0, |last| last.attempt.saturating_add(1));
        let sound = present.iter().rposition(|of| of.config.serves(config) && self.fault(of).is_none());
        let sound = sound.map(|index| present.remove(index));
        for old in present {
            self.remove_locked(&old).await?;
        }
        if let Some(sound) = sound {
            return Ok(sound);
        }
        self.make_new(config, attempt, pin!(pending())).await
    }

    /// Makes a sandbox. A failure is undone. So is a set-up that `cancelled` ends.
    pub(super) async fn make_new(
        &self,
        config: &SandboxConfig,
        attempt: u32,
        cancelled: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Sandbox, Causes> {
        let mut sandbox = self.begin(config, attempt)?;
        self.write_new(&sandbox).await?;
        let (cause, left) = match self.make_sandbox(&mut sandbox, cancelled).await {
            Ok(()) => {
                sandbox.state = SandboxState::Ready;
                match self.amend(&sandbox).await {
                    Ok(()) => return Ok(sandbox),
                    Err(cause) => (cause, Left::Network),
                }
            }
            Err(Cause::Cancelled) => {
                // The invoker undoes it already, so its plugins are no orphans. The stop waits for them.
                sandbox.state = SandboxState::Ready;
                (Cause::Cancelled, Left::Network)
            }
            Err(Cause::Network(err)) if !err.is_clean() => (Cause::Network(err), Left::Unknown),
            Err(cause) => (cause, Left::NoNetwork),
        };
        let mut causes = Causes::from(cause);
        causes.add(match left {
            Left::Network => self.remove_locked(&sandbox).await,
            Left::NoNetwork => self.discard(&sandbox).await,
            Left::Unknown => Ok(()),
        });
        Err(causes)
    }

    /// Returns the record of a new sandbox. Fails if the network is not ready.
    fn begin(&self, config: &SandboxConfig, attempt: u32) -> Result<Sandbox, Cause> {
        let id = random_id()?;
        let options = &self.inner.options;
        let network = if config.host_network {
            None
        } else {
            self.inner.network.ready()?;
            self.inner.network.default_network()
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cgroup_path = config.cgroup.clone().or_else(|| {
            let root = options.cgroup_root.as_ref()?;
            Some(format!("{}/pod{}", root.trim_end_matches('/'), config.uid))
        });
        Ok(Sandbox {
            config: config.clone(),
            attempt,
            created: now.as_secs(),
            created_nanos: now.subsec_nanos(),
            boot_id: self.inner.boot_id.clone(),
            state: SandboxState::SettingUp,
            netns: (!config.host_network).then(|| self.netns_path(&id)),
            process: None,
            resolv_conf: (!config.dns.is_empty()).then(|| self.run_path(&id).join("resolv.conf")),
            ips: Vec::new(),
            cgroup_path,
            network: network.map(|network| cnimble_runtime::inlined_config(&network.list)),
            id,
        })
    }

    /// Makes what the record describes, and adds process and addresses to it.
    async fn make_sandbox(
        &self,
        sandbox: &mut Sandbox,
        cancelled: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Cause> {
        if let Some(path) = &sandbox.resolv_conf {
            let dir = self.run_path(&sandbox.id);
            make_dir(&dir, 0o755)?;
            let text = dns::resolv_conf(&sandbox.config.dns);
            std::fs::write(path, text).map_err(Cause::file("writing", path))?;
        }
        let Some(path) = sandbox.netns.clone() else {
            return Ok(());
        };
        netns::create(path.clone()).await?;
        if let Some(command) = &self.inner.options.pause {
            sandbox.process = Some(process::start(command, path, &sandbox.id).await?);
        }
        let network = sandbox.network();
        sandbox.ips = tokio::select! {
            set_up = self.inner.network.set_up(&network) => set_up?,
            () = cancelled => return Err(Cause::Cancelled),
        };
        Ok(())
    }
}
