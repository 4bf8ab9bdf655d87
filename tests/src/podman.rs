//! podman, from Debian's package.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{Node, Ns, PAUSE, command};

/// podman on a node, with what it stores in a directory of the test.
pub struct Podman<'n> {
    node: &'n Node,
    /// Its configuration, and that of its storage.
    files: [(&'static str, PathBuf); 2],
}

impl<'n> Podman<'n> {
    /// Its networks are those of `net_dir`. podman 5 uses them by the driver `cni`.
    pub fn new(node: &'n Node, net_dir: &str, default_network: &str) -> Self {
        if Self::uses_driver(node) {
            let podman = Self::with_driver(node);
            let lines = node.sh(&format!("sed -s '$a\\' {net_dir}/*.conflist"));
            let documents = serde_json::Deserializer::from_str(&lines).into_iter::<Value>();
            for document in documents {
                let document = document.expect("a network");
                let name = document["name"].as_str().expect("the name of a network");
                let options = format!("--opt network={name} --opt conf-dir={net_dir}");
                podman.call(&format!("network create --driver cni {options} {name}"));
            }
            podman.set_default_network(default_network);
            return podman;
        }
        let network = format!(
            r#"
network_backend = "cni"
cni_plugin_dirs = ["/opt/cni/bin"]
network_config_dir = "{net_dir}"
default_network = "{default_network}"
"#
        );
        Self::on(node, "", &network)
    }

    /// On the network that it makes itself, by the program netavark in `dir`.
    pub fn with_netavark(node: &'n Node, dir: &Path) -> Self {
        let helpers = format!("helper_binaries_dir = [\"{}\"]", dir.display());
        Self::on(node, &helpers, "network_backend = \"netavark\"\nnetwork_config_dir = \"/run/networks\"\n")
    }

    /// Returns whether this podman has no CNI backend, so that it needs the driver `cni`: podman 5 and later.
    pub fn uses_driver(node: &Node) -> bool {
        let version = node.run("podman --version").text();
        let number =
            version.split(' ').nth(2).and_then(|number| number.split('.').next()?.parse::<u32>().ok());
        number.is_some_and(|major| major >= 5)
    }

    /// podman 5 on its own netavark, with the driver `cni`.
    pub fn with_driver(node: &'n Node) -> Self {
        let dir = node.dir().join("drivers");
        std::fs::create_dir(&dir).unwrap();
        crate::copy(command(), &dir.join("cni"));
        let network = format!(
            "netavark_plugin_dirs = [\"{}\"]\nnetwork_config_dir = \"/run/networks\"\n",
            dir.display()
        );
        Self::on(node, "", &network)
    }

    fn on(node: &'n Node, engine: &str, network: &str) -> Self {
        let dir = node.dir().display();
        let containers = node.file(
            "containers.conf",
            &format!(
                r#"
[containers]
cgroups = "disabled"
default_sysctls = []
# Those of podman 4. Later ones lack NET_RAW, which ping needs.
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP",
  "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
tmp_dir = "/run/libpod"
{engine}
[network]
{network}
"#
            ),
        );
        let storage = node.file(
            "storage.conf",
            &format!(
                "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/storage\"\ngraphroot = \"{dir}/graph\"\n"
            ),
        );
        let files = [("CONTAINERS_CONF", containers), ("CONTAINERS_STORAGE_CONF", storage)];
        let podman = Podman { node, files };
        let rootfs = node.rootfs();
        node.sh(&format!("tar -C {} -cf {dir}/rootfs.tar .", rootfs.display()));
        podman.call(&format!("import --quiet {dir}/rootfs.tar localhost/busybox"));
        podman
    }

    /// Makes an existing network the default one. podman 5 takes its name for that of a network that it makes itself, so
    /// no network can be created under the name afterwards.
    pub fn set_default_network(&self, name: &str) {
        let file = &self.files[0].1;
        let text = std::fs::read_to_string(file).unwrap();
        // The last table of the file is that of the networks.
        std::fs::write(file, format!("{text}default_network = \"{name}\"\n")).unwrap();
    }

    /// A call of it that is still to be made.
    pub fn command(&self) -> Command {
        let mut command = self.node.command("podman");
        command.envs(self.files.iter().map(|(name, path)| (name, path)));
        command
    }

    /// Calls it; it must succeed.
    #[track_caller]
    pub fn call(&self, args: &str) -> String {
        let [containers, storage] =
            self.files.each_ref().map(|(name, path)| format!("{name}={}", path.display()));
        self.node.sh(&format!("export {containers} {storage}\npodman {args}"))
    }

    /// Starts a container that serves its name as http://…/name, and waits.
    #[track_caller]
    pub fn run(&self, name: &str, more: &str) -> String {
        let serve = format!("mkdir /www; echo -n {name} >/www/name; httpd -p 80 -h /www; {PAUSE}");
        self.call(&format!("run --detach --name {name} {more} localhost/busybox sh -c \"{serve}\""))
    }

    /// A container's network namespace.
    pub fn netns(&self, name: &str) -> Ns {
        let path = self.call(&format!("inspect --format {{{{.NetworkSettings.SandboxKey}}}} {name}"));
        self.node.netns(&path)
    }
}
