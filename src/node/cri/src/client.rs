//! A client of CRI's runtime service.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::answer::{self, Sandbox, SandboxStatus, Version};
use crate::clean::clean;
use crate::error::{CriError, innermost};
use crate::{PodConfig, wire};

/// The time limit for connecting.
const CONNECT: Duration = Duration::from_secs(5);

/// The time limit for a question. The kubelet allows two minutes for any call.
const QUERY: Duration = Duration::from_secs(20);

/// The time limit for making or ending a sandbox: twice the kubelet's two minutes.
pub const WORK_LIMIT: Duration = Duration::from_secs(240);

/// The largest answer in bytes. It has room for 20,000 sandboxes.
const MAX_ANSWER: usize = 8 << 20;

const MAX_HEADERS: u32 = 64 << 10;

/// A connection to a container runtime.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    grpc: Grpc<Channel>,
    version: Version,
}

macro_rules! method {
    ($name:literal) => {
        ($name, PathAndQuery::from_static(concat!("/runtime.v1.RuntimeService/", $name)))
    };
}

impl Client {
    /// Connects, and asks for the version, to be sure that a CRI runtime answers.
    ///
    /// # Errors
    /// Fails with [`CriError::NoSocket`] if there is no socket, and with [`CriError::NotCri`] if another program
    /// answers.
    pub async fn connect(socket: &Path) -> Result<Client, CriError> {
        let path = std::path::absolute(socket).map_err(|err| CriError::connect(socket, err.to_string()))?;
        let path =
            path.to_str().ok_or_else(|| CriError::connect(socket, "its path is not UTF-8".to_owned()))?;
        let path = path.to_owned();
        // This connection is only for its error, which is the system's own.
        let reached = limited(socket, "connect", CONNECT, tokio::net::UnixStream::connect(&path)).await?;
        reached.map_err(|err| match err.kind() {
            std::io::ErrorKind::NotFound => CriError::NoSocket { tried: vec![socket.to_owned()] },
            _ => CriError::connect(socket, clean(&err.to_string())),
        })?;
        let endpoint = Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|err| CriError::connect(socket, innermost(&err)))?;
        let endpoint = endpoint.connect_timeout(CONNECT).http2_max_header_list_size(MAX_HEADERS);
        let channel = limited(socket, "connect", CONNECT, endpoint.connect()).await?;
        let channel = channel.map_err(|err| CriError::not_cri(socket, innermost(&err)))?;
        let grpc = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
        let mut client = Client { socket: socket.to_owned(), grpc, version: Version::default() };
        client.version = client.ask_version().await?;
        Ok(client)
    }

    /// Returns the version that the runtime has reported when the client connected.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Returns the path of the runtime's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks for the version. A runtime without a name is refused.
    async fn ask_version(&mut self) -> Result<Version, CriError> {
        let answer = self.call(method!("Version"), wire::VersionRequest {}, QUERY).await;
        let answer: wire::VersionResponse = answer.map_err(|err| match err {
            CriError::Unimplemented { .. } => CriError::not_cri(
                &self.socket,
                "it speaks gRPC, but has no runtime.v1.RuntimeService (is CRI switched off there, or the runtime old?)"
                    .to_owned(),
            ),
            err => err,
        })?;
        if answer.runtime_name.is_empty() {
            Err(CriError::not_cri(&self.socket, "it doesn't tell its name".to_owned()))
        } else {
            Ok(Version {
                name: clean(&answer.runtime_name),
                version: clean(&answer.runtime_version),
                api: clean(&answer.runtime_api_version),
            })
        }
    }

    /// Returns the runtime's conditions, and what it reports about its networks.
    ///
    /// # Errors
    /// Fails if the runtime does not answer in time, or refuses the call.
    pub async fn status(&self) -> Result<answer::Status, CriError> {
        let answer = self.call(method!("Status"), wire::StatusRequest { verbose: true }, QUERY).await?;
        Ok(answer::status(answer))
    }

    /// Lists all sandboxes in any state, sorted by pod.
    ///
    /// # Errors
    /// Fails if the runtime does not answer in time, and if the answer has an ID that no sandbox can have.
    pub async fn sandboxes(&self) -> Result<Vec<Sandbox>, CriError> {
        let answer =
            self.call(method!("ListPodSandbox"), wire::ListPodSandboxRequest::default(), QUERY).await?;
        answer::sandboxes(&answer)
    }

    /// Returns the status of one sandbox with its namespace and process, as far as the runtime reports them.
    ///
    /// # Errors
    /// Fails if there is no such sandbox, if the runtime does not answer in time, or if it refuses the call.
    pub async fn sandbox(&self, id: &str) -> Result<SandboxStatus, CriError> {
        let request = wire::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        answer::sandbox(self.call(method!("PodSandboxStatus"), request, QUERY).await?)
    }

    /// Makes a sandbox with the runtime's `handler`, which is empty for the default one. Returns the sandbox's ID.
    pub async fn run(&self, config: PodConfig, handler: &str) -> Result<String, CriError> {
        let request =
            wire::RunPodSandboxRequest { config: Some(config.into()), runtime_handler: handler.to_owned() };
        let answer: wire::RunPodSandboxResponse =
            self.call(method!("RunPodSandbox"), request, WORK_LIMIT).await?;
        answer::id("RunPodSandbox", answer.pod_sandbox_id)
    }

    /// Stops a sandbox and takes its network down. May be repeated.
    pub async fn stop(&self, id: &str) -> Result<(), CriError> {
        let request = wire::PodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let _: wire::Empty = self.call(method!("StopPodSandbox"), request, WORK_LIMIT).await?;
        Ok(())
    }

    /// Removes a sandbox. May be repeated.
    ///
    /// # Errors
    /// Fails if the runtime does not answer in time, or refuses the call.
    pub async fn remove(&self, id: &str) -> Result<(), CriError> {
        let request = wire::PodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let _: wire::Empty = self.call(method!("RemovePodSandbox"), request, WORK_LIMIT).await?;
        Ok(())
    }

    /// Tells the runtime the addresses of this node's pods (UpdateRuntimeConfig), as a list with commas.
    pub async fn set_pod_cidr(&self, cidr: &str) -> Result<(), CriError> {
        let network_config = Some(wire::NetworkConfig { pod_cidr: cidr.to_owned() });
        let runtime_config = Some(wire::RuntimeConfig { network_config });
        let request = wire::UpdateRuntimeConfigRequest { runtime_config };
        let _: wire::Empty = self.call(method!("UpdateRuntimeConfig"), request, QUERY).await?;
        Ok(())
    }

    /// Makes any call with one answer, by its path, such as `/runtime.v1.ImageService/ListImages`. [`wire`] has
    /// messages.
    pub async fn ask<Q, A>(&self, path: &'static str, request: Q) -> Result<A, CriError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.call((name, PathAndQuery::from_static(path)), request, WORK_LIMIT).await
    }

    async fn call<Q, A>(
        &self,
        (name, path): (&'static str, PathAndQuery),
        request: Q,
        limit: Duration,
    ) -> Result<A, CriError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        let mut request = Request::new(request);
        // The runtime gets a slightly longer limit, so that the client's error comes first.
        request.set_timeout(limit + CONNECT);
        let call = async {
            grpc.ready().await.map_err(|err| Status::from_error(err.into()))?;
            grpc.unary(request, path, ProstCodec::default()).await
        };
        let outcome = limited(&self.socket, name, limit, call).await?;
        let answer = outcome.map_err(|status| match status.code() {
            Code::DeadlineExceeded => self.late(name, limit),
            _ => CriError::from_status(&self.socket, name, &status),
        })?;
        Ok(answer.into_inner())
    }

    fn late(&self, method: &'static str, limit: Duration) -> CriError {
        CriError::Late { socket: self.socket.clone(), method, limit }
    }
}

/// Limits the time of a call.
async fn limited<T>(
    socket: &Path,
    method: &'static str,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, CriError> {
    let outcome = tokio::time::timeout(limit, work).await;
    outcome.map_err(|_| CriError::Late { socket: socket.to_owned(), method, limit })
}

/// Connects and runs `work` for a caller without an async runtime. This blocks. It uses a new thread, because the
/// caller's own may belong to an async runtime.
pub fn blocking<T, F>(socket: &Path, work: impl FnOnce(Client) -> F + Send) -> Result<T, CriError>
where
    T: Send,
    F: Future<Output = Result<T, CriError>>,
{
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|err| CriError::connect(socket, err.to_string()))?;
            runtime.block_on(async { work(Client::connect(socket).await?).await })
        });
        thread.join()
    });
    outcome.unwrap_or_else(|_| Err(CriError::connect(socket, "the thread that asks it has died".to_owned())))
}
