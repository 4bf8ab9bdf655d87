//! A stand-in for a Kubernetes API server with custom resources. It checks versions and preconditions, keeps objects with
//! finalizers, and answers lists and watches. It can be killed, paused, backed up and restored.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_tests::Ns;
use cnimble_tests::http::{Request, answer, serve_at};

const GROUP: &str = "/apis/ipam.cnimble.dev/v1alpha1/";
/// Objects in one page of a list.
const PAGE: usize = 50;

/// The plural of the kind, and the object's name.
type Key = (String, String);

/// The content of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backup {
    version: u64,
    objects: BTreeMap<Key, Value>,
}

impl Backup {
    /// Lets the restored server begin this far behind, as `--bump-revision` does.
    pub(crate) fn bump(&mut self, by: u64) {
        self.version += by;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Life {
    #[default]
    Serving,
    /// A request waits until the server serves again.
    Paused,
    /// Connections end at once.
    Dead,
    /// No custom resource is defined.
    Bare,
    /// Watches end at once.
    Brief,
}

#[derive(Debug, Default)]
struct State {
    content: Backup,
    /// Versions and events since `oldest`.
    log: Vec<(u64, String, Value)>,
    /// The version and the later pages of lists that clients read, by the token of the next page.
    rests: BTreeMap<String, (u64, Vec<String>)>,
    /// The number of tokens so far.
    lists: usize,
    oldest: u64,
    life: Life,
    /// Watches of an earlier generation are cut off.
    generation: u64,
    writes: usize,
    /// The number of requests by their kind, such as `LIST blocks`.
    requests: BTreeMap<String, usize>,
    /// The methods of requests that are refused once, and the statuses.
    refusals: Vec<(&'static str, u16)>,
    /// The kind of requests that the account has no right to.
    forbidden: Option<&'static str>,
}

/// A server at an address of a namespace.
#[derive(Debug, Clone)]
pub(crate) struct CustomServer {
    address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl CustomServer {
    /// Starts a server without objects.
    pub(crate) fn start(ns: &Ns, address: &str) -> Self {
        let content = Backup { version: 1000, ..Backup::default() };
        let shared =
            Arc::new((Mutex::new(State { content, oldest: 1000, ..State::default() }), Condvar::new()));
        let state = Arc::clone(&shared);
        let each = Box::new(move |request: Request, stream: TcpStream| handle(&state, &request, &stream));
        let address = ns.within(|| serve_at(address.parse().unwrap(), each));
        CustomServer { address, shared }
    }

    fn change(&self) -> MutexGuard<'_, State> {
        self.shared.1.notify_all();
        self.shared.0.lock().unwrap()
    }

    /// Writes a kubeconfig that leads here.
    pub(crate) fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let path = dir.join("kubeconfig");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "u", "user": {}}]});
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Ends all connections, and accepts none.
    pub(crate) fn kill(&self) {
        let mut state = self.change();
        (state.life, state.generation) = (Life::Dead, state.generation + 1);
    }

    /// Serves again, with the objects as they were.
    pub(crate) fn revive(&self) {
        self.change().life = Life::Serving;
    }

    /// Answers as without the custom resource definitions.
    pub(crate) fn undefine(&self) {
        self.change().life = Life::Bare;
    }

    /// Ends all watches, and each later one at once.
    pub(crate) fn end_watches(&self) {
        self.change().life = Life::Brief;
    }

    /// Lets requests wait, as a stopped process does.
    pub(crate) fn pause(&self) {
        self.change().life = Life::Paused;
    }

    /// Refuses the next request of each method, and tells when to send it again.
    pub(crate) fn refuse(&self, status: u16, methods: &[&'static str]) {
        self.change().refusals = methods.iter().map(|method| (*method, status)).collect();
    }

    /// Refuses each request of this kind, such as `WATCH ippools`, for lack of a right.
    pub(crate) fn forbid(&self, kind: &'static str) {
        self.change().forbidden = Some(kind);
    }

    /// Whether a request is still to be refused.
    pub(crate) fn refuses(&self) -> bool {
        !self.change().refusals.is_empty()
    }

    /// Returns the present content.
    pub(crate) fn backup(&self) -> Backup {
        self.change().content.clone()
    }

    /// Replaces the content, and ends all watches, as a restore of the store behind the server does.
    pub(crate) fn restore(&self, backup: &Backup) {
        let mut state = self.change();
        state.content = backup.clone();
        state.log.clear();
        state.rests.clear();
        (state.oldest, state.generation, state.life) = (backup.version, state.generation + 1, Life::Serving);
    }

    /// Returns all objects of a kind, by its plural.
    pub(crate) fn objects(&self, plural: &str) -> Vec<Value> {
        let state = self.change();
        let of_kind = state.content.objects.iter().filter(|((kind, _), _)| kind == plural);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    /// Writes an object without a check of its version.
    pub(crate) fn put(&self, plural: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut state = self.change();
        let kind = if state.content.objects.contains_key(&(plural.to_owned(), name.clone())) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        state.write((plural.to_owned(), name), object, kind);
    }

    /// Removes an object, whatever its finalizers are.
    pub(crate) fn remove(&self, plural: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.change().write((plural.to_owned(), name), object, "DELETED");
    }

    /// Returns the number of successful writes.
    pub(crate) fn writes(&self) -> usize {
        self.change().writes
    }

    /// Returns the number of requests by their kind since the last call.
    pub(crate) fn requests(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.change().requests)
    }
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    let message = format!("it says {reason}");
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}),
    )
}

impl State {
    /// Stores an object, or removes it, and logs the event.
    fn write(&mut self, key: Key, mut object: Value, kind: &str) -> Value {
        self.content.version += 1;
        self.writes += 1;
        object["metadata"]["resourceVersion"] = json!(self.content.version.to_string());
        match kind {
            "DELETED" => drop(self.content.objects.remove(&key)),
            _ => drop(self.content.objects.insert(key.clone(), object.clone())),
        }
        let event = json!({"type": kind, "object": object});
        self.log.push((self.content.version, key.0, event));
        object
    }

    fn create(&mut self, plural: &str, mut object: Value) -> (u16, Value) {
        let key = (plural.to_owned(), object["metadata"]["name"].as_str().unwrap().to_owned());
        if self.content.objects.contains_key(&key) {
            return status(409, "AlreadyExists");
        }
        object["metadata"]["uid"] = json!(format!("uid-{}", self.content.version + 1));
        (201, self.write(key, object, "ADDED"))
    }

    fn update(&mut self, key: Key, mut object: Value) -> (u16, Value) {
        let Some(known) = self.content.objects.get(&key).cloned() else { return status(404, "NotFound") };
        if object["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]
            || object["metadata"]["uid"] != known["metadata"]["uid"]
        {
            return status(409, "Conflict");
        }
        let deletion = known["metadata"]["deletionTimestamp"].clone();
        if !deletion.is_null() {
            object["metadata"]["deletionTimestamp"] = deletion;
        }
        if object == known {
            return (200, known);
        }
        let has_finalizer = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let is_gone = !object["metadata"]["deletionTimestamp"].is_null() && !has_finalizer;
        (200, self.write(key, object, if is_gone { "DELETED" } else { "MODIFIED" }))
    }

    fn delete(&mut self, key: Key, options: &Value) -> (u16, Value) {
        let Some(mut object) = self.content.objects.get(&key).cloned() else {
            return status(404, "NotFound");
        };
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return status(409, "Conflict");
            }
        }
        if object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            self.write(key, object, "DELETED");
            return (200, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}));
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] =
                json!(jiff::Timestamp::now().strftime("%FT%TZ").to_string());
            object = self.write(key, object, "MODIFIED");
        }
        (200, object)
    }
}

/// The labels and the name that a request selects.
#[derive(Debug)]
struct Selector {
    labels: Vec<(String, String)>,
    name: Option<String>,
}

impl Selector {
    fn of(request: &Request) -> Self {
        let decoded = |text: &str| text.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/");
        let labels = request.query("labelSelector").map(decoded).unwrap_or_default();
        let labels = labels.split(',').filter_map(|pair| pair.split_once('='));
        let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned())).collect();
        let name = request.query("fieldSelector").map(decoded);
        let name = name.and_then(|text| text.strip_prefix("metadata.name=").map(str::to_owned));
        Selector { labels, name }
    }

    fn selects(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.labels.iter().all(|(label, value)| metadata["labels"][label] == *value)
            && self.name.as_ref().is_none_or(|name| metadata["name"] == *name)
    }
}

/// Returns a page. All pages of a list are of one version.
fn list(state: &mut State, plural: &str, request: &Request) -> (u16, String) {
    let (version, mut items) = match request.query("continue") {
        Some(token) => match state.rests.remove(token) {
            Some(rest) => rest,
            None => return text(status(410, "Expired")),
        },
        None => {
            let (selector, first) = (Selector::of(request), (plural.to_owned(), String::new()));
            let of_kind = state.content.objects.range(first..).take_while(|((kind, _), _)| kind == plural);
            let found = of_kind.map(|(_, object)| object).filter(|object| selector.selects(object));
            (state.content.version, found.map(Value::to_string).collect())
        }
    };
    let rest = items.split_off(items.len().min(PAGE));
    let mut meta = json!({"resourceVersion": version.to_string()});
    if !rest.is_empty() {
        state.lists += 1;
        meta["continue"] = json!(state.lists.to_string());
        state.rests.insert(state.lists.to_string(), (version, rest));
    }
    let items = items.join(",");
    (200, format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{meta},"items":[{items}]}}"#))
}

fn text((code, object): (u16, Value)) -> (u16, String) {
    (code, object.to_string())
}

/// Returns the kind of a request, such as `LIST blocks` or `LIST blocks of a node`.
fn kind(request: &Request, parts: &[&str]) -> String {
    let verb = match (request.method.as_str(), parts) {
        ("GET", [_]) if request.query("watch").is_some() => "WATCH",
        ("GET", [_]) if request.query("continue").is_some() => "CONTINUE",
        ("GET", [_]) => "LIST",
        ("DELETE", [_] | [_, ""]) => "DELETECOLLECTION",
        (method, _) => method,
    };
    let is_of_node = request.query("labelSelector").is_some_and(|text| text.contains("node"));
    format!("{verb} {}{}", parts[0], if is_of_node { " of a node" } else { "" })
}

fn handle(shared: &(Mutex<State>, Condvar), request: &Request, stream: &TcpStream) {
    let mut state = shared.0.lock().unwrap();
    while state.life == Life::Paused {
        state = shared.1.wait(state).unwrap();
    }
    if state.life == Life::Dead {
        return;
    }
    let path = request.target.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.strip_prefix(GROUP).unwrap_or_default().split('/').collect();
    *state.requests.entry(kind(request, &parts)).or_default() += 1;
    if let Some(n) = state.refusals.iter().position(|(method, _)| *method == request.method) {
        let (code, object) = status(state.refusals.remove(n).1, "TooManyRequests");
        return answer(stream, code, "Retry-After: 1\r\n", object.to_string().as_bytes());
    }
    if state.forbidden.is_some_and(|forbidden| forbidden == kind(request, &parts)) {
        let body = status(403, "Forbidden").1.to_string();
        return answer(stream, 403, "Content-Type: application/json\r\n", body.as_bytes());
    }
    let body = || serde_json::from_slice::<Value>(&request.body).unwrap();
    let key = |name: &str| (parts[0].to_owned(), name.to_owned());
    let (code, body) = match (request.method.as_str(), parts.as_slice()) {
        _ if state.life == Life::Bare => text(status(404, "NotFound")),
        ("GET", [plural]) if request.query("watch") == Some("true") => {
            return watch(shared, state, plural, request, stream);
        }
        ("GET", [plural]) => list(&mut state, plural, request),
        ("GET", [_, name]) => match state.content.objects.get(&key(name)) {
            Some(object) => (200, object.to_string()),
            None => text(status(404, "NotFound")),
        },
        ("POST", [plural]) => text(state.create(plural, body())),
        ("PUT", [_, name]) => text(state.update(key(name), body())),
        ("DELETE", [_, name]) => text(state.delete(key(name), &body())),
        _ => text(status(404, "NotFound")),
    };
    drop(state);
    shared.1.notify_all();
    answer(stream, code, "Content-Type: application/json\r\n", body.as_bytes());
}

/// Sends the events behind a version, until the watch is cut off or the client is gone.
fn watch<'s>(
    shared: &'s (Mutex<State>, Condvar),
    mut state: MutexGuard<'s, State>,
    plural: &str,
    request: &Request,
    mut stream: &TcpStream,
) {
    let selector = Selector::of(request);
    let mut seen: u64 = request.query("resourceVersion").unwrap().parse().unwrap();
    let generation = state.generation;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nContent-Type: application/json\r\n\r\n";
    let mut send = |text: &str| stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).is_ok();
    if !send(head) {
        return;
    }
    if seen < state.oldest {
        let line = json!({"type": "ERROR", "object": status(410, "Expired").1}).to_string() + "\n";
        send(&format!("{:x}\r\n{line}\r\n0\r\n\r\n", line.len()));
        return;
    }
    while state.generation == generation && state.life != Life::Brief {
        let behind = state.log.partition_point(|(version, ..)| *version <= seen);
        let news = state.log.iter().skip(behind).filter(|(_, kind, _)| kind == plural);
        let news: Vec<String> = news
            .filter(|(.., event)| selector.selects(&event["object"]))
            .map(|(.., event)| format!("{event}\n"))
            .collect();
        seen = state.log.last().map_or(seen, |(version, ..)| seen.max(*version));
        drop(state);
        if !news.iter().all(|line| send(&format!("{:x}\r\n{line}\r\n", line.len()))) {
            return;
        }
        state = shared.0.lock().unwrap();
        if state.log.last().is_none_or(|(version, ..)| *version <= seen) {
            state = shared.1.wait_timeout(state, Duration::from_millis(50)).unwrap().0;
        }
    }
    if state.life == Life::Brief {
        send("0\r\n\r\n");
    }
}
