//! The calls of CRI, each named as in `api.proto`.

use std::future::Future;
use std::sync::Arc;

use prost::Message;
use tokio::sync::oneshot;
use tonic::Status;

use crate::wire;
use cnimble_pod::network::NetworkNotReady;
use cnimble_pod::sandbox::{Fault, Sandbox};

use crate::server::answer::{cut, error};
use crate::server::{Service, answer, cidr, info, request};

type Answer<T> = Result<T, Status>;

impl Service {
    /// Answers with the version of CRI that a kubelet expects.
    pub(crate) async fn version(self: Arc<Self>, _: wire::VersionRequest) -> Answer<wire::VersionResponse> {
        Ok(wire::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "cnimble".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    /// Answers with the conditions. NetworkReady comes from the plugins' last answers, so that a plugin that hangs does
    /// not delay a kubelet.
    pub(crate) async fn status(
        self: Arc<Self>,
        request: wire::StatusRequest,
    ) -> Answer<wire::StatusResponse> {
        let network = self.sandboxes.network();
        let conditions =
            vec![condition("RuntimeReady", None), condition("NetworkReady", network.ready().err())];
        Ok(wire::StatusResponse {
            status: Some(wire::RuntimeStatus { conditions }),
            info: if request.verbose { info::runtime(network) } else { Default::default() },
        })
    }

    /// Reports the driver `cgroupfs`, so that a kubelet passes control groups as paths.
    pub(crate) async fn runtime_config(
        self: Arc<Self>,
        _: wire::Empty,
    ) -> Answer<wire::RuntimeConfigResponse> {
        let linux = wire::LinuxRuntimeConfiguration { cgroup_driver: wire::CGROUPFS };
        Ok(wire::RuntimeConfigResponse { linux: Some(linux) })
    }

    /// Sets and saves the pods' addresses. Without a subnet in the request nothing changes, as with other runtimes.
    pub(crate) async fn update_runtime_config(
        self: Arc<Self>,
        request: wire::UpdateRuntimeConfigRequest,
    ) -> Answer<wire::Empty> {
        let network = request.runtime_config.and_then(|config| config.network_config);
        let text = network.map(|network| network.pod_cidr).unwrap_or_default();
        let cidrs = cidr::parse(&text).map_err(Status::invalid_argument)?;
        if !cidrs.is_empty() && cidrs != self.sandboxes.network().pod_cidrs() {
            cidr::save(&self.cidr_file, &cidrs).map_err(Status::internal)?;
            log::info!("pods get their addresses from {text} from now on");
            self.sandboxes.network().set_pod_cidrs(cidrs);
        }
        Ok(wire::Empty {})
    }

    /// Makes a sandbox. If the client goes meanwhile, the sandbox is undone.
    pub(crate) async fn run_pod_sandbox(
        self: Arc<Self>,
        request: wire::RunPodSandboxRequest,
    ) -> Answer<wire::RunPodSandboxResponse> {
        let (config, attempt) = request::wanted(request)?;
        // The sender is dropped with this future, which hyper drops when the client goes.
        let (interest, gone) = oneshot::channel::<()>();
        let this = Arc::clone(&self);
        let made = self.work(async move {
            let mut gone = gone;
            let turn = tokio::select! {
                turn = this.making.acquire() => turn,
                _ = &mut gone => return Err(Status::cancelled("the caller gave up")),
            };
            let _turn = turn.map_err(|err| Status::internal(err.to_string()))?;
            let cancelled = async {
                let _ = gone.await;
            };
            this.sandboxes.create(&config, attempt, cancelled).await.map_err(|err| {
                log::warn!("{err}");
                error(&err)
            })
        });
        let made = made.await;
        drop(interest);
        Ok(wire::RunPodSandboxResponse { pod_sandbox_id: made?.id })
    }

    /// Stops a sandbox. An unknown one is success, as CRI demands.
    pub(crate) async fn stop_pod_sandbox(
        self: Arc<Self>,
        request: wire::PodSandboxRequest,
    ) -> Answer<wire::Empty> {
        let Some(id) = self.find_sandbox(&request.pod_sandbox_id)? else { return Ok(wire::Empty {}) };
        let this = Arc::clone(&self);
        let stopped = self.work(async move {
            let _turn = this.ending.acquire().await.map_err(|err| Status::internal(err.to_string()))?;
            match this.sandboxes.stop(&id).await {
                Err(err) if !is_unknown(&err) => {
                    log::warn!("{err}");
                    Err(error(&err))
                }
                _ => Ok(wire::Empty {}),
            }
        });
        stopped.await
    }

    /// Stops and removes a sandbox. An unknown one is success, as for StopPodSandbox.
    pub(crate) async fn remove_pod_sandbox(
        self: Arc<Self>,
        request: wire::PodSandboxRequest,
    ) -> Answer<wire::Empty> {
        let Some(id) = self.find_sandbox(&request.pod_sandbox_id)? else { return Ok(wire::Empty {}) };
        let this = Arc::clone(&self);
        let removed = self.work(async move {
            let _turn = this.ending.acquire().await.map_err(|err| Status::internal(err.to_string()))?;
            this.sandboxes.remove(&id).await.map(|()| wire::Empty {}).map_err(|err| {
                log::warn!("{err}");
                error(&err)
            })
        });
        removed.await
    }

    /// Answers with the status of one sandbox. An unknown one is the error NotFound.
    pub(crate) async fn pod_sandbox_status(
        self: Arc<Self>,
        request: wire::PodSandboxStatusRequest,
    ) -> Answer<wire::PodSandboxStatusResponse> {
        let id = self.find_sandbox(&request.pod_sandbox_id)?;
        let known = match &id {
            Some(id) => self.sandboxes.get(id).map_err(|err| error(&err))?,
            None => None,
        };
        let sandbox = known.ok_or_else(|| {
            Status::not_found(format!(
                "there is no sandbox \"{:.80}\"",
                request.pod_sandbox_id.escape_debug().to_string()
            ))
        })?;
        let fault = self.sandboxes.fault(&sandbox);
        let info =
            if request.verbose { info::sandbox(&self.sandboxes, &sandbox).await } else { Default::default() };
        Ok(wire::PodSandboxStatusResponse { status: Some(answer::status(&sandbox, fault)), info })
    }

    /// Lists the sandboxes that fit the filter.
    pub(crate) async fn list_pod_sandbox(
        self: Arc<Self>,
        request: wire::ListPodSandboxRequest,
    ) -> Answer<wire::ListPodSandboxResponse> {
        let filter = request.filter.unwrap_or_default();
        // Each sandbox has a file to read and a namespace to look for, which blocks.
        let listed = tokio::task::spawn_blocking(move || self.list(&filter)).await;
        listed.unwrap_or_else(|err| Err(Status::internal(err.to_string())))
    }

    /// Lists the sandboxes that fit the filter. Unreadable records are left out with a warning.
    fn list(&self, filter: &wire::PodSandboxFilter) -> Answer<wire::ListPodSandboxResponse> {
        let listing = self.sandboxes.list().map_err(|err| error(&err))?;
        for (id, why) in listing.problems {
            log::warn!("sandbox {id} is not listed: {why}");
        }
        let state = filter.state.as_ref().map(|of| of.state);
        let wanted = listing.sandboxes.into_iter().filter(|sandbox| is_wanted(sandbox, filter));
        let items = wanted.filter_map(|sandbox| {
            let fault: Option<Fault> = self.sandboxes.fault(&sandbox);
            let fits = state.is_none_or(|state| state == answer::state(fault));
            fits.then(|| answer::item(sandbox, fault).encode_to_vec().into())
        });
        Ok(wire::ListPodSandboxResponse { items: items.collect() })
    }

    /// Answers a list call of containers or images, of which there are none.
    pub(crate) async fn no_items(self: Arc<Self>, _: wire::Empty) -> Answer<wire::Items> {
        Ok(wire::Items::default())
    }

    /// Answers a call about one container, of which there are none.
    pub(crate) async fn no_container(self: Arc<Self>, _: wire::Empty) -> Answer<wire::Empty> {
        Err(Status::not_found("there are no containers: cnimble serves pod sandboxes only"))
    }

    /// Returns the complete ID of a sandbox from its unique beginning. It returns `None` if no sandbox has it. Several
    /// are an error.
    fn find_sandbox(&self, id: &str) -> Answer<Option<String>> {
        if id.is_empty() {
            return Err(Status::invalid_argument("pod_sandbox_id is missing"));
        }
        if id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let found = self.sandboxes.ids_beginning(id).map_err(|err| error(&err))?;
        match found.as_slice() {
            [] => Ok(None),
            [found] => Ok(Some(found.clone())),
            several => {
                let why = format!("{} sandboxes have an ID that begins with {id}", several.len());
                Err(Status::invalid_argument(why))
            }
        }
    }

    /// Runs a change in a task of its own. The task goes on when the client has gone, and the server waits for it
    /// before it ends.
    async fn work<T: Send + 'static>(
        &self,
        work: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Answer<T> {
        let Ok(permit) = Arc::clone(&self.works).try_acquire_owned() else {
            return Err(Status::unavailable("the server is stopping, or has too much to do"));
        };
        let task = tokio::spawn(async move {
            let _permit = permit;
            work.await
        });
        task.await.unwrap_or_else(|err| Err(Status::internal(cut(err.to_string()))))
    }
}

/// Returns the condition `kind`, which holds unless there is a reason `why` not.
fn condition(kind: &str, why: Option<NetworkNotReady>) -> wire::RuntimeCondition {
    wire::RuntimeCondition {
        kind: kind.to_owned(),
        status: why.is_none(),
        reason: why.as_ref().map(|_| NetworkNotReady::REASON.to_owned()).unwrap_or_default(),
        message: why.map(|why| [vec![why.message], why.details].concat().join("; ")).unwrap_or_default(),
    }
}

/// Returns whether a sandbox has the beginning of an ID and the labels in the filter. It does not compare the state.
fn is_wanted(sandbox: &Sandbox, filter: &wire::PodSandboxFilter) -> bool {
    let labels = &sandbox.config.labels;
    sandbox.id.starts_with(&filter.id)
        && filter.label_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn is_unknown(err: &cnimble_pod::sandbox::SandboxError) -> bool {
    matches!(err, cnimble_pod::sandbox::SandboxError::Unknown { .. })
}
