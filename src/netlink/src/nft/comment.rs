//! Comments on rules and elements.

use super::attr;

/// The comment in user data: a list of one-byte kind, one-byte length, value; kind 0 is the
/// comment for rules and elements alike (libnftnl/udata.h).
pub(super) fn comment(userdata: &[u8]) -> Option<String> {
    let mut rest = userdata;
    while let [kind, length, tail @ ..] = rest {
        let value = tail.get(..usize::from(*length))?;
        if *kind == 0 {
            return Some(attr::text(value));
        }
        rest = tail.get(usize::from(*length)..)?;
    }
    None
}

/// User data with a comment, cut to what its length byte can say.
pub(super) fn comment_userdata(comment: &str) -> Vec<u8> {
    let text = comment.as_bytes().get(..254).unwrap_or(comment.as_bytes());
    let mut out = vec![0, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)];
    out.extend_from_slice(text);
    out.push(0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_there_and_back() {
        assert_eq!(comment(&comment_userdata("net: a")).as_deref(), Some("net: a"));
        // Something else in front of it.
        let mut both = vec![2, 1, 0xff];
        both.extend(comment_userdata("x"));
        assert_eq!(comment(&both).as_deref(), Some("x"));
        assert_eq!(comment(&[0, 200, b'x']), None);
        assert_eq!(comment_userdata(&"x".repeat(300)).len(), 257);
    }
}
