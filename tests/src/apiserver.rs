//! A stand-in for a Kubernetes API server, for pods only. It has lists in pages, watches as chunked streams of JSON lines
//! with bookmarks, and 410 Gone. It accepts the writes of a kubelet.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Ns;
use crate::http::{Handler, Request, answer, serve, serve_at};

#[derive(Debug, Default)]
struct Cluster {
    version: u64,
    /// The server has forgotten events before this version.
    oldest: u64,
    /// Watches from before this are told so.
    forgot: u64,
    pods: BTreeMap<String, Value>,
    /// Version, and the event.
    log: Vec<(u64, Value)>,
    /// Watches of an earlier generation are cut off.
    generation: u64,
    /// Answer everything with this status instead.
    failure: Option<u16>,
    token: Option<String>,
    requests: Vec<Request>,
    /// How many pods there are in one page of a list.
    page: usize,
    /// The collection's path, such as `/api/v1/pods`.
    path: &'static str,
}

/// A stand-in for kube-apiserver, as far as `/api/v1/pods` goes, or `/api/v1/nodes`.
#[derive(Debug, Clone)]
pub struct ApiServer {
    address: SocketAddr,
    shared: Arc<(Mutex<Cluster>, Condvar)>,
}

/// How many pods there are in one page of a list, as a rule.
const PAGE: usize = 2;

impl ApiServer {
    /// Starts one without pods.
    pub fn start() -> Self {
        Self::of("/api/v1/pods", serve)
    }

    /// Starts one without nodes, at this address of a namespace.
    pub fn of_nodes(ns: &Ns, address: &str) -> Self {
        let address: SocketAddr = address.parse().unwrap();
        Self::of("/api/v1/nodes", |each| ns.within(|| serve_at(address, each)))
    }

    fn of(path: &'static str, serve: impl FnOnce(Handler) -> SocketAddr) -> Self {
        let cluster = Cluster { version: 100, page: PAGE, path, ..Cluster::default() };
        let shared = Arc::new((Mutex::new(cluster), Condvar::new()));
        let state = Arc::clone(&shared);
        let address = serve(Box::new(move |request, stream| handle(&state, &request, &stream)));
        ApiServer { address, shared }
    }

    fn change(&self) -> MutexGuard<'_, Cluster> {
        self.shared.1.notify_all();
        self.shared.0.lock().unwrap()
    }

    /// The address of the server.
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
    pub fn put(&self, pod: Value) {
        self.change().put(pod);
    }

    /// The same for many, at one stroke.
    pub fn put_all(&self, pods: impl IntoIterator<Item = Value>) {
        let mut cluster = self.change();
        pods.into_iter().for_each(|pod| cluster.put(pod));
    }

    /// A pod as it is now.
    pub fn pod(&self, key: &str) -> Option<Value> {
        self.change().pods.get(key).cloned()
    }

    /// Puts so many pods into one page of a list.
    pub fn page(&self, pods: usize) {
        self.change().page = pods;
    }

    /// Removes a pod, by `NAMESPACE/NAME`.
    pub fn delete(&self, key: &str) {
        self.change().delete(key);
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

    /// Forgets all that has happened, and says so to watches that are there.
    pub fn forget(&self) {
        let mut cluster = self.change();
        cluster.version += 1;
        (cluster.oldest, cluster.forgot) = (cluster.version, cluster.version);
        cluster.log.clear();
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

impl Cluster {
    fn put(&mut self, mut pod: Value) {
        self.version += 1;
        let meta = &mut pod["metadata"];
        meta["resourceVersion"] = json!(self.version.to_string());
        if meta["namespace"].is_null() {
            meta["namespace"] = json!("default");
        }
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("uid-{}", meta["name"].as_str().unwrap()));
        }
        let key = format!("{}/{}", meta["namespace"].as_str().unwrap(), meta["name"].as_str().unwrap());
        let known = self.pods.insert(key, pod.clone()).is_some();
        let kind = if known { "MODIFIED" } else { "ADDED" };
        self.log.push((self.version, json!({"type": kind, "object": pod})));
    }

    fn delete(&mut self, key: &str) {
        self.version += 1;
        let mut pod = self.pods.remove(key).unwrap();
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.log.push((self.version, json!({"type": "DELETED", "object": pod})));
    }

    /// PATCH of a status, and DELETE, as far as a kubelet uses them: status and answer.
    fn write(&mut self, request: &Request) -> (u16, Value) {
        let way: Vec<&str> = request.target.split('/').skip(1).collect();
        let (key, sub) = match way.as_slice() {
            ["api", "v1", "namespaces", namespace, "pods", name, sub @ ..] => {
                (format!("{namespace}/{name}"), sub)
            }
            _ => return (404, status(404, "NotFound", "it says NotFound")),
        };
        let Some(mut pod) = self.pods.get(&key).cloned() else {
            return (404, status(404, "NotFound", "it says NotFound"));
        };
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let kind = request.headers.get("content-type").map(String::as_str);
        let uid = match request.method.as_str() {
            "PATCH" if sub == ["status"] && kind == Some("application/strategic-merge-patch+json") => {
                &body["metadata"]["uid"]
            }
            "DELETE" if sub.is_empty() => &body["preconditions"]["uid"],
            _ => return (405, status(405, "MethodNotAllowed", "it says MethodNotAllowed")),
        };
        if *uid != pod["metadata"]["uid"] {
            return (409, status(409, "Conflict", "Precondition failed: UID in precondition"));
        }
        if request.method == "DELETE" {
            assert_eq!(body["gracePeriodSeconds"], 0);
            self.delete(&key);
            return (200, pod);
        }
        for (field, value) in body["status"].as_object().unwrap() {
            // Lists are merged by their keys; here nobody else writes.
            let is_value = |one: &&Value| one.get("$patch").is_none();
            let list = value.as_array().map(|list| list.iter().filter(is_value).cloned().collect());
            pod["status"][field] = list.map_or_else(|| value.clone(), Value::Array);
        }
        self.put(pod.clone());
        (200, pod)
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
    if request.method != "GET" {
        let (code, object) = cluster.write(request);
        shared.1.notify_all();
        return answer(stream, code, json, object.to_string().as_bytes());
    }
    if request.target.split('?').next() != Some(cluster.path) {
        return refuse(404, "NotFound");
    }
    let node = request
        .query("fieldSelector")
        .and_then(|text| text.strip_prefix("spec.nodeName%3D"))
        .map(str::to_owned);
    let ours = |pod: &Value| node.is_none() || pod["spec"]["nodeName"].as_str() == node.as_deref();
    if request.query("watch") != Some("true") {
        let from: usize = request.query("continue").map_or(0, |text| text.parse().unwrap());
        let size = cluster.page;
        // Items of a list have neither kind nor apiVersion.
        let mut items: Vec<&Value> =
            cluster.pods.values().filter(|pod| ours(pod)).skip(from).take(size + 1).collect();
        let more = if items.len() > size { (from + size).to_string() } else { String::new() };
        items.truncate(size);
        let meta = json!({"resourceVersion": cluster.version.to_string(), "continue": more});
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items});
        return answer(stream, 200, json, list.to_string().as_bytes());
    }
    let mut seen: u64 = request.query("resourceVersion").unwrap().parse().unwrap();
    let generation = cluster.generation;
    let mut writer = stream;
    // A connection has one request: a client that takes this one for another would see it end.
    let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{json}\r\n");
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
        if seen < cluster.forgot {
            send(&json!({"type": "ERROR", "object": status(410, "Expired", "too old resource version")}));
            return;
        }
        if cluster.generation != generation {
            // Without the chunk that ends it: as if the server had died.
            return;
        }
        let news: Vec<(u64, Value)> = cluster
            .log
            .iter()
            .skip(cluster.log.partition_point(|(version, _)| *version <= seen))
            .cloned()
            .collect();
        // Others go on meanwhile.
        let head = (cluster.generation, cluster.log.last().map(|(version, _)| *version));
        drop(cluster);
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
        cluster = shared.0.lock().unwrap();
        if head == (cluster.generation, cluster.log.last().map(|(version, _)| *version)) {
            cluster = shared.1.wait_timeout(cluster, Duration::from_millis(50)).unwrap().0;
        }
    }
}
