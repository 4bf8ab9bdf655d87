//! The missing feature of a kernel that refuses a request with an errno and no explanation.

use nix::errno::Errno;

use super::{Batch, Family};
use crate::Error;
use crate::uapi::nf_tables::NFT_MSG_GETSETELEM;

const NF_TABLES: &str = "the kernel has no nf_tables (CONFIG_NF_TABLES)";

/// Explains the error of a query, whose type is `kind`. Netfilter answers EINVAL to a subsystem that it doesn't have.
pub(super) fn in_query(err: Error, kind: u16) -> Error {
    match kind {
        _ if !err.is(Errno::EINVAL) || !err.is_bare() => err,
        // Some kernels answer the same to a key of the wrong length.
        NFT_MSG_GETSETELEM => {
            err.explained(format!("{NF_TABLES}, or the keys of the set have another length"))
        }
        _ => err.explained(NF_TABLES),
    }
}

/// Explains the error of the message at `index` of a batch. Netfilter answers EOPNOTSUPP to the beginning of a batch
/// for a subsystem that it doesn't have. So does nf_tables to a table of a family that it doesn't have.
pub(super) fn in_batch(err: Error, batch: &Batch, index: u32) -> Error {
    if !err.is(Errno::EOPNOTSUPP) || !err.is_bare() {
        return err;
    }
    match batch.creates_table(index) {
        _ if index == 0 => err.explained(NF_TABLES),
        Some(family) => {
            let option = match family {
                Family::Inet => "CONFIG_NF_TABLES_INET",
                Family::Ipv4 => "CONFIG_NF_TABLES_IPV4",
                Family::Ipv6 => "CONFIG_NF_TABLES_IPV6",
                Family::Bridge => "CONFIG_NF_TABLES_BRIDGE",
            };
            err.explained(format!("the kernel's nf_tables has no family {family} ({option})"))
        }
        None => err,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::Table;
    use crate::socket::Protocol;
    use crate::uapi::netlink::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_ERROR, NLMSGERR_ATTR_MSG, NLMSGHDR};
    use crate::uapi::nf_tables::{NFT_MSG_GETGEN, NFT_MSG_GETTABLE};
    use crate::wire::{self, Ack, Messages};

    /// The error that a refusal becomes which the kernel sends with `text`, or without one.
    fn refusal(what: &str, errno: Errno, text: &str) -> Error {
        let mut header = (-(errno as i32)).to_ne_bytes().to_vec();
        header.extend([0; NLMSGHDR]);
        let mut flags = NLM_F_CAPPED;
        if !text.is_empty() {
            flags |= NLM_F_ACK_TLVS;
        }
        let bytes = wire::message(NLMSG_ERROR, flags, &header, |w| {
            if !text.is_empty() {
                w.text(NLMSGERR_ATTR_MSG, text);
            }
        });
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        Protocol::Netfilter.refusal(what, Ack::read(&message).unwrap()).unwrap()
    }

    #[test]
    fn a_query_of_a_kernel_without_nf_tables_says_so() {
        let bare = |kind| in_query(refusal("read x", Errno::EINVAL, ""), kind).to_string();
        for kind in [NFT_MSG_GETGEN, NFT_MSG_GETTABLE] {
            assert_eq!(bare(kind), "read x: the kernel has no nf_tables (CONFIG_NF_TABLES)");
        }
        assert!(bare(NFT_MSG_GETSETELEM).contains("CONFIG_NF_TABLES"));
        // Other refusals keep their words.
        for (errno, text) in [(Errno::EINVAL, "bad attribute"), (Errno::EPERM, ""), (Errno::ENOENT, "")] {
            let err = refusal("read x", errno, text);
            assert_eq!(in_query(err.clone(), NFT_MSG_GETTABLE), err);
        }
        let pointed = refusal("read x", Errno::EINVAL, "").pointed(Some(20));
        assert_eq!(in_query(pointed.clone(), NFT_MSG_GETTABLE), pointed);
    }

    #[test]
    fn a_batch_names_the_subsystem_or_the_family_that_is_missing() {
        let mut batch = Batch::new();
        let table = Table::new(Family::Bridge, "t");
        batch.create_table(table);
        batch.create_chain(table.chain("c"));
        let told = |index, errno| in_batch(refusal("it", errno, ""), &batch, index).to_string();
        assert_eq!(told(0, Errno::EOPNOTSUPP), "it: the kernel has no nf_tables (CONFIG_NF_TABLES)");
        assert_eq!(
            told(1, Errno::EOPNOTSUPP),
            "it: the kernel's nf_tables has no family bridge (CONFIG_NF_TABLES_BRIDGE)"
        );
        for (index, errno) in [(1, Errno::EEXIST), (2, Errno::EOPNOTSUPP), (0, Errno::EPERM)] {
            assert_eq!(told(index, errno), Error::new("it", errno).to_string());
        }
    }
}
