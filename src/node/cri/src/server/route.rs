//! Leads a request's path to the call.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

use crate::server::{CALL, CALLS, MESSAGE, Service};

impl Service {
    /// Answers one request, within the client's time limit or [`CALL`], whichever is shorter.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let Ok(_permit) = Arc::clone(&self.calls).try_acquire_owned() else {
            let why = format!("{CALLS} calls are under way, and there may be no more at once");
            return Ok(Status::resource_exhausted(why).into_http());
        };
        let limit = timeout(request.headers()).map_or(CALL, |asked| asked.min(CALL));
        let answer = tokio::time::timeout(limit, self.route(request)).await;
        Ok(answer.unwrap_or_else(|_| {
            Status::deadline_exceeded(format!("it was not done within {limit:?}")).into_http()
        }))
    }

    async fn route(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return unknown(&path);
        };
        // Calls a method of `Service` that takes one message and returns one.
        macro_rules! call {
            ($name:ident) => {{
                unary(request, move |message| {
                    let this = Arc::clone(&self);
                    async move { this.$name(message).await }
                })
                .await
            }};
        }
        match (service, method) {
            ("runtime.v1.RuntimeService", "Version") => call!(version),
            ("runtime.v1.RuntimeService", "Status") => call!(status),
            ("runtime.v1.RuntimeService", "RuntimeConfig") => call!(runtime_config),
            ("runtime.v1.RuntimeService", "UpdateRuntimeConfig") => call!(update_runtime_config),
            ("runtime.v1.RuntimeService", "RunPodSandbox") => call!(run_pod_sandbox),
            ("runtime.v1.RuntimeService", "StopPodSandbox") => call!(stop_pod_sandbox),
            ("runtime.v1.RuntimeService", "RemovePodSandbox") => call!(remove_pod_sandbox),
            ("runtime.v1.RuntimeService", "PodSandboxStatus") => call!(pod_sandbox_status),
            ("runtime.v1.RuntimeService", "ListPodSandbox") => call!(list_pod_sandbox),
            ("runtime.v1.RuntimeService", "ListContainers" | "ListContainerStats")
            | ("runtime.v1.ImageService", "ListImages" | "ImageFsInfo") => call!(no_items),
            ("runtime.v1.RuntimeService", "ContainerStatus" | "ContainerStats") => call!(no_container),
            ("runtime.v1.RuntimeService" | "runtime.v1.ImageService", _) => Status::unimplemented(format!(
                "{method:.64}: cnimble serves pod sandboxes only; it has no containers, no images and no statistics"
            ))
            .into_http(),
            _ => unknown(&path),
        }
    }
}

/// Returns the error for a path of no known service.
fn unknown(path: &str) -> Response<Body> {
    let why = format!("{path:.128}: there are runtime.v1.RuntimeService and runtime.v1.ImageService");
    Status::unimplemented(why).into_http()
}

/// Decodes the message of a request, makes the call, and encodes its answer.
async fn unary<Q, A, F, T>(request: Request<Incoming>, call: F) -> Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
    F: FnMut(Q) -> T,
    T: Future<Output = Result<A, Status>> + Send + 'static,
{
    let grpc = Grpc::new(ProstCodec::<A, Q>::default());
    grpc.max_decoding_message_size(MESSAGE).unary(Call(call), request).await
}

/// A call as tonic needs it.
struct Call<F>(F);

impl<Q, A, F, T> UnaryService<Q> for Call<F>
where
    F: FnMut(Q) -> T,
    T: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<A>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(tonic::Response::new) })
    }
}

/// Returns the client's time limit from `grpc-timeout`: up to eight digits and a unit. It returns `None` without a
/// valid one.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_timeout_is_read_and_nonsense_is_none() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            timeout(&headers)
        };
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(read("15m"), Some(Duration::from_millis(15)));
        for nonsense in ["", "S", "1", "1x", "-1S", "999999999S", "1é"] {
            assert_eq!(timeout(&HeaderMap::new()).or_else(|| read_bytes(nonsense)), None, "{nonsense}");
        }
    }

    fn read_bytes(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", http::HeaderValue::from_bytes(text.as_bytes()).unwrap());
        timeout(&headers)
    }
}
