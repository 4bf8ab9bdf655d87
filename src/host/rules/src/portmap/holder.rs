//! The holder of a port that another container wants.

use std::fmt;

use cnimble_cni::owner::{COMMENT_LIMIT, tag};
use cnimble_cni::{Code, Error, Owner};

/// Whether a container is gone for certain.
pub type IsGone<'g> = &'g dyn Fn(&Holder) -> bool;

/// The holder of a port, as far as the comment beside it tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub network: Option<String>,
    pub container: String,
    /// A cut ID needs it ([`Owner::tag`]).
    pub tag: Option<String>,
}

impl Holder {
    pub(super) fn of_comment(comment: &str) -> Option<Self> {
        let Owner { network, attachment } = Owner::named(comment)?;
        let tag = Some(tag(comment)?.to_owned());
        // The network's name is in front of what may have been cut.
        Some(Holder { network: Some(network), container: attachment.container_id, tag })
    }

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

pub(super) fn refusal(port: &str, holder: &str) -> Error {
    Error::new(Code::CONFLICT, format!("{port} is already taken"))
        .details(format!("it belongs to {holder}"))
        .details("if that container is gone, its DEL or a GC of its network frees the port")
}
