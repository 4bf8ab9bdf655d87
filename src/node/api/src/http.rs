//! HTTP requests with limits, with or without TLS.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{ConfigBuilderExt, FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::time::timeout;

use crate::{ClientIdentity, HttpError, StartError, tame};

/// The time limit for a connection, for the beginning of an answer, and for reading a limited answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The time without traffic after which the kernel probes a connection (TCP_KEEPIDLE).
const PROBES_AFTER: Duration = Duration::from_secs(15);
/// The time between two probes.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// The number of unanswered probes after which the kernel ends the connection.
const PROBES: u32 = 4;
/// The time without traffic after which HTTP/2 asks the server for a sign of life (PING), as client-go does.
const PING_AFTER: Duration = Duration::from_secs(25);
/// The time that the server has for the answer.
const PING_LIMIT: Duration = Duration::from_secs(15);

/// The trusted authorities and the client's certificate.
#[derive(Default, PartialEq)]
pub struct Tls {
    /// The PEM certificates of authorities. `None` stands for those of the system.
    pub authorities: Option<Vec<u8>>,
    /// Trusts any server, as insecure-skip-tls-verify does.
    pub insecure: bool,
    /// The name to expect in the server's certificate instead of the URL's.
    pub server_name: Option<String>,
    /// The client's certificate and key.
    pub client: Option<ClientIdentity>,
}

/// An HTTP client with reused connections.
#[derive(Debug, Clone)]
pub struct Client(Pool<HttpsConnector<HttpConnector>, Full<Bytes>>);

/// Returns a function that makes a reason into an error about `what`.
fn tls_error(what: &str) -> impl Fn(String) -> StartError + '_ {
    move |reason| StartError::Tls { what: what.to_owned(), reason }
}

impl Client {
    /// Returns a client for this URL. The system's authorities are read only if the URL is `https` and `tls` names
    /// none.
    ///
    /// # Errors
    /// Fails if a certificate or key is unusable.
    pub fn new(url: &Uri, tls: &Tls) -> Result<Client, StartError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|err| tls_error("TLS")(err.to_string()))?;
        let config = if tls.insecure {
            config.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(Arc::clone(&provider))))
        } else if let Some(pem) = &tls.authorities {
            config.with_root_certificates(authorities(pem)?)
        } else if url.scheme_str() == Some("https") {
            config
                .with_native_roots()
                .map_err(|err| tls_error("the system's certificates")(err.to_string()))?
        } else {
            config.with_root_certificates(RootCertStore::empty())
        };
        let config = match &tls.client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let client =
                    client.certified_key(&provider).map_err(tls_error("the client's certificate"))?;
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(client)))
            }
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(ANSWER_LIMIT));
        notice_silence(&mut tcp);
        let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
        let connector = match tls.server_name.clone() {
            None => connector.enable_http1().enable_http2().wrap_connector(tcp),
            Some(name) => {
                let name = ServerName::try_from(name)
                    .map_err(|err| tls_error("tls-server-name")(err.to_string()))?;
                let resolver = FixedServerNameResolver::new(name);
                connector
                    .with_server_name_resolver(resolver)
                    .enable_http1()
                    .enable_http2()
                    .wrap_connector(tcp)
            }
        };
        // The kernel of a stopped server still acknowledges what it receives, so its probes do not suffice.
        let mut pool = Pool::builder(TokioExecutor::new());
        pool.timer(TokioTimer::new()).http2_keep_alive_interval(PING_AFTER);
        pool.http2_keep_alive_timeout(PING_LIMIT).http2_keep_alive_while_idle(true);
        Ok(Client(pool.build(connector)))
    }

    /// Sends a GET request, and waits for the beginning of the answer.
    pub async fn get(&self, url: &Uri, headers: &HeaderMap) -> Result<Response<Incoming>, HttpError> {
        self.send(Method::GET, url, headers, Vec::new()).await
    }

    /// Sends a request with a body, and waits for the beginning of the answer. Any HTTP status is `Ok`.
    ///
    /// # Errors
    /// Fails if no connection can be made, or if there is no answer within [`ANSWER_LIMIT`].
    pub async fn send(
        &self,
        method: Method,
        url: &Uri,
        headers: &HeaderMap,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, HttpError> {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = method;
        *request.uri_mut() = url.clone();
        *request.headers_mut() = headers.clone();
        let agent = HeaderValue::from_static(concat!("cnimble/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().entry(hyper::header::USER_AGENT).or_insert(agent);
        match timeout(ANSWER_LIMIT, self.0.request(request)).await {
            Err(_) => Err(HttpError::Timeout(ANSWER_LIMIT)),
            Ok(Err(err)) => Err(HttpError::Connect(reasons(&err))),
            Ok(Ok(response)) => Ok(response),
        }
    }
}

/// Makes the kernel end a connection whose peer has answered nothing for 35 seconds. A watch may be silent for minutes,
/// and Linux' own interval and count of probes would take eleven more.
fn notice_silence(tcp: &mut HttpConnector) {
    tcp.set_keepalive(Some(PROBES_AFTER));
    tcp.set_keepalive_interval(Some(PROBE_EVERY));
    tcp.set_keepalive_retries(Some(PROBES));
    // Without this, bytes that nobody acknowledges are sent again for a quarter of an hour, and no probe is sent.
    tcp.set_tcp_user_timeout(Some(PROBES_AFTER + PROBE_EVERY * PROBES));
}

/// Returns the URL without query and password, either of which may be a secret.
pub fn without_query(url: &Uri) -> String {
    shown(&url.to_string())
}

/// Returns a text without query, fragment and password. It may be no URL.
fn shown(text: &str) -> String {
    let place = text.split(['?', '#']).next().unwrap_or_default();
    match (place.split_once("://"), place.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => place.to_owned(),
    }
}

/// Returns an error with its causes, because hyper's own text says only where it happened.
fn reasons(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        let more = err.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = err.source();
    }
    text
}

/// Reads the body of an answer. Fails if it has more than `limit` bytes, or takes longer than [`ANSWER_LIMIT`].
pub async fn body(mut body: Incoming, limit: usize) -> Result<Vec<u8>, HttpError> {
    let all = async {
        let mut bytes = Vec::new();
        while let Some(data) = piece(&mut body, ANSWER_LIMIT).await? {
            if bytes.len() + data.len() > limit {
                return Err(HttpError::TooLarge(limit));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    };
    timeout(ANSWER_LIMIT, all).await.unwrap_or(Err(HttpError::Timeout(ANSWER_LIMIT)))
}

/// Waits for the next piece of a body, for at most `limit`. Returns `None` at its end.
pub async fn piece(body: &mut Incoming, limit: Duration) -> Result<Option<Bytes>, HttpError> {
    loop {
        match timeout(limit, body.frame()).await {
            Err(_) => return Err(HttpError::Timeout(limit)),
            Ok(None) => return Ok(None),
            Ok(Some(Err(err))) => return Err(HttpError::Connect(reasons(&err))),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Returns how long a busy server (status 429) wants the client to wait, at least one second. It returns `None` for
/// another status, and without a number of seconds in the header.
pub fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER).filter(|_| response.status() == 429)?;
    seconds.to_str().ok()?.parse().ok().map(|seconds: u64| Duration::from_secs(seconds.max(1)))
}

/// Reads a response with a failure, and returns it as an error. Its text is the message of a Kubernetes Status, or else
/// the beginning of the body.
pub async fn refused(response: Response<Incoming>) -> HttpError {
    let status = response.status().as_u16();
    let bytes = body(response.into_body(), 1 << 20).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let said = serde_json::from_str::<serde_json::Value>(&text).ok();
    let message = said.as_ref().and_then(|value| value.get("message")?.as_str()).unwrap_or(&text);
    HttpError::Status { status, message: tame(message) }
}

/// Parses certificates in PEM. Fails without any.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|err| err.to_string())?;
    if all.is_empty() { Err("there is no certificate in it".to_owned()) } else { Ok(all) }
}

/// Returns a store of trusted authorities from PEM.
fn authorities(pem: &[u8]) -> Result<RootCertStore, StartError> {
    let wrong = tls_error("the certificate authority");
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem).map_err(&wrong)? {
        store.add(certificate).map_err(|err| wrong(err.to_string()))?;
    }
    Ok(store)
}

/// Implements insecure-skip-tls-verify: any server is accepted. The signatures of the handshake are still checked.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Parses an `http` or `https` URL. Refuses one with a password, which would show up in messages.
pub fn parse_url(text: &str) -> Result<Uri, StartError> {
    let url: Uri =
        text.parse().map_err(|err: hyper::http::uri::InvalidUri| url_error(text, &err.to_string()))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err(url_error(text, "it needs a scheme and a host"));
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(url_error(text, "a name and password belong into a header"));
    }
    Ok(url)
}

fn url_error(url: &str, reason: &str) -> StartError {
    StartError::Url { url: shown(url), reason: reason.to_owned() }
}
