//! The Go plugin and its daemon.

use std::path::Path;
use std::process::Stdio;

use cnimble_tests::{Background, need_recent_go};
use server::REQUEST;

use super::*;

/// It listens from the start of this value.
pub(crate) struct GoDaemon {
    pub(crate) socket: PathBuf,
    _process: Background,
}

impl GoDaemon {
    /// From the directory `go`.
    pub(crate) fn start(host: &Host, go: &Path) -> Self {
        let socket = host.dir().join("go.sock");
        let mut command = host.command(go.join("dhcp"));
        command.args(["daemon", "-socketpath"]).arg(&socket).stdin(Stdio::null()).stderr(Stdio::null());
        let process = Background::start(&mut command);
        assert!(wait_until(PATIENCE, || socket.exists()));
        GoDaemon { socket, _process: process }
    }
}

#[test]
fn the_go_daemon_gives_the_same_address_and_routes() {
    need_recent_go!(go);
    let host = host();
    let server = server(&host);
    server.now(|manner| {
        manner.more = vec![(3, OWN.octets().to_vec()), (33, vec![172, 16, 0, 0, 10, 8, 0, 9])];
    });
    let GoDaemon { socket: path, _process } = GoDaemon::start(&host, go);
    let ours = network(&host)
        .with("/ipam/priority", json!(7))
        .with(
            "/ipam/provide",
            json!([{"option": "host-name", "value": "web"}, {"option": "60", "value": "x"}]),
        )
        .with(
            "/ipam/request",
            json!([{"skipDefault": true}, {"option": "3"}, {"option": "1"}, {"option": "33"}]),
        );
    let theirs = ours.served_by(go).with("/ipam/daemonSocketPath", json!(path));
    let by = |network: &Network<'_>| {
        let pod = Pod::new();
        let attachment = Attachment::new("c1", &pod);
        let result = network.added(&attachment);
        network.deleted(&attachment, Some(&result));
        let mut said = server.said(REQUEST).pop().unwrap().options;
        // Only this plugin sends it.
        said.remove(&57);
        (result["ips"].clone(), result["routes"].clone(), said)
    };
    let go = by(&theirs);
    assert_eq!(by(&ours), go);
    // At the Go daemon's socket, this plugin names that daemon.
    let pod = Pod::new();
    let mixed = ours.with("/ipam/daemonSocketPath", json!(path));
    let err = mixed.add(&Attachment::new("c2", &pod)).error();
    assert!(err.code == 7 && err.all().contains("Go plugins' dhcp daemon"), "{err:?}");
    // This lease daemon does the same.
    let attachment = Attachment::new("c3", &pod);
    let result = ours.added(&attachment);
    let mixed = theirs.with("/ipam/daemonSocketPath", json!(socket(&host)));
    let err = mixed.add(&Attachment::new("c4", &Pod::new())).error();
    assert!(err.all().contains("cnimble's lease daemon listens here"), "{err:?}");
    ours.deleted(&attachment, Some(&result));
}
