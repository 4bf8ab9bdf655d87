//! Entry points for fuzzers: the parsers for answers of servers and for kubeconfigs. Each accepts any bytes.

use std::path::Path;

use crate::kubeconfig::{Credentials, understood};
use crate::page::{SplitError, Splitter};

const FILE: &[u8] = b"-----BEGIN CERTIFICATE-----\nYw==\n-----END CERTIFICATE-----\n";

/// Parses any bytes as a kubeconfig, and as the files of one.
pub fn kubeconfig(bytes: &[u8]) {
    with_files(bytes, FILE);
    with_files(KUBECONFIG, bytes);
}

/// All files that the kubeconfig names have the same content.
fn with_files(bytes: &[u8], file: &[u8]) {
    let read = |_: &Path| Ok(file.to_vec());
    let Ok(access) = understood(bytes, Path::new("/kube/config"), &read) else { return };
    assert!(matches!(access.server.scheme_str(), Some("http" | "https")) && access.server.host().is_some());
    assert!(!access.tls.insecure || access.tls.authorities.is_none());
    if let Credentials::TokenFile(path) = &access.credentials {
        assert!(path.is_absolute());
    }
    // The system's authorities are not the subject of this test.
    if access.tls.insecure || access.tls.authorities.is_some() {
        let _ = crate::http::Client::new(&access.server, &access.tls);
    }
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
    if splitter.take_piece(bytes, take).is_ok() {
        let _ = splitter.finish();
    }
}
