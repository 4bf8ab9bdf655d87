//! Acknowledgements, with the kernel's explanation (extended ack).

use nix::errno::Errno;

use super::{Attributes, Malformed, Message, text, u32_ne};
use crate::uapi::netlink::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_ERROR, NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS, NLMSGHDR,
};

/// The content of an `NLMSG_ERROR` or `NLMSG_DONE`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ack {
    /// The errno of the refusal as a positive number, or 0 if the request was carried out.
    pub(crate) code: i32,
    /// The kernel's explanation. It is empty if there is none.
    pub(crate) text: String,
    /// The offset of the attribute that the kernel refuses, from the beginning of the request.
    pub(crate) offset: Option<u32>,
}

impl Ack {
    /// Reads an `NLMSG_ERROR` (`struct nlmsgerr`) or `NLMSG_DONE`. In an `NLMSG_ERROR` the extended ack stands behind
    /// the request that the kernel repeats. Of a capped one (NLM_F_CAPPED) the kernel repeats only the header.
    pub(crate) fn read(message: &Message<'_>) -> Result<Self, Malformed> {
        let code = u32_ne(message.body, 0).ok_or(Malformed("an acknowledgement without a code"))?;
        let mut ack = Ack { code: code.cast_signed().min(0).saturating_neg(), ..Ack::default() };
        if message.flags & NLM_F_ACK_TLVS == 0 {
            return Ok(ack);
        }
        let mut skip = 4;
        if message.kind == NLMSG_ERROR {
            skip += match message.flags & NLM_F_CAPPED {
                0 => usize::try_from(u32_ne(message.body, 4).unwrap_or(0)).unwrap_or(usize::MAX),
                _ => NLMSGHDR,
            };
        }
        // The errno is what matters: a text that can't be read is left out.
        let tlvs = message.body.get(skip..).unwrap_or_default();
        for (kind, value) in Attributes::new(tlvs).flatten() {
            match kind {
                NLMSGERR_ATTR_MSG => ack.text = text(value),
                NLMSGERR_ATTR_OFFS => ack.offset = u32_ne(value, 0),
                _ => {}
            }
        }
        Ok(ack)
    }

    /// Returns the errno of a refusal, or `None` if the request was carried out.
    pub(crate) fn errno(&self) -> Option<Errno> {
        (self.code != 0).then(|| Errno::from_raw(self.code))
    }
}
