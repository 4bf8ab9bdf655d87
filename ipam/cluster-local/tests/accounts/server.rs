//! A kube-apiserver with its own etcd, and accounts by tokens.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cnimble_tests::tls::Authority;
use cnimble_tests::{Background, Host, wait_until};
use serde_json::{Value, json};

use super::Node;

/// The time limit of a wait, which only a failing test reaches.
const PATIENCE: f32 = 60.0;
/// The account of the operator.
pub(crate) const ADMIN: &str = "admin";
/// The account that reclaims, as `deploy/cluster-local` names it.
pub(crate) const RECLAIM: &str = "system:serviceaccount:kube-system:cnimble-reclaim";

/// The server. Its name is that of the store in the shared tests.
pub(crate) struct Etcd<'h> {
    host: &'h Host,
    processes: [Background; 2],
    _authority: Authority,
}

/// Returns the path of a program on this machine, or of one that a variable names. It returns `None` if there is none.
fn find(name: &str, variable: &str) -> Option<PathBuf> {
    let given = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = given.into_iter().chain(std::env::split_paths(&path).map(|dir| dir.join(name)));
    all.into_iter().find(|file| file.is_file())
}

/// Starts a server with the manifests and three nodes, or returns what is missing.
pub(crate) fn server(host: &Host) -> Result<(Etcd<'_>, [Node<'_>; 3]), String> {
    let server = find("kube-apiserver", "CNIMBLE_KUBE_APISERVER");
    let server = server.ok_or("there is no kube-apiserver (CNIMBLE_KUBE_APISERVER)")?;
    let store = find("etcd", "CNIMBLE_ETCD").ok_or("there is no etcd")?;
    find("kubectl", "CNIMBLE_KUBECTL").ok_or("there is no kubectl")?;
    let etcd = Etcd::begin(host, &server, &store);
    etcd.apply();
    let nodes = ["a", "b", "c"].map(|name| {
        let kubeconfig = etcd.kubeconfig(&format!("system:node:{name}"));
        let node = Node::new(host, 1, name, "10.9.0.0/16");
        node.with("kubernetes", json!({"kubeconfig": kubeconfig}))
    });
    etcd.operator(&nodes[0]).operate("init new").unwrap();
    Ok((etcd, nodes))
}

impl<'h> Etcd<'h> {
    /// The shared tests of other programs begin with this.
    pub(crate) fn start(_host: &'h Host, _members: usize) -> Self {
        unreachable!("these tests begin with `server`")
    }

    /// Starts both processes, and waits until the server is ready.
    fn begin(host: &'h Host, server: &Path, store: &Path) -> Self {
        let dir = host.dir();
        let log = |name: &str| std::fs::File::create(dir.join(name)).unwrap();
        let mut command = host.command(store);
        command.arg("--data-dir").arg(dir.join("etcd")).stdin(Stdio::null()).stderr(log("etcd.log"));
        command.args([
            "--listen-client-urls=http://127.0.0.11:2379",
            "--listen-peer-urls=http://127.0.0.11:2380",
        ]);
        command.args(["--advertise-client-urls=http://127.0.0.11:2379", "--unsafe-no-fsync"]);
        let store = Background::start(&mut command);
        let users = [ADMIN, RECLAIM, "system:node:a", "system:node:b", "system:node:c"].map(|user| {
            let group = match user {
                ADMIN => "system:masters",
                RECLAIM => "system:serviceaccounts",
                _ => "system:nodes",
            };
            format!("{},{user},{user},{group}\n", token(user))
        });
        std::fs::write(dir.join("tokens"), users.concat()).unwrap();
        let authority = Authority::new();
        let tokens = authority.issue("DNS:tokens");
        let mut command = host.command(server);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log("server.log"));
        command.args([
            "--etcd-servers=http://127.0.0.11:2379",
            "--secure-port=6443",
            "--bind-address=127.0.0.12",
        ]);
        command.args(["--advertise-address=192.0.2.250", "--endpoint-reconciler-type=none"]);
        command.args(["--service-cluster-ip-range=10.96.0.0/24", "--authorization-mode=Node,RBAC"]);
        command.arg("--service-account-issuer=https://kubernetes.default.svc");
        command.arg(format!("--cert-dir={}", dir.join("certificates").display()));
        command.arg(format!("--token-auth-file={}", dir.join("tokens").display()));
        command.arg("--service-account-key-file").arg(&tokens.certificate);
        command.arg("--service-account-signing-key-file").arg(&tokens.key);
        let processes = [store, Background::start(&mut command)];
        let mut etcd = Etcd { host, processes, _authority: authority };
        let is_over = || etcd.kubectl(ADMIN, "get --raw /readyz").is_ok() || !etcd.processes[1].running();
        assert!(wait_until(PATIENCE, is_over) && etcd.processes[1].running(), "{}", etcd.log());
        etcd
    }

    /// Returns the directory of the test's files.
    pub(crate) fn dir(&self) -> &Path {
        self.host.dir()
    }

    /// Returns what the server has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.host.dir().join("server.log")).unwrap()
    }

    /// Writes and returns the kubeconfig of an account.
    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        let path = self.host.dir().join(format!("{}.kubeconfig", user.replace(':', "-")));
        std::fs::write(&path, kubeconfig_of(&json!({"token": token(user)})).to_string()).unwrap();
        path
    }

    /// Runs kubectl as this user. Fails with its error output.
    pub(crate) fn kubectl(&self, user: &str, args: &str) -> Result<String, String> {
        self.kubectl_with(user, &args.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn kubectl_with(&self, user: &str, args: &[&str]) -> Result<String, String> {
        let program = find("kubectl", "CNIMBLE_KUBECTL").unwrap();
        let mut command: Command = self.host.command(program);
        command.arg("--kubeconfig").arg(self.kubeconfig(user)).arg("--cache-dir").arg(self.host.dir());
        let output = command.args(args).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(String::from_utf8(output.stderr).unwrap())
        }
    }

    /// Applies the manifests, and waits until the server knows the kinds and obeys the policies.
    pub(crate) fn apply(&self) {
        let apply = format!("apply --validate=false -k {MANIFESTS}");
        // The server validates the objects. kubectl would need its description of all kinds, which takes it a while.
        assert!(wait_until(PATIENCE, || self.kubectl(ADMIN, &apply).is_ok()), "{}", self.log());
        self.kubectl(ADMIN, "wait --for condition=established --timeout=60s crd --all").unwrap();
        let wrong = json!({"apiVersion": "ipam.cnimble.dev/v1alpha1", "kind": "NodeClaim",
            "metadata": {"name": "wrong", "labels": {"ipam.cnimble.dev/node": "b", "ipam.cnimble.dev/pool": "net"}},
            "spec": {"pool": "net", "name": "b", "machine": "", "instance": "x", "boot": "", "offline": 1, "turn": 0,
                "sequence": 0}});
        let file = self.host.dir().join("wrong.json");
        std::fs::write(&file, wrong.to_string()).unwrap();
        let create = format!("create --validate=false --dry-run=server -f {}", file.display());
        let mut last = String::new();
        let obeys = || {
            last = self.kubectl("system:node:a", &create).err().unwrap_or_default();
            last.contains("belongs to system:node:b")
        };
        assert!(wait_until(PATIENCE, obeys), "{last}");
    }

    /// Returns a node's configuration with the account of the operator.
    pub(crate) fn operator(&self, node: &Node<'h>) -> Node<'h> {
        node.clone().with("kubernetes", json!({"kubeconfig": self.kubeconfig(RECLAIM)}))
    }

    /// Returns the objects of a kind.
    pub(crate) fn objects(&self, plural: &str) -> Vec<Value> {
        let text = self.kubectl(ADMIN, &format!("get {plural}.ipam.cnimble.dev -o json")).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Returns the name of an object of a kind that belongs to the node.
    #[track_caller]
    pub(crate) fn name_of(&self, plural: &str, node: &str) -> String {
        let all = self.objects(plural);
        let found = all.iter().find(|object| object["metadata"]["labels"]["ipam.cnimble.dev/node"] == node);
        found.unwrap_or_else(|| panic!("{all:?}"))["metadata"]["name"].as_str().unwrap().to_owned()
    }
}

/// The manifests under test.
pub(crate) const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/cluster-local");

/// Returns the token of an account.
fn token(user: &str) -> String {
    format!("token-{}", user.replace(':', "-"))
}

/// Returns a kubeconfig with this user. The certificate that the server has made for itself is not checked.
pub(crate) fn kubeconfig_of(user: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.12:6443", "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": user}]})
}

/// Returns the key and value of the configuration that [`server`] replaces.
pub(crate) fn config(_host: &Host, _members: usize) -> (&'static str, Value) {
    ("kubernetes", json!({"kubeconfig": "/nowhere"}))
}
