//! Small HTTP servers on loopback: one that answers with a text, and one that speaks like a
//! Kubernetes API server about pods: lists in pages, watches as chunked streams of JSON lines,
//! bookmarks, 410 Gone.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

/// A request without a body.
#[derive(Debug, Clone)]
pub struct Request {
    /// Path and query.
    pub target: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Request> {
        let mut lines = BufReader::new(stream).lines();
        let target = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
        let mut headers = BTreeMap::new();
        for line in lines {
            let line = line.ok()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        Some(Request { target, headers })
    }

    /// A parameter of the query.
    pub fn query(&self, key: &str) -> Option<&str> {
        let query = self.target.split_once('?')?.1;
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value)
    }
}

/// Serves each connection with one request in a thread of its own, until the test ends.
fn serve(handler: impl Fn(Request, TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handler = Arc::new(handler);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let handler = Arc::clone(&handler);
            std::thread::spawn(move || {
                let stream = stream.unwrap();
                if let Some(request) = Request::read(&stream) {
                    handler(request, stream);
                }
            });
        }
    });
    address
}

/// A whole answer, after which the connection is closed. That the client has gone is fine.
fn answer(mut stream: &TcpStream, status: u16, headers: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

/// What a [`TextServer`] says.
#[derive(Debug, Clone)]
pub struct Text {
    /// The status.
    pub status: u16,
    /// Whole lines, `NAME: VALUE\r\n`.
    pub headers: String,
    /// The body.
    pub body: Vec<u8>,
}

/// Answers every request with the same text; with 304 when it has an ETag that the client knows.
#[derive(Debug)]
pub struct TextServer {
    address: SocketAddr,
    shared: Arc<Mutex<(Text, Vec<Request>)>>,
}

impl TextServer {
    /// Starts one.
    pub fn start(body: &str) -> Self {
        let text = Text { status: 200, headers: String::new(), body: body.as_bytes().to_vec() };
        let shared = Arc::new(Mutex::new((text, Vec::new())));
        let state = Arc::clone(&shared);
        let address = serve(move |request, stream| {
            let mut state = state.lock().unwrap();
            let known = request.headers.get("if-none-match").cloned();
            state.1.push(request);
            let text = state.0.clone();
            drop(state);
            let known = known.is_some_and(|tag| text.headers.contains(&format!("ETag: {tag}\r\n")));
            if known {
                answer(&stream, 304, "", b"");
            } else {
                answer(&stream, text.status, &text.headers, &text.body);
            }
        });
        TextServer { address, shared }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What to ask it for.
    pub fn url(&self) -> String {
        format!("http://{}/pods", self.address)
    }

    /// Says something else from now on.
    pub fn say(&self, status: u16, headers: &str, body: &[u8]) {
        self.shared.lock().unwrap().0 = Text { status, headers: headers.to_owned(), body: body.to_vec() };
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().unwrap().1.clone()
    }
}

#[derive(Debug, Default)]
struct Cluster {
    version: u64,
    /// What happened before this is forgotten.
    oldest: u64,
    pods: BTreeMap<String, Value>,
    /// Version, and the event.
    log: Vec<(u64, Value)>,
    /// Watches of an earlier generation are cut off.
    generation: u64,
    /// Answer everything with this status instead.
    failure: Option<u16>,
    token: Option<String>,
    requests: Vec<Request>,
}

/// A stand-in for kube-apiserver, as far as `/api/v1/pods` goes.
#[derive(Debug, Clone)]
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<(Mutex<Cluster>, Condvar)>,
}

/// How many pods there are in one page of a list.
const PAGE: usize = 2;

impl ApiServer {
    /// Starts one without pods.
    pub fn start() -> Self {
        let shared = Arc::new((Mutex::new(Cluster { version: 100, ..Cluster::default() }), Condvar::new()));
        let state = Arc::clone(&shared);
        let address = serve(move |request, stream| handle(&state, &request, &stream));
        ApiServer { address, shared }
    }

    fn change(&self) -> MutexGuard<'_, Cluster> {
        self.shared.1.notify_all();
        self.shared.0.lock().unwrap()
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes a kubeconfig that leads here.
    pub fn kubeconfig(&self, dir: &Path, token: Option<&str>) -> PathBuf {
        let path = dir.join("kubeconfig");
        let user = token.map_or(json!({}), |token| json!({"token": token}));
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "u", "user": user}]});
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Adds a pod, or changes it. Without a UID it gets its name as one.
    pub fn put(&self, mut pod: Value) {
        let mut cluster = self.change();
        cluster.version += 1;
        let version = cluster.version;
        let meta = &mut pod["metadata"];
        meta["resourceVersion"] = json!(version.to_string());
        if meta["namespace"].is_null() {
            meta["namespace"] = json!("default");
        }
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("uid-{}", meta["name"].as_str().unwrap()));
        }
        let key = format!("{}/{}", meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
        let known = cluster.pods.insert(key, pod.clone()).is_some();
        let kind = if known { "MODIFIED" } else { "ADDED" };
        cluster.log.push((version, json!({"type": kind, "object": pod})));
    }

    /// Removes a pod, by `NAMESPACE/NAME`.
    pub fn delete(&self, key: &str) {
        let mut cluster = self.change();
        cluster.version += 1;
        let version = cluster.version;
        let mut pod = cluster.pods.remove(key).unwrap();
        pod["metadata"]["resourceVersion"] = json!(version.to_string());
        cluster.log.push((version, json!({"type": "DELETED", "object": pod})));
    }

    /// Tells watchers the current version.
    pub fn bookmark(&self) {
        let mut cluster = self.change();
        cluster.version += 1;
        let version = cluster.version;
        let object =
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string()}});
        cluster.log.push((version, json!({"type": "BOOKMARK", "object": object})));
    }

    /// Sends watchers anything at all.
    pub fn event(&self, event: Value) {
        let mut cluster = self.change();
        cluster.version += 1;
        let version = cluster.version;
        cluster.log.push((version, event));
    }

    /// Cuts all watches off.
    pub fn disconnect(&self) {
        self.change().generation += 1;
    }

    /// Forgets all that has happened, and cuts watches off: they must list again.
    pub fn compact(&self) {
        let mut cluster = self.change();
        cluster.version += 1;
        cluster.oldest = cluster.version;
        cluster.log.clear();
        cluster.generation += 1;
    }

    /// Answers every request with this status from now on, or properly again.
    pub fn fail(&self, status: Option<u16>) {
        let mut cluster = self.change();
        cluster.failure = status;
        cluster.generation += 1;
    }

    /// Answers 401 without this token.
    pub fn require(&self, token: &str) {
        self.change().token = Some(token.to_owned());
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.change().requests.clone()
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn handle(shared: &(Mutex<Cluster>, Condvar), request: &Request, stream: &TcpStream) {
    let json = "Content-Type: application/json\r\n";
    let mut cluster = shared.0.lock().unwrap();
    cluster.requests.push(request.clone());
    let refuse = |code: u16, reason: &str| {
        answer(stream, code, json, status(code, reason, &format!("it says {reason}")).to_string().as_bytes());
    };
    if let Some(code) = cluster.failure {
        return refuse(code, "InternalError");
    }
    let wanted = cluster.token.as_ref().map(|token| format!("Bearer {token}"));
    if wanted.is_some() && wanted.as_ref() != request.headers.get("authorization") {
        return refuse(401, "Unauthorized");
    }
    if request.target.split('?').next() != Some("/api/v1/pods") {
        return refuse(404, "NotFound");
    }
    let node = request
        .query("fieldSelector")
        .and_then(|text| text.strip_prefix("spec.nodeName%3D"))
        .map(str::to_owned);
    let ours = |pod: &Value| node.is_none() || pod["spec"]["nodeName"].as_str() == node.as_deref();
    if request.query("watch") != Some("true") {
        let from: usize = request.query("continue").map_or(0, |text| text.parse().unwrap());
        let all: Vec<Value> = cluster.pods.values().filter(|pod| ours(pod)).cloned().collect();
        let more = if all.len() > from + PAGE { (from + PAGE).to_string() } else { String::new() };
        // Items of a list have neither kind nor apiVersion.
        let items: Vec<Value> = all.into_iter().skip(from).take(PAGE).collect();
        let meta = json!({"resourceVersion": cluster.version.to_string(), "continue": more});
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items});
        return answer(stream, 200, json, list.to_string().as_bytes());
    }
    let mut seen: u64 = request.query("resourceVersion").unwrap().parse().unwrap();
    let generation = cluster.generation;
    let mut writer = stream;
    let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{json}\r\n");
    if writer.write_all(head.as_bytes()).is_err() {
        return;
    }
    let mut send = |event: &Value| {
        // In two chunks: an event need not be one.
        let line = format!("{event}\n");
        let (a, b) = line.split_at(line.len() / 2);
        [a, b].iter().all(|part| {
            writer
                .write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes())
                .and_then(|()| writer.flush())
                .is_ok()
        })
    };
    if seen < cluster.oldest {
        let gone = status(410, "Expired", "too old resource version");
        send(&json!({"type": "ERROR", "object": gone}));
        let _ = (&*stream).write_all(b"0\r\n\r\n");
        return;
    }
    loop {
        if cluster.generation != generation {
            // Without the chunk that ends it: as if the server had died.
            return;
        }
        let news: Vec<(u64, Value)> =
            cluster.log.iter().filter(|(version, _)| *version > seen).cloned().collect();
        for (version, event) in news {
            seen = version;
            if (event["type"] == "BOOKMARK"
                || event["type"] == "ERROR"
                || event["type"] == "ODD"
                || ours(&event["object"]))
                && !send(&event)
            {
                return;
            }
        }
        cluster = shared.1.wait_timeout(cluster, Duration::from_millis(50)).unwrap().0;
    }
}
