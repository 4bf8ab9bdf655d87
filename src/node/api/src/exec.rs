//! Credentials from a program: `exec` in a kubeconfig
//! (<https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins>).

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::{ClientIdentity, Secret};

/// How long the program may take. It may have to ask another server.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest answer in bytes: a token and a certificate chain.
const ANSWER: u64 = 4 << 20;
/// A credential that expires within this many seconds is replaced before it is used.
const MARGIN: i64 = 10;

/// The entry `exec` of a user in a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Program {
    pub(super) api_version: String,
    pub(super) command: PathBuf,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    pub(super) interactive_mode: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Variable {
    name: String,
    value: Secret,
}

/// The answer of a program: a token, a client certificate, or both.
#[derive(Default, PartialEq)]
pub(super) struct Credential {
    pub(super) token: Option<Secret>,
    pub(super) client: Option<ClientIdentity>,
    /// The expiry in seconds since 1970. `None` means that it is valid until the server refuses it.
    expires: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Time>,
    token: Option<Secret>,
    client_certificate_data: Option<String>,
    client_key_data: Option<Secret>,
}

impl Credential {
    /// Returns false if the credential has expired, or does so within [`MARGIN`] seconds.
    pub(super) fn is_fresh(&self) -> bool {
        self.expires.is_none_or(|end| end - MARGIN > jiff::Timestamp::now().as_second())
    }
}

impl Program {
    /// Refuses unsupported settings. Resolves a command with a `/` relative to `dir`, the directory of the kubeconfig.
    pub(super) fn checked(mut self, dir: &Path) -> Result<Self, String> {
        if !["v1", "v1beta1"]
            .iter()
            .any(|version| self.api_version == format!("client.authentication.k8s.io/{version}"))
        {
            return Err("exec: apiVersion is not client.authentication.k8s.io/v1 or v1beta1".to_owned());
        }
        if self.interactive_mode == "Always" {
            return Err("exec: interactiveMode is Always, and there is no terminal here".to_owned());
        }
        if self.command.as_os_str().is_empty() {
            return Err("exec: command is missing".to_owned());
        }
        if self.command.components().count() > 1 {
            self.command = dir.join(&self.command);
        }
        Ok(self)
    }

    /// Runs the program, for at most [`LIMIT`]. Its stderr is this process's, as under kubectl. No error contains its
    /// answer, which may be a secret.
    pub(super) async fn run(&self) -> Result<Credential, String> {
        let name = self.command.display();
        let info =
            json!({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": {"interactive": false}});
        let mut command = Command::new(&self.command);
        command.args(self.args.iter().flatten());
        command.envs(self.env.iter().flatten().map(|variable| (&variable.name, variable.value.expose())));
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|err| format!("exec: can't run {name}: {err}"))?;
        let stdout = child.stdout.take();
        let answer = async {
            let mut bytes = Vec::new();
            if let Some(stdout) = stdout {
                stdout.take(ANSWER).read_to_end(&mut bytes).await?;
            }
            Ok::<_, std::io::Error>((bytes, child.wait().await?))
        };
        let (bytes, status) = timeout(LIMIT, answer)
            .await
            .map_err(|_| format!("exec: {name} gave no answer within {LIMIT:?}"))?
            .map_err(|err| format!("exec: {name}: {err}"))?;
        if !status.success() {
            return Err(format!("exec: {name} failed ({status})"));
        }
        self.understood(&bytes).map_err(|why| format!("exec: {name}: {why}"))
    }

    /// Reads the program's answer.
    fn understood(&self, bytes: &[u8]) -> Result<Credential, &'static str> {
        // The parser's error is not shown, because it might quote a secret.
        let answer: Answer =
            serde_json::from_slice(bytes).map_err(|_| "its answer is no ExecCredential in JSON")?;
        if answer.kind != "ExecCredential" || answer.api_version != self.api_version {
            return Err("its answer is no ExecCredential of the apiVersion that it was asked for");
        }
        let status = answer.status.ok_or("its answer has no status")?;
        let key = status.client_key_data.filter(|key| !key.expose().is_empty());
        let client = match (status.client_certificate_data.filter(|text| !text.is_empty()), key) {
            (Some(chain), Some(key)) => Some(ClientIdentity {
                chain: chain.into_bytes(),
                key: key.expose().as_bytes().to_vec(),
                chain_source: format!("clientCertificateData of {}", self.command.display()),
                key_source: format!("clientKeyData of {}", self.command.display()),
            }),
            (None, None) => None,
            _ => return Err("a client certificate and its key need each other"),
        };
        let token = status.token.filter(|token| !token.expose().is_empty());
        if token.is_none() && client.is_none() {
            return Err("its answer has neither a token nor a client certificate");
        }
        let expires = status.expiration_timestamp.map(|time| time.0.as_second());
        Ok(Credential { token, client, expires })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        let config = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "give", "env": null});
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn answers_are_understood_or_told_without_what_they_hold() {
        let answer = |status: serde_json::Value| {
            let answer = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
            program().understood(answer.to_string().as_bytes())
        };
        let good = answer(json!({"token": "t", "expirationTimestamp": "2000-01-01T00:00:00Z"})).unwrap();
        assert!(good.token == Some(Secret::new("t")) && !good.is_fresh());
        let good = answer(json!({"clientCertificateData": "c", "clientKeyData": "k"})).unwrap();
        assert!(good.client.as_ref().is_some_and(|client| client.chain == b"c" && client.key == b"k"));
        assert!(good.is_fresh());
        for bad in [json!({}), json!(null), json!({"clientKeyData": "geheim"}), json!({"token": ["geheim"]})]
        {
            let err = answer(bad).err().unwrap();
            assert!(!err.contains("geheim"), "{err}");
        }
        for bad in
            ["", "geheim", r#"{"apiVersion":"v1","kind":"ExecCredential","status":{"token":"geheim"}}"#]
        {
            assert!(!program().understood(bad.as_bytes()).err().unwrap().contains("geheim"));
        }
    }

    #[test]
    fn what_cant_be_done_is_refused() {
        let dir = Path::new("/etc/kube");
        assert_eq!(program().checked(dir).unwrap().command, Path::new("give"));
        let relative = Program { command: "./bin/give".into(), ..program() };
        assert_eq!(relative.checked(dir).unwrap().command, Path::new("/etc/kube/./bin/give"));
        for bad in [
            Program { api_version: "client.authentication.k8s.io/v1alpha1".to_owned(), ..program() },
            Program { interactive_mode: "Always".to_owned(), ..program() },
            Program { command: PathBuf::new(), ..program() },
        ] {
            assert!(bad.checked(dir).is_err());
        }
    }
}
