//! The readers of what sources are told, for fuzzers.

/// A file that holds no key.
const FILE: &[u8] = b"-----BEGIN CERTIFICATE-----\nYw==\n-----END CERTIFICATE-----\n";

/// Takes any bytes for a kubeconfig, and for the files that one names.
pub(crate) fn kubeconfig(bytes: &[u8]) {
    super::kubeconfig::fuzz(bytes, FILE);
    super::kubeconfig::fuzz(KUBECONFIG, bytes);
}

const KUBECONFIG: &[u8] = b"current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://k', certificate-authority: ca}}]
users: [{name: u, user: {client-certificate: c, client-key: k}}]
";

/// Takes any bytes for an API server's answer, and for where a URL's answer leads to.
pub(crate) fn server(bytes: &[u8]) {
    super::listed::fuzz(bytes);
    super::url::fuzz(&String::from_utf8_lossy(bytes));
}
