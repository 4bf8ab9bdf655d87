//! containerd by CRI, as a kubelet talks to it.

use serde_json::json;

use cnimble_cri::{Client, CriError, PodConfig, PortMapping, SandboxStatus, blocking};

use crate::containerd::{Cgroups, Containerd, SOCKET, oci_image};
use crate::{Node, Ns, PATIENCE, PAUSE, wait_until};

/// A node with containerd and a network, where pods serve `pod` as http://…/name.
pub struct Cri<'n> {
    node: &'n Node,
    containerd: Containerd<'n>,
    cgroups: Cgroups,
}

impl<'n> Cri<'n> {
    /// `conflist` is the only network, `bin_dir` has the plugins.
    pub fn start(node: &'n Node, name: &str, conflist: &str, bin_dir: &str) -> Self {
        let cgroups = Cgroups(crate::cgroup_name(name));
        let rootfs = node.rootfs();
        node.file("rootfs/www/name", "pod");
        let serve = format!("httpd -p 80 -h /www; {PAUSE}");
        let start = json!({"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sh", "-c", serve]});
        let image = oci_image(node, &rootfs, &start);
        let file = node.file("network.conflist", conflist);
        node.sh(&format!("cp {} /etc/cni/net.d/10-{name}.conflist", file.display()));
        let config = format!(
            r#"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/busybox:latest"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{bin_dir}"
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"#
        );
        let containerd = Containerd::start(node, Some(&config));
        node.sh(&containerd.ctr(&format!("--namespace k8s.io image import --snapshotter native {image}")));
        Cri { node, containerd, cgroups }
    }

    /// Runs `work` with a client of the runtime.
    pub fn ask<T, F>(&self, work: impl FnOnce(Client) -> F + Send) -> Result<T, CriError>
    where
        T: Send,
        F: Future<Output = Result<T, CriError>>,
    {
        blocking(&self.node.path(SOCKET), work)
    }

    /// The pods' parent control group.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.cgroups.0)
    }

    /// Runs a pod; its sandbox.
    ///
    /// # Panics
    /// If it doesn't run.
    pub fn pod(
        &self,
        namespace: &str,
        name: &str,
        ports: &[PortMapping],
        annotations: &[(&str, &str)],
    ) -> SandboxStatus {
        let text = |text: &str| text.to_owned();
        let config = PodConfig {
            name: text(name),
            namespace: text(namespace),
            uid: format!("uid-{name}"),
            hostname: text(name),
            ports: ports.to_vec(),
            annotations: annotations.iter().map(|(key, value)| (text(key), text(value))).collect(),
            cgroup_parent: self.cgroup(),
            ..PodConfig::default()
        };
        // It learns about images by an event, and about networks by a notification.
        let mut answer = Err(CriError::Unimplemented { method: "" });
        wait_until(PATIENCE, || {
            let config = config.clone();
            answer = self.ask(|client| async move { client.run(config, "").await });
            let why = answer.as_ref().map_or_else(ToString::to_string, |_| String::new());
            !(why.contains("image") || why.contains("plugin not initialized"))
        });
        let id = answer.unwrap_or_else(|why| panic!("{why}\n{}", self.containerd.log()));
        self.ask(|client| async move { client.sandbox(&id).await }).unwrap()
    }

    /// Runs a pod; its sandbox's ID and network namespace.
    pub fn run(&self, name: &str, ports: &[PortMapping], annotations: &[(&str, &str)]) -> (String, Ns) {
        let made = self.pod("default", name, ports, annotations);
        (made.sandbox.id, self.node.netns(made.netns.unwrap().to_str().unwrap()))
    }

    /// Stops and removes a pod's sandbox.
    ///
    /// # Panics
    /// Panics if that fails.
    pub fn stop_and_remove(&self, id: &str) {
        let stopped = self.ask(|client| async move {
            client.stop(id).await?;
            client.remove(id).await
        });
        stopped.unwrap_or_else(|why| panic!("{why}\n{}", self.containerd.log()));
    }
}
