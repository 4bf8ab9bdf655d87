//! Validates names as Kubernetes does. Each function returns what is wrong, or `None` for a valid name, by
//! apimachinery's `validation` package, RFC 1123 and RFC 6335.

use cnimble_cni::names::subdomain_problem;

/// Checks a DNS label by RFC 1123, as of a namespace, a container or a host name.
pub(super) fn label(text: &str) -> Option<&'static str> {
    let bytes = text.as_bytes();
    if bytes.is_empty() {
        return Some("is empty");
    }
    if bytes.len() > 63 {
        return Some("is longer than 63 characters");
    }
    if !bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-') {
        return Some("may hold lower-case letters, digits and \"-\" only");
    }
    if bytes.first() == Some(&b'-') || bytes.last() == Some(&b'-') {
        return Some("must begin and end with a letter or digit");
    }
    None
}

/// Checks a search domain of resolv.conf(5): a subdomain that may end in a dot and have underscores, or the root alone.
pub(super) fn search(text: &str) -> Option<&'static str> {
    if text == "." {
        return None;
    }
    subdomain_problem(&text.strip_suffix('.').unwrap_or(text).replace('_', "x"))
}

/// Checks a port's name (IANA_SVC_NAME).
pub(super) fn port(text: &str) -> Option<&'static str> {
    let bytes = text.as_bytes();
    if bytes.is_empty() || bytes.len() > 15 {
        return Some("must have 1 to 15 characters");
    }
    if !bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-') {
        return Some("may hold lower-case letters, digits and \"-\" only");
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        return Some("must have a letter");
    }
    if bytes.first() == Some(&b'-') || bytes.last() == Some(&b'-') || text.contains("--") {
        return Some("must not begin or end with \"-\", nor have two side by side");
    }
    None
}

/// Checks the key of a label or annotation: `[SUBDOMAIN/]NAME`.
pub(super) fn qualified(text: &str) -> Option<&'static str> {
    let name = match text.split_once('/') {
        Some((prefix, name)) => {
            if subdomain_problem(prefix).is_some() {
                return Some("must have a DNS name before the \"/\"");
            }
            name
        }
        None => text,
    };
    if name.is_empty() { Some("has an empty name") } else { label_value(name) }
}

/// Checks the value of a label, which may be empty.
pub(super) fn label_value(text: &str) -> Option<&'static str> {
    let bytes = text.as_bytes();
    if bytes.len() > 63 {
        return Some("is longer than 63 characters");
    }
    if !bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte)) {
        return Some("may hold letters, digits, \"-\", \"_\" and \".\" only");
    }
    let ends = [bytes.first(), bytes.last()];
    if !ends.into_iter().flatten().all(u8::is_ascii_alphanumeric) {
        return Some("must begin and end with a letter or digit");
    }
    None
}

/// Checks a UID. Kubernetes accepts any text, but here it becomes part of file names and of CNI_ARGS.
pub(super) fn uid(text: &str) -> Option<&'static str> {
    if text.len() > 128 {
        return Some("is longer than 128 characters");
    }
    if !text.starts_with(|first: char| first.is_ascii_alphanumeric())
        || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        return Some(
            "must begin with a letter or digit, and may hold letters, digits, \"-\", \"_\" and \".\" only",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        let long = "a".repeat(64);
        for good in ["a", "0", "web-1", &long[1..]] {
            assert_eq!(label(good), None, "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", "a/b", "..", &long] {
            assert!(label(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn ports_keys_values_and_uids() {
        assert_eq!(port("http-2"), None);
        for bad in ["", "80", "-a", "a-", "a--b", "Http", "sixteen-letters-"] {
            assert!(port(bad).is_some(), "{bad}");
        }
        for good in ["a", "kubernetes.io/ingress-bandwidth", "A_b.c"] {
            assert_eq!(qualified(good), None, "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "K8s.io/a", "a b"] {
            assert!(qualified(bad).is_some(), "{bad}");
        }
        assert_eq!(label_value(""), None);
        assert!(label_value("-a").is_some());
        assert_eq!(uid("0123-abc"), None);
        for bad in ["", "..", "../x", "a/b", "a;b=c", "-a", "a\nb"] {
            assert!(uid(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn search_domains() {
        for good in [".", "example.com.", "_tcp.example.com", "a_b.c"] {
            assert_eq!(search(good), None, "{good}");
        }
        for bad in ["", "..", "a..", "a b", "a\noptions x"] {
            assert!(search(bad).is_some(), "{bad}");
        }
    }
}
