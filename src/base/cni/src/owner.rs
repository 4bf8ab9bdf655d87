//! The owner of links, leases and rules, and how its name is written on objects in the kernel.

use std::collections::BTreeSet;

use crate::Attachment;
use crate::hash::{hash16, is_hash16};

/// The longest comment that the kernel and the `nft` command take, in bytes.
pub const COMMENT_LIMIT: usize = 128;

/// The owner of links, leases and rules: an attachment in a network. It names objects in the kernel, so it gets no
/// other fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name of the network.
    pub network: String,
    /// The container and its interface.
    pub attachment: Attachment,
}

impl Owner {
    /// Returns `<H16(network)>-<H16(ifname:containerID)>`: 33 characters that identify an owner. The Go plugins'
    /// nf_tables comments begin the same way.
    pub fn tag(&self) -> String {
        let Attachment { container_id, ifname } = &self.attachment;
        format!("{}-{}", hash16(&self.network), hash16(&format!("{ifname}:{container_id}")))
    }

    /// Returns the tag and the names for people, cut to [`COMMENT_LIMIT`] bytes: `<tag>, net: N, if: I, id: C`.
    pub fn comment(&self) -> String {
        self.comment_with("")
    }

    /// Returns the comment with a note like `, mac: …` behind the tag, where it isn't cut.
    pub fn comment_with(&self, note: &str) -> String {
        let Attachment { container_id, ifname } = &self.attachment;
        let names = format!(", net: {}, if: {ifname}, id: {container_id}", self.network);
        let mut comment = format!("{}{note}{names}", self.tag()).replace('"', "");
        let mut end = comment.len().min(COMMENT_LIMIT);
        while !comment.is_char_boundary(end) {
            end -= 1;
        }
        comment.truncate(end);
        comment
    }

    /// Returns true if this owner wrote the comment (or alias), by [`Owner::comment`]. A truncated comment counts, too.
    pub fn owns(&self, comment: &str) -> bool {
        comment.strip_prefix(&self.tag()).is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
    }

    /// Returns the names in a comment (or alias) written by [`Owner::comment`]. If the container ID was truncated,
    /// [`Owner::tag`] of the result differs from the comment's tag. Returns `None` if it was cut before the ID, and for
    /// any other text.
    pub fn named(comment: &str) -> Option<Self> {
        let (_, rest) = comment.split_once(", net: ")?;
        let (network, rest) = rest.split_once(", if: ")?;
        let (ifname, container_id) = rest.split_once(", id: ")?;
        let attachment = Attachment { container_id: container_id.to_owned(), ifname: ifname.to_owned() };
        Some(Owner { network: network.to_owned(), attachment })
    }

    /// Returns whether a comment is of an attachment of this container, in any network. The tag decides, also for a
    /// truncated ID. False for a comment that was truncated in front of the ID.
    pub fn is_of_container(comment: &str, container_id: &str) -> bool {
        let (Some(tag), Some(mut named)) = (tag(comment), Owner::named(comment)) else { return false };
        container_id.clone_into(&mut named.attachment.container_id);
        named.tag() == tag
    }

    /// Returns whether a comment belongs to some attachment of `network`.
    pub fn in_network(comment: &str, network: &str) -> bool {
        comment.strip_prefix(&hash16(network)).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Returns a function that is true for comments of attachments of `network` that aren't in `valid`, and false for all
/// others.
pub fn stale(network: &str, valid: &[Attachment]) -> impl Fn(&str) -> bool {
    let prefix = format!("{}-", hash16(network));
    let keep: BTreeSet<String> = valid
        .iter()
        .map(|attachment| Owner { network: network.to_owned(), attachment: attachment.clone() }.tag())
        .collect();
    move |comment| comment.starts_with(&prefix) && !keep.contains(tag_of(comment))
}

/// Returns the tag at the start of a comment written by [`Owner::comment`]. The text must be such a comment; see
/// [`tag`].
pub fn tag_of(comment: &str) -> &str {
    comment.split(',').next().unwrap_or_default()
}

/// Returns the tag that a comment or alias of ours begins with, or `None` for any other text.
pub fn tag(comment: &str) -> Option<&str> {
    let tag = tag_of(comment);
    let (network, attachment) = tag.split_once('-')?;
    (is_hash16(network) && is_hash16(attachment)).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(network: &str, container_id: &str) -> Owner {
        Owner {
            network: network.into(),
            attachment: Attachment { container_id: container_id.into(), ifname: "eth0".into() },
        }
    }

    #[test]
    fn the_tag_is_the_references() {
        let cid = "default-237eaf51aa0c1411433db10b2c8dac0f826f87ac6f48c62084ee84c3d9c20384";
        let owner = owner("bridge", cid);
        assert_eq!(owner.tag(), "7d24d33e39064c8a-1eeb2d13d47685fc");
        let comment = owner.comment();
        assert_eq!(comment.len(), 128);
        assert!(owner.owns(&comment) && Owner::in_network(&comment, "bridge"));
    }

    #[test]
    fn names_are_read_back() {
        let owner = owner("net", "abc");
        assert_eq!(Owner::named(&owner.comment()), Some(owner));
        assert_eq!(Owner::named("a bridge of mine"), None);
    }

    #[test]
    fn a_container_is_known_whatever_was_cut() {
        let (long, other) = ("c".repeat(100), "c".repeat(99));
        for network in ["net", "a-network-of-a-rather-long-name"] {
            let comment = owner(network, &long).comment_with(", of: 4");
            assert_eq!(comment.len(), COMMENT_LIMIT);
            assert!(Owner::is_of_container(&comment, &long), "{comment}");
            assert!(!Owner::is_of_container(&comment, &other), "{comment}");
        }
        let cut = owner(&"n".repeat(100), "c").comment();
        assert!(!Owner::is_of_container(&cut, "c") && !Owner::is_of_container("a bridge of mine", "c"));
    }

    #[test]
    fn a_comment_is_cut_between_letters() {
        // In the middle of one it would be a panic.
        for length in 20..26 {
            let comment = owner(&"n".repeat(length), &"é".repeat(60)).comment();
            assert!((COMMENT_LIMIT - 1..=COMMENT_LIMIT).contains(&comment.len()), "{comment}");
        }
    }

    #[test]
    fn gc_takes_what_is_of_the_network_and_not_valid() {
        let [kept, gone, other] = [owner("n", "kept"), owner("n", "gone"), owner("m", "gone")];
        let is_stale = stale("n", std::slice::from_ref(&kept.attachment));
        assert!(is_stale(&gone.comment()) && is_stale(&gone.tag()));
        assert!(!is_stale(&kept.comment()) && !is_stale(&kept.tag()) && !is_stale(&kept.comment_with(", x")));
        assert!(!is_stale(&other.comment()) && !is_stale("a rule of mine") && !is_stale(""));
    }

    #[test]
    fn a_tag_is_two_hashes() {
        let own = owner("n", "a");
        assert_eq!(tag(&own.comment()), Some(own.tag().as_str()));
        let hash = hash16("x");
        for text in [format!("{hash}-mine"), format!("mine-{hash}"), hash, "a-b".to_owned(), String::new()] {
            assert_eq!(tag(&text), None, "{text}");
        }
    }

    #[test]
    fn owners_are_told_apart() {
        let (a, b) = (owner("n", "a"), owner("n", "b"));
        assert!(!a.owns(&b.comment()) && !a.owns("") && !Owner::in_network(&a.comment(), "other"));
    }
}
