//! Entry points for fuzzers: the parsers for answers of servers and for kubeconfigs. Each accepts any bytes.

use crate::page::{SplitError, Splitter};

const FILE: &[u8] = b"-----BEGIN CERTIFICATE-----\nYw==\n-----END CERTIFICATE-----\n";

/// Parses any bytes as a kubeconfig, and as the files of one.
pub fn kubeconfig(bytes: &[u8]) {
    crate::kubeconfig::fuzz(bytes, FILE);
    crate::kubeconfig::fuzz(KUBECONFIG, bytes);
}

const KUBECONFIG: &[u8] = b"current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://k', certificate-authority: ca}}]
users: [{name: u, user: {client-certificate: c, client-key: k}}]
";

/// Parses any bytes as a page of a list. `each` receives its items.
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
