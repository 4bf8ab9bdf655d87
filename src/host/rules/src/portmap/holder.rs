//! The container that has a port which another one wants.

use std::fmt;

use cnimble_cni::owner::{COMMENT_LIMIT, tag};
use cnimble_cni::{Code, Error, Owner};

/// Returns true only if a container is certainly gone. Its mappings are then removed.
pub type IsGone<'g> = &'g dyn Fn(&Holder) -> bool;

/// The container that has a port, as far as the comment of its rule or element tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The name of the network. `None` in the Go plugins' nf_tables rules, which have the container's ID alone.
    pub network: Option<String>,
    /// The container's ID, which may have been cut if there is a [`tag`](Self::tag).
    pub container: String,
    /// The [`Owner::tag`] in a comment of ours. It identifies an attachment whose ID was cut.
    pub tag: Option<String>,
}

impl Holder {
    /// Reads a comment of [`Owner::comment`]. Returns `None` for any other text.
    pub(super) fn of_comment(comment: &str) -> Option<Self> {
        let Owner { network, attachment } = Owner::named(comment)?;
        let tag = Some(tag(comment)?.to_owned());
        // The comment is cut at its end, so the network's name is whole.
        Some(Holder { network: Some(network), container: attachment.container_id, tag })
    }

    /// Returns whether this is an attachment: by the tag if there is one, else by the container's ID. A holder without
    /// a network may be in any.
    pub fn is(&self, of: &Owner) -> bool {
        let network = self.network.as_ref().is_none_or(|network| *network == of.network);
        network
            && match &self.tag {
                Some(tag) => *tag == of.tag(),
                None => self.container == of.attachment.container_id,
            }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(network) = &self.network {
            write!(f, "net: {network}, ")?;
        }
        let limit = self.container.len().min(COMMENT_LIMIT);
        write!(f, "id: {}", self.container.get(..limit).unwrap_or_default())
    }
}

/// Returns the error for a port that belongs to another container (code 102). Both names are for people.
pub(super) fn refusal(port: &str, holder: &str) -> Error {
    Error::new(Code::CONFLICT, format!("{port} is already taken"))
        .details(format!("it belongs to {holder}"))
        .details("if that container is gone, its DEL or a GC of its network frees the port")
}
