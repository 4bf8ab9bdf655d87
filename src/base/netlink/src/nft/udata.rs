//! User data: bytes that the kernel keeps for the `nft` command. They are a list of parts, each with a one-byte kind, a
//! one-byte length and a value (libnftnl/udata.h).

use super::KeyType;
use crate::wire;

/// Both `NFTNL_UDATA_RULE_COMMENT` and `NFTNL_UDATA_SET_ELEM_COMMENT`.
const COMMENT: u8 = 0;

/// The part of a set that a byte order in its user data describes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of {
    /// The byte order of keys: `NFTNL_UDATA_SET_KEYBYTEORDER`.
    Keys = 0,
    /// A map's values: `NFTNL_UDATA_SET_DATABYTEORDER`.
    Values = 1,
}

// `enum byteorder` of nft's sources (include/datatype.h).
const BYTEORDER_INVALID: u32 = 0;
const BYTEORDER_HOST_ENDIAN: u32 = 1;
const BYTEORDER_BIG_ENDIAN: u32 = 2;

/// Returns the part that tells the byte order of keys or values. The `nft` command needs it to print them.
pub(super) fn byte_order(of: Of, parts: &[KeyType]) -> Vec<u8> {
    let order = match parts {
        [KeyType::Ifname] => BYTEORDER_HOST_ENDIAN,
        [_] => BYTEORDER_BIG_ENDIAN,
        _ => BYTEORDER_INVALID,
    };
    let mut out = vec![of as u8, 4];
    out.extend_from_slice(&order.to_ne_bytes());
    out
}

/// Returns the comment in user data, or `None` if there is none before a damaged part.
pub(super) fn comment(userdata: &[u8]) -> Option<String> {
    let mut rest = userdata;
    while let [kind, length, tail @ ..] = rest {
        let value = tail.get(..usize::from(*length))?;
        if *kind == COMMENT {
            return Some(wire::text(value));
        }
        rest = tail.get(usize::from(*length)..)?;
    }
    None
}

/// Returns user data with this comment. It is cut after 254 bytes, because its length byte counts the NUL, too.
pub(super) fn comment_userdata(comment: &str) -> Vec<u8> {
    let text = comment.as_bytes().get(..254).unwrap_or(comment.as_bytes());
    let mut out = vec![COMMENT, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)];
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
