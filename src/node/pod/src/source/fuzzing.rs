/// Takes any bytes for a server's answer, and for a redirection.
pub(crate) fn server(bytes: &[u8]) {
    super::listed::fuzz(bytes);
    super::url::fuzz(&String::from_utf8_lossy(bytes));
}
