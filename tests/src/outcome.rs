//! The outcome of a command: exit status and output.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::{LIMIT, run_limited};

/// The end of a plugin or helper command.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The command in messages.
    pub what: String,
    /// The exit status, or minus the signal.
    pub status: i32,
    /// The bytes on stdout.
    pub stdout: Vec<u8>,
    /// The text on stderr.
    pub stderr: String,
}

impl Outcome {
    /// Runs a command that gets no input.
    ///
    /// # Panics
    /// If it takes longer than [`LIMIT`].
    pub fn of(command: &mut Command) -> Self {
        let output = run_limited(command, b"", LIMIT);
        Self::from(&format!("{command:?}"), output)
    }

    /// The outcome of `what`.
    pub fn from(what: &str, output: Output) -> Self {
        Outcome {
            what: what.to_owned(),
            status: output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0)),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The output on stdout as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Everything, for a message.
    pub fn describe(&self) -> String {
        format!("{}\n  status {}\n  stdout {}\n  stderr {}", self.what, self.status, self.text(), self.stderr)
    }

    /// The same, if it succeeded.
    ///
    /// # Panics
    /// Panics if it failed.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!(self.status == 0, "failed: {}", self.describe());
        self
    }

    /// The one JSON object on stdout of a call that succeeded.
    ///
    /// # Panics
    /// If it failed, or if stdout is anything else.
    #[track_caller]
    pub fn result(&self) -> Value {
        self.try_result().unwrap_or_else(|why| panic!("{why}"))
    }

    /// The result, as by [`result`](Self::result).
    ///
    /// # Errors
    /// Fails with the difference.
    pub fn try_result(&self) -> Result<Value, String> {
        if self.status != 0 {
            return Err(format!("failed: {}", self.describe()));
        }
        self.object()
    }

    /// The error of a call that must fail: exit status 1 and exactly one JSON object with
    /// a code above zero, a message and nothing that the specification doesn't know.
    ///
    /// # Panics
    /// If it is anything else.
    #[track_caller]
    pub fn error(&self) -> CniError {
        self.try_error().unwrap_or_else(|why| panic!("{why}"))
    }

    /// The error, as by [`error`](Self::error).
    ///
    /// # Errors
    /// Fails with the difference.
    pub fn try_error(&self) -> Result<CniError, String> {
        if self.status != 1 {
            return Err(format!("must exit with 1: {}", self.describe()));
        }
        let value = self.object()?;
        let unknown = value
            .as_object()
            .unwrap()
            .keys()
            .find(|key| !["cniVersion", "code", "msg", "details"].contains(&key.as_str()));
        if let Some(key) = unknown {
            return Err(format!("unknown key {key}: {}", self.describe()));
        }
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let error = CniError {
            code: value["code"].as_u64().unwrap_or(0),
            msg: text("msg"),
            details: text("details"),
        };
        if error.code == 0 || error.msg.is_empty() {
            return Err(format!("no code or no msg: {}", self.describe()));
        }
        Ok(error)
    }

    fn object(&self) -> Result<Value, String> {
        let mut documents = serde_json::Deserializer::from_slice(&self.stdout).into_iter::<Value>();
        let first = match documents.next() {
            Some(Ok(value)) if value.is_object() => value,
            _ => return Err(format!("stdout must be a JSON object: {}", self.describe())),
        };
        match documents.next() {
            None => Ok(first),
            Some(_) => Err(format!("more than one object: {}", self.describe())),
        }
    }
}

/// An error of the CNI protocol.
#[derive(Debug, Clone)]
pub struct CniError {
    /// The code of the error.
    pub code: u64,
    /// The message of the error.
    pub msg: String,
    /// The details of the error.
    pub details: String,
}

impl CniError {
    /// The text as `msg; details`.
    pub fn all(&self) -> String {
        format!("{}; {}", self.msg, self.details)
    }
}
