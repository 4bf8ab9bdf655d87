//! Test programs, as cargo lists them.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A test program that cargo has built.
pub(crate) struct Program {
    /// The target's name; for unit tests the package's.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// The directory of the package, in which its tests run.
    pub(crate) directory: PathBuf,
    /// Whether it holds the unit tests of a package.
    pub(crate) unit: bool,
}

impl Program {
    /// The test programs in cargo's messages.
    pub(crate) fn read(messages: impl BufRead) -> Vec<Program> {
        messages
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
            .filter_map(|message| Self::from_message(&message))
            .collect()
    }

    fn from_message(message: &Value) -> Option<Program> {
        if message["profile"]["test"] != true {
            return None;
        }
        let executable = PathBuf::from(message["executable"].as_str()?);
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let unit = message["target"]["kind"].as_array()?.iter().all(|kind| kind != "test");
        let name = message["target"]["name"].as_str()?.to_owned();
        Some(Program { name, executable, directory: manifest.parent()?.to_owned(), unit })
    }

    /// The names of its tests.
    ///
    /// # Panics
    /// If the program does not list them.
    pub(crate) fn tests(&self) -> Vec<String> {
        let mut command = Command::new(&self.executable);
        command.args(["--list", "--format=terse"]).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().expect("a test program");
        assert!(output.status.success(), "{} does not list its tests", self.executable.display());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
    }

    /// The program with these arguments, in new namespaces.
    pub(crate) fn command(&self, args: &[String]) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("the runner's own path"));
        command.arg("enter").arg(&self.executable).args(args);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command.stdin(Stdio::null());
        command
    }
}
