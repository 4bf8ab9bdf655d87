//! The holder of a lease, which is the content of a lease file.
//!
//! The Go plugin writes `<containerID>\r\n<ifname>` without a newline at the end. Releases before 0.8 wrote the
//! container ID alone. White space around it doesn't count. Other content was cut short by a crash, or never was a
//! lease.

use cnimble_cni::Attachment;

/// The holder of an address, by its lease file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// An attachment.
    Attachment(Attachment),
    /// A container without an interface, as old releases of the Go plugin wrote it.
    Container(String),
    /// Nobody: the file is empty or has no valid content, so the address is free.
    Broken,
    /// Something that can't be read, is no file, or is far too large. Another program may have made it, so the address
    /// counts as taken.
    Unknown,
}

/// Returns whether a text can be the ID of a container or the name of an interface.
fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

impl Holder {
    /// Reads a lease file's content.
    pub fn parse(content: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(content) else {
            return Holder::Broken;
        };
        match text.trim().split_once("\r\n") {
            Some((id, ifname)) if is_word(id) && is_word(ifname) => {
                Holder::Attachment(Attachment { container_id: id.to_owned(), ifname: ifname.to_owned() })
            }
            None if is_word(text.trim()) => Holder::Container(text.trim().to_owned()),
            _ => Holder::Broken,
        }
    }

    /// Returns the container's ID, or `None` if nobody is known.
    pub fn container(&self) -> Option<&str> {
        match self {
            Holder::Attachment(own) => Some(&own.container_id),
            Holder::Container(id) => Some(id),
            Holder::Broken | Holder::Unknown => None,
        }
    }

    /// Returns whether the lease names the attachment with its interface.
    pub fn is(&self, attachment: &Attachment) -> bool {
        matches!(self, Holder::Attachment(own) if own == attachment)
    }

    /// Returns whether the lease names the attachment's container and no interface.
    pub fn is_container_of(&self, attachment: &Attachment) -> bool {
        matches!(self, Holder::Container(id) if *id == attachment.container_id)
    }
}

/// Returns the content of an attachment's lease file.
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
            assert!(Holder::parse(text.as_bytes()).is(&own), "{text:?}");
        }
        for text in ["c1", "c1\n", "c1\r\n"] {
            let owner = Holder::parse(text.as_bytes());
            assert!(!owner.is(&own) && owner.is_container_of(&own), "{text:?}");
        }
        for text in ["c1\r\neth1", "c11\r\neth0", "c1.eth0", "C1"] {
            let owner = Holder::parse(text.as_bytes());
            assert!(!owner.is(&own) && !owner.is_container_of(&own), "{text:?}");
            assert_ne!(owner, Holder::Broken);
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
            assert_eq!(Holder::parse(bytes), Holder::Broken, "{bytes:?}");
        }
    }
}
