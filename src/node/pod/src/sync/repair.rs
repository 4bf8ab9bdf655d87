use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};

/// A function that puts back what the host has lost of a sandbox, such as packet rules. It gets the sandbox's ID, and
/// returns what it has put back in words, or `None` if it has put back nothing.
#[derive(Clone)]
pub struct Repair(Arc<PutBack>);

type PutBack = dyn Fn(String) -> BoxFuture<'static, Option<String>> + Send + Sync;

impl Repair {
    pub fn new<F: Future<Output = Option<String>> + Send + 'static>(
        put_back: impl Fn(String) -> F + Send + Sync + 'static,
    ) -> Self {
        Repair(Arc::new(move |sandbox| put_back(sandbox).boxed()))
    }

    pub(super) async fn put_back(&self, sandbox: &str) -> Option<String> {
        (self.0)(sandbox.to_owned()).await
    }
}

impl fmt::Debug for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Repair")
    }
}
