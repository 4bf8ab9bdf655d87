//! Explains TLS failures between a member of etcd and this node.

use cnimble_leases::cluster::config::Etcd;

/// TLS alerts that refuse the client's certificate.
const ALERTS: [&str; 5] =
    ["BadCertificate", "CertificateExpired", "CertificateRequired", "CertificateUnknown", "UnknownCA"];

/// Explains a failure, whose text is the client's. Returns `None` if it isn't about certificates.
pub(super) fn sentence(etcd: &Etcd, url: &str, failure: &str) -> Option<String> {
    if !url.starts_with("https://") {
        return None;
    }
    let ca = etcd.ca.as_deref().unwrap_or(std::path::Path::new("")).display();
    if failure.contains("UnknownIssuer") {
        return Some(format!("its certificate isn't by the authority in {ca} (ipam.etcd.ca)"));
    }
    if failure.contains("NotValidForName") {
        return Some("its certificate isn't for the name or address in ipam.etcd.endpoints".to_owned());
    }
    if failure.contains("invalid peer certificate: certificate expired") {
        return Some("its certificate has expired, or this machine's clock is wrong".to_owned());
    }
    let is_refused = ALERTS.iter().any(|alert| failure.contains(&format!("fatal alert: {alert}")));
    // The member closes the connection behind its alert, which can get lost.
    let failure = failure.to_lowercase();
    let is_closed =
        ["connection closed", "broken pipe", "reset by peer"].iter().any(|what| failure.contains(what));
    let doubt = match (is_refused, is_closed) {
        (true, _) => "",
        (false, true) => "it closes the connection, perhaps for this: ",
        (false, false) => return None,
    };
    Some(match &etcd.identity {
        None => format!("{doubt}it wants a client's certificate (ipam.etcd.certificate and key)"),
        Some((certificate, _)) => format!(
            "{doubt}it refuses {} (ipam.etcd.certificate), which has expired or isn't by an authority that it trusts",
            certificate.display()
        ),
    })
}
