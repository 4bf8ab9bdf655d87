//! The container runtime as a source of evidence about sandboxes.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use cnimble_cni::{Code, Error};
use cnimble_cri::{CriError, blocking, find_socket};
use cnimble_liveness::runtime::{Detail, Runtime, Sandbox};

use super::report_by;
use crate::report::Report;

/// The option that names the socket in all verbs but `cri`.
const OPTION: &str = "--cri";

/// A runtime that is asked each time, so that a verdict uses the current list.
#[derive(Debug)]
struct QueriedRuntime {
    socket: PathBuf,
}

/// Returns the runtime at a socket, which is searched for if `given` is empty. It lists the sandboxes once, so that an
/// unreachable runtime is an early error.
pub(crate) fn runtime(given: &OsStr, what: &str) -> Result<Arc<dyn Runtime>, Report> {
    let socket = find_socket(Some(given)).map_err(|err| report_by(what, &err, OPTION))?;
    blocking(&socket, |client| async move { client.sandboxes().await })
        .map_err(|err| report_by(what, &err, OPTION))?;
    Ok(Arc::new(QueriedRuntime { socket }))
}

fn failed(err: &CriError) -> Error {
    Error::new(Code::TRY_AGAIN_LATER, format!("the container runtime: {err}"))
}

impl Runtime for QueriedRuntime {
    fn sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
        let listed = blocking(&self.socket, |client| async move { client.sandboxes().await });
        let sandboxes = listed.map_err(|err| failed(&err))?.into_iter();
        Ok(sandboxes.map(|of| Sandbox { pod: of.pod(), ready: of.ready, id: of.id }).collect())
    }

    fn sandbox(&self, id: &str) -> Result<Option<Detail>, Error> {
        let id = id.to_owned();
        match blocking(&self.socket, |client| async move { client.sandbox(&id).await }) {
            Ok(of) => Ok(Some(Detail {
                ready: of.sandbox.ready,
                ips: of.ips,
                netns: of.netns,
                host_network: of.host_network,
            })),
            Err(err) if err.is_no_sandbox() => Ok(None),
            Err(err) => Err(failed(&err)),
        }
    }
}
