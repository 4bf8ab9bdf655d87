//! The hashes that names on disk and in the kernel are made of, as the Go plugins make them.

use sha2::{Digest, Sha512};

const HASH16_LEN: usize = 16;

/// The bytes in lower-case hex.
pub fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    let digits = bytes.into_iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// The SHA-512 of `bytes`.
pub fn sha512(bytes: impl AsRef<[u8]>) -> [u8; 64] {
    Sha512::digest(bytes.as_ref()).into()
}

/// The first `bytes` bytes of the SHA-512 of `text`, in hex: twice as many digits.
pub fn sha512_hex(text: impl AsRef<[u8]>, bytes: usize) -> String {
    hex(sha512(text).into_iter().take(bytes))
}

/// The first 16 hex digits of the SHA-512 of `text`.
pub fn hash16(text: &str) -> String {
    sha512_hex(text, HASH16_LEN / 2)
}

/// Returns true if and only if `text` has the form of a [`hash16`].
pub fn is_hash16(text: &str) -> bool {
    text.len() == HASH16_LEN && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash16_is_the_beginning_of_the_sha512() {
        // echo -n bridge | sha512sum
        assert_eq!(hash16("bridge"), "7d24d33e39064c8a");
        assert!(
            is_hash16("7d24d33e39064c8a") && !is_hash16("7d24d33e39064c8") && !is_hash16("7d24d33e39064c8g")
        );
    }
}
