//! The readers of what a server and a kubeconfig say, for fuzzers: each takes any bytes.

use crate::page::{SplitError, Splitter};

/// A file that holds no key.
const FILE: &[u8] = b"-----BEGIN CERTIFICATE-----\nYw==\n-----END CERTIFICATE-----\n";

/// Takes any bytes for a kubeconfig, and for the files that one names.
pub fn kubeconfig(bytes: &[u8]) {
    crate::kubeconfig::fuzz(bytes, FILE);
    crate::kubeconfig::fuzz(KUBECONFIG, bytes);
}

const KUBECONFIG: &[u8] = b"current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://k', certificate-authority: ca}}]
users: [{name: u, user: {client-certificate: c, client-key: k}}]
";

/// Takes any bytes for a page of a list, whose items `each` gets.
pub fn page(bytes: &[u8], mut each: impl FnMut(&[u8])) {
    let mut splitter = Splitter::default();
    let take = |item: &[u8]| {
        each(item);
        Ok::<_, SplitError>(())
    };
    if splitter.take(bytes, take).is_ok() {
        let _ = splitter.finish();
    }
}
