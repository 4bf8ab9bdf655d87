//! Which names the specification and the kernel allow.

use crate::hash16;

/// A container ID or a network name: `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`.
pub fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// The name of the bridge for a network that names none: `br-` with the network's name, or with a hash of it if that is
/// no valid name of an interface.
pub fn bridge_for(network: &str) -> String {
    let name = format!("br-{network}");
    match interface_problem(&name) {
        None => name,
        Some(_) => format!("br-{}", hash16(network).get(..8).unwrap_or_default()),
    }
}

/// The reason that `text` cannot name an interface, or `None` if it can. A name has 1 to 15 bytes without `/`, `:` and
/// white space, and is not `.` or `..` (`dev_valid_name` in the kernel).
pub fn interface_problem(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        Some("interface name is empty")
    } else if text.len() > 15 {
        Some("interface name is too long; the limit is 15 bytes")
    } else if text == "." || text == ".." {
        Some("interface name is . or ..")
    } else if text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
        Some("interface name contains / or : or whitespace")
    } else {
        None
    }
}

/// The reason that `text` cannot name an interface that does not exist yet, or `None` if it can: that of
/// [`interface_problem`], or a `%`. For `%d` in the name of a new interface the kernel writes a number, and refuses any
/// other `%` (`dev_alloc_name`). So the interface would get another name, and each ADD would make another interface.
pub fn new_interface_problem(text: &str) -> Option<&'static str> {
    let pattern =
        text.contains('%').then_some("interface name contains %, and the kernel writes a number for %d");
    interface_problem(text).or(pattern)
}

/// The reason that `text` is no DNS subdomain by RFC 1123, or `None` if it is one: labels with dots between them, such as
/// the name of an object in Kubernetes.
pub fn subdomain_problem(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("is empty");
    }
    if text.len() > 253 {
        return Some("is longer than 253 characters");
    }
    for part in text.split('.') {
        // Only the whole is limited in length.
        let bytes = part.as_bytes();
        if !bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-') {
            return Some("may hold lower-case letters, digits, \"-\" and \".\" only");
        }
        if !bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            || !bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        {
            return Some("must begin and end with a letter or digit, also beside a dot");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers() {
        for good in ["a", "0", "A_b.c-9", &"x".repeat(300)] {
            assert!(is_identifier(good), "{good}");
        }
        for bad in ["", ".", "..", "_a", "-a", "a/b", "a b", "a\n", "é", "a\0"] {
            assert!(!is_identifier(bad), "{bad:?}");
        }
    }

    #[test]
    fn interfaces() {
        for good in ["a", "eth0", "fifteen-bytes-x", "...", "wlan0.5", "@x", "ü"] {
            assert_eq!(interface_problem(good), None, "{good}");
        }
        // Bytes count, not letters.
        for bad in
            ["", ".", "..", "sixteen-bytes-xx", "üüüüüüüü", "a/b", "a:b", "a b", "a\t", "a\u{a0}b", "a\0"]
        {
            assert!(interface_problem(bad).is_some(), "{bad:?}");
            assert_eq!(new_interface_problem(bad), interface_problem(bad), "{bad:?}");
        }
        for pattern in ["br%d", "%", "100%"] {
            assert!(
                interface_problem(pattern).is_none() && new_interface_problem(pattern).is_some(),
                "{pattern}"
            );
        }
    }

    #[test]
    fn subdomains() {
        let long = "a.".repeat(126) + "ab";
        for good in ["a", "web.example.com", "0.0", &long[2..]] {
            assert_eq!(subdomain_problem(good), None, "{good}");
        }
        for bad in ["", ".", "..", ".a", "a.", "a..b", "a.-b", "a/b", "a b", "a\n", &long] {
            assert!(subdomain_problem(bad).is_some(), "{bad}");
        }
    }
}
