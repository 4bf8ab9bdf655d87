//! Whose a lease is: the content of a lease file.
//!
//! The reference writes `<containerID>\r\n<ifname>` without a newline at the end; releases
//! before 0.8 wrote the container ID alone. White space around it doesn't count. Anything
//! else was cut short by a crash or never was a lease.

use cnimble_cni::Attachment;

/// What a lease file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// One interface of a container.
    Attachment(Attachment),
    /// A container, in the form of old releases.
    Container(String),
    /// Empty or garbage: nobody holds the address.
    Nobody,
    /// Not a file, or one that is far too large: not ours to judge, so the address is taken.
    Unknown,
}

impl Owner {
    /// Reads a lease file's content.
    pub fn parse(content: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(content) else {
            return Owner::Nobody;
        };
        let is_word =
            |word: &str| !word.is_empty() && !word.chars().any(|c| c.is_whitespace() || c.is_control());
        match text.trim().split_once("\r\n") {
            Some((id, ifname)) if is_word(id) && is_word(ifname) => {
                Owner::Attachment(Attachment { container_id: id.to_owned(), ifname: ifname.to_owned() })
            }
            None if is_word(text.trim()) => Owner::Container(text.trim().to_owned()),
            _ => Owner::Nobody,
        }
    }

    /// The container that the lease names.
    pub fn container(&self) -> Option<&str> {
        match self {
            Owner::Attachment(own) => Some(&own.container_id),
            Owner::Container(id) => Some(id),
            Owner::Nobody | Owner::Unknown => None,
        }
    }

    /// Whether the lease is `attachment`'s, in the form that is written today.
    pub fn is(&self, attachment: &Attachment) -> bool {
        matches!(self, Owner::Attachment(own) if own == attachment)
    }

    /// Whether the lease names `attachment`'s container and no interface.
    pub fn is_container_of(&self, attachment: &Attachment) -> bool {
        matches!(self, Owner::Container(id) if *id == attachment.container_id)
    }
}

/// The content of `attachment`'s lease files.
pub fn content(attachment: &Attachment) -> Vec<u8> {
    format!("{}\r\n{}", attachment.container_id, attachment.ifname).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_reference_writes() {
        let own = Attachment { container_id: "c1".into(), ifname: "eth0".into() };
        assert_eq!(content(&own), b"c1\r\neth0");
        for text in ["c1\r\neth0", "c1\r\neth0\n", " c1\r\neth0\r\n"] {
            assert!(Owner::parse(text.as_bytes()).is(&own), "{text:?}");
        }
        for text in ["c1", "c1\n", "c1\r\n"] {
            let owner = Owner::parse(text.as_bytes());
            assert!(!owner.is(&own) && owner.is_container_of(&own), "{text:?}");
        }
        for text in ["c1\r\neth1", "c11\r\neth0", "c1.eth0", "C1"] {
            let owner = Owner::parse(text.as_bytes());
            assert!(!owner.is(&own) && !owner.is_container_of(&own), "{text:?}");
            assert_ne!(owner, Owner::Nobody);
        }
    }

    #[test]
    fn garbage_is_nobodys() {
        for bytes in [
            &b""[..],
            b" \r\n ",
            b"\0\0\0\0",
            b"c1\r\n\0\0\0\0",
            b"\xff\xfe",
            b"two words",
            b"c1\r\neth0\r\nmore",
            b"c1\neth0",
        ] {
            assert_eq!(Owner::parse(bytes), Owner::Nobody, "{bytes:?}");
        }
    }
}
