//! Reads kubeconfig files in clientcmd's v1 format, and a pod's service account, which has the same information.
//! `auth-provider` and proxies are refused, because without them the connection would differ from what the file says.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use serde::Deserialize;
use serde_json::Value;

use crate::yaml;
use cnimble_os::files::{self as files, Links};

use crate::exec::Program;
use crate::http::{Tls, parse_url};
use crate::{ClientIdentity, Secret, StartError};

/// The largest file in bytes.
const MAX_SIZE: usize = 10 << 20;

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Config {
    current_context: Option<String>,
    clusters: Vec<Named>,
    users: Vec<Named>,
    contexts: Vec<Named>,
}

/// An entry of a list in the file. `cluster` is its content, also of a user or a context.
#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(alias = "user", alias = "context")]
    cluster: Option<Value>,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<Secret>,
    username: Option<String>,
    password: Option<Secret>,
    exec: Option<Value>,
    auth_provider: Option<Value>,
}

/// The address of a server, its TLS settings and the credentials, as they were read last.
#[derive(PartialEq)]
pub(super) struct Access {
    pub(super) server: Uri,
    pub(super) tls: Tls,
    pub(super) credentials: Credentials,
}

/// How a request is authenticated, apart from a client certificate.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Credentials {
    None,
    Token(Secret),
    /// Name and password, in base64.
    Basic(Secret),
    /// A file with a token. It is read for each request, because the token is replaced.
    TokenFile(PathBuf),
    /// A program that returns a credential.
    Exec(Box<Program>),
}

/// Reads a kubeconfig's current context.
pub(super) fn read(path: &Path) -> Result<Access, StartError> {
    access(path).map_err(|reason| StartError::Kubeconfig { path: path.to_owned(), reason })
}

/// The directory of a pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Uses the pod's service account: the kubelet's variables name the server, and the files hold authority and token.
///
/// # Errors
/// Fails outside of a pod, and if authority or token cannot be read.
pub(super) fn in_cluster() -> Result<Access, StartError> {
    let host = read_variable("KUBERNETES_SERVICE_HOST")?;
    let port = read_variable("KUBERNETES_SERVICE_PORT")?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let authorities = limited(&Path::new(ACCOUNT).join("ca.crt")).map_err(account_error)?;
    let token = Path::new(ACCOUNT).join("token");
    limited(&token).map_err(account_error)?;
    Ok(Access {
        server: parse_url(&format!("https://{host}:{port}"))?,
        tls: Tls { authorities: Some(authorities), ..Tls::default() },
        credentials: Credentials::TokenFile(token),
    })
}

/// Returns the value of a variable that the kubelet sets in each pod. Fails if it is unset or empty.
fn read_variable(name: &str) -> Result<String, StartError> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.ok_or_else(|| account_error(format!("{name} is not set: is this a pod of a cluster?")))
}

fn account_error(reason: String) -> StartError {
    StartError::Kubeconfig { path: PathBuf::from(ACCOUNT), reason }
}

fn access(path: &Path) -> Result<Access, String> {
    understood(&limited(path)?, path, &limited)
}

/// Reads the kubeconfig `path` from its bytes. `file` reads the files that it names, which are relative to its
/// directory.
pub(super) fn understood(
    bytes: &[u8],
    path: &Path,
    file: &dyn Fn(&Path) -> Result<Vec<u8>, String>,
) -> Result<Access, String> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let value = yaml::document(bytes)?;
    let config: Config = typed(&value, "")?;
    let name = config.current_context.filter(|name| !name.is_empty()).ok_or("it has no current-context")?;
    let context: Context = find(config.contexts, "context", &name)?;
    let cluster: Cluster = find(config.clusters, "cluster", &context.cluster)?;
    let user: User =
        if context.user.is_empty() { User::default() } else { find(config.users, "user", &context.user)? };

    if cluster.proxy_url.is_some_and(|url| !url.is_empty()) {
        return Err(format!("cluster \"{}\": proxy-url is not supported", context.cluster));
    }
    if user.auth_provider.as_ref().is_some_and(|value| !value.is_null()) {
        return Err(format!(
            "user \"{}\": auth-provider is not supported; use exec, a token, a tokenFile or a client certificate",
            context.user
        ));
    }
    let whose = format!("user \"{}\": ", context.user);
    let exec = match &user.exec {
        Some(value) if !value.is_null() => {
            let program: Program = typed(value, &format!("{whose}exec: "))?;
            Some(program.checked(dir).map_err(|err| format!("{whose}{err}"))?)
        }
        _ => None,
    };
    let server = parse_url(cluster.server.trim_end_matches('/')).map_err(|err| format!("server: {err}"))?;
    let authority_data = cluster.certificate_authority_data.as_deref();
    let authority_path = cluster.certificate_authority.as_deref();
    let authorities = read_pem("certificate-authority", authority_data, authority_path, dir, file)?;
    if cluster.insecure_skip_tls_verify && authorities.is_some() {
        return Err(format!(
            "cluster \"{}\": a certificate authority and insecure-skip-tls-verify exclude each other",
            context.cluster
        ));
    }
    let chain_data = user.client_certificate_data.as_deref();
    let chain = read_pem("client-certificate", chain_data, user.client_certificate.as_deref(), dir, file)?;
    let key_data = user.client_key_data.as_ref().map(Secret::expose);
    let key = read_pem("client-key", key_data, user.client_key.as_deref(), dir, file)?;
    let client = match (chain, key) {
        (Some(chain), Some(key)) => Some(ClientIdentity {
            chain,
            key,
            chain_source: pem_source(
                "client-certificate",
                chain_data,
                user.client_certificate.as_deref(),
                path,
            ),
            key_source: pem_source("client-key", key_data, user.client_key.as_deref(), path),
        }),
        (None, None) => None,
        _ => return Err(format!("{whose}a client certificate and its key need each other")),
    };
    let credentials = choose_credentials(user, exec, dir, file)?;
    let tls = Tls {
        authorities,
        insecure: cluster.insecure_skip_tls_verify,
        server_name: cluster.tls_server_name.filter(|name| !name.is_empty()),
        client,
    };
    Ok(Access { server, tls, credentials })
}

/// Returns a certificate or a key: the one in `data`, or else the one in the file `path` below `dir`, which `file`
/// reads. An empty text counts as none. Returns `None` if there is neither.
fn read_pem(
    what: &str,
    data: Option<&str>,
    path: Option<&Path>,
    dir: &Path,
    file: &dyn Fn(&Path) -> Result<Vec<u8>, String>,
) -> Result<Option<Vec<u8>>, String> {
    match (data.unwrap_or_default(), path) {
        (data, _) if !data.is_empty() => inline(what, data).map(Some),
        (_, Some(path)) if !path.as_os_str().is_empty() => {
            file(&dir.join(path)).map(Some).map_err(|err| format!("{what}: {err}"))
        }
        _ => Ok(None),
    }
}

/// Returns where [`read_pem`] has found a certificate or a key, for messages: the file, or the key of the kubeconfig.
fn pem_source(what: &str, data: Option<&str>, path: Option<&Path>, kubeconfig: &Path) -> String {
    match (data.unwrap_or_default(), path) {
        ("", Some(path)) => kubeconfig.parent().unwrap_or(Path::new(".")).join(path).display().to_string(),
        _ => format!("{what}-data of {}", kubeconfig.display()),
    }
}

/// Returns the credentials of a user: the first of a token file, a token, a name with a password, and the program
/// `exec`. Fails if the token file can't be read.
fn choose_credentials(
    user: User,
    exec: Option<Program>,
    dir: &Path,
    file: &dyn Fn(&Path) -> Result<Vec<u8>, String>,
) -> Result<Credentials, String> {
    let token = user.token.filter(|token| !token.expose().is_empty());
    Ok(match (user.token_file, token, user.username.filter(|name| !name.is_empty())) {
        (Some(token), ..) => {
            let token = dir.join(token);
            file(&token)?;
            Credentials::TokenFile(token)
        }
        (_, Some(token), _) => Credentials::Token(token),
        (_, _, Some(name)) => {
            let password = user.password.as_ref().map_or("", Secret::expose);
            Credentials::Basic(Secret::new(&STANDARD.encode(format!("{name}:{password}"))))
        }
        // As under kubectl, the program is not asked if there are other credentials.
        _ => exec.map_or(Credentials::None, |program| Credentials::Exec(Box::new(program))),
    })
}

/// Returns the content of the entry with this name.
fn find<T: for<'de> Deserialize<'de>>(list: Vec<Named>, kind: &str, name: &str) -> Result<T, String> {
    let found = list.into_iter().find(|entry| entry.name == name);
    let value =
        found.and_then(|entry| entry.cluster).ok_or_else(|| format!("there is no {kind} \"{name}\""))?;
    typed(&value, &format!("{kind} \"{name}\": "))
}

/// Deserializes a value. Errors name the key, and never quote the value.
fn typed<T: for<'de> Deserialize<'de>>(value: &Value, whose: &str) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|err| {
        // serde's text quotes the value, which may be a token.
        let reason = err.inner().to_string();
        let reason = match reason.split_once(", expected ") {
            Some((_, expected)) => format!("expected {expected}"),
            None => reason,
        };
        format!("{whose}{}: {reason}", err.path())
    })
}

/// Decodes base64 in a key that ends in `-data`.
fn inline(what: &str, data: &str) -> Result<Vec<u8>, String> {
    let data: String = data.split_whitespace().collect();
    STANDARD.decode(data).map_err(|err| format!("{what}-data: {err}"))
}

/// Reads a kubeconfig, or one of the files that it names.
pub(super) fn limited(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, MAX_SIZE, Links::Follow).map_err(|err| format!("can't read {}: {err}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: &str, user: &str) -> Result<Access, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(dir.path().join("ca.pem"), "ca").unwrap();
        std::fs::write(dir.path().join("token"), "t").unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
             clusters:\n- name: k\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        );
        std::fs::write(&path, text).unwrap();
        access(&path)
    }

    #[test]
    fn credentials_and_certificates_are_found() {
        let access = config("server: 'https://k:6443/', certificate-authority: ca.pem", "token: t0").unwrap();
        assert_eq!(access.server.to_string(), "https://k:6443/");
        assert_eq!(access.tls.authorities.as_deref(), Some(b"ca".as_slice()));
        assert_eq!(access.credentials, Credentials::Token(Secret::new("t0")));
        let access = config(
            "server: 'https://k', insecure-skip-tls-verify: true, tls-server-name: n",
            "client-certificate-data: Yw==, client-key-data: aw==, username: me, password: pw",
        )
        .unwrap();
        assert!(access.tls.insecure);
        assert!(access.tls.client.is_some_and(|client| client.chain == b"c" && client.key == b"k"));
        assert_eq!(access.credentials, Credentials::Basic(Secret::new("bWU6cHc=")));
        let file = config("server: 'http://k'", "token: old, tokenFile: token").unwrap().credentials;
        assert!(matches!(file, Credentials::TokenFile(path) if path.ends_with("token")));
    }

    #[test]
    fn what_cannot_be_used_is_said_in_words() {
        for (cluster, user, words) in [
            (
                "server: 'https://k'",
                "exec: {command: aws}",
                "user \"u\": exec: .: missing field `apiVersion`",
            ),
            ("server: 'https://k'", "exec: {apiVersion: v1, command: aws}", "exec: apiVersion is not"),
            ("server: 'https://k'", "auth-provider: {name: gcp}", "auth-provider is not supported"),
            ("server: 'https://k', proxy-url: 'http://p'", "", "proxy-url is not supported"),
            ("server: k", "", "is not an http or https URL"),
            ("", "", "cluster \"k\": .: missing field `server`"),
            ("server: [1]", "", "server: expected a string"),
            ("server: 'https://k'", "token: 123", "token: expected a string"),
            ("server: 'https://k', certificate-authority: no.pem", "", "certificate-authority: can't read"),
            ("server: 'https://k', certificate-authority-data: '*'", "", "certificate-authority-data: "),
            (
                "server: 'https://k', certificate-authority: ca.pem, insecure-skip-tls-verify: true",
                "",
                "exclude each other",
            ),
            ("server: 'https://k'", "client-certificate-data: Yw==", "need each other"),
            ("server: 'https://k'", "tokenFile: none", "can't read"),
        ] {
            let err = config(cluster, user).err().unwrap();
            assert!(err.contains(words), "{err}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for (text, words) in [("", "empty"), ("a: [", "line 2"), ("contexts: []", "no current-context")] {
            std::fs::write(&path, text).unwrap();
            let err = access(&path).err().unwrap();
            assert!(err.contains(words), "{err}");
        }
        std::fs::write(&path, "current-context: c").unwrap();
        assert!(access(&path).err().unwrap().contains("no context \"c\""));
        assert!(access(dir.path()).err().unwrap().contains("regular file"));
    }
}
