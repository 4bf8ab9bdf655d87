//! A batch: changes that the kernel makes all together or not at all.

use super::attr::Writer;
use super::comment::comment_userdata;
use super::expr::Expr;
use super::{Chain, Element, Family, Hook, Key, KeyType, Set, SetType, Table};

// Messages (linux/netfilter/nf_tables.h), below the subsystem number.
pub(super) const SUBSYSTEM: u16 = 10;
pub(super) const GETTABLE: u16 = 1;
pub(super) const NEWCHAIN: u16 = 3;
pub(super) const GETCHAIN: u16 = 4;
pub(super) const NEWRULE: u16 = 6;
pub(super) const GETRULE: u16 = 7;
pub(super) const NEWSET: u16 = 9;
pub(super) const GETSET: u16 = 10;
pub(super) const NEWSETELEM: u16 = 12;
pub(super) const GETSETELEM: u16 = 13;
pub(super) const GETGEN: u16 = 16;
const NEWTABLE: u16 = 0;
const DELTABLE: u16 = 2;
const DELCHAIN: u16 = 5;
const DELRULE: u16 = 8;
const DELSET: u16 = 11;
const DELSETELEM: u16 = 14;

// Flags of `struct nlmsghdr` (netlink(7)).
pub(super) const NLM_F_REQUEST: u16 = 0x1;
pub(super) const NLM_F_ACK: u16 = 0x4;
pub(super) const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
/// Refuse to delete what still has something in it.
const NLM_F_NONREC: u16 = 0x100;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

/// Elements in one message: each has at most some 350 bytes, all of them less than 64 KiB.
const ELEMENTS: usize = 150;

/// A list of changes. Nothing happens until [`Nft::commit`](super::Nft::commit).
#[derive(Debug, Clone)]
pub struct Batch {
    writer: Writer,
    /// What each message does, for errors; the first is the batch's beginning.
    whats: Vec<String>,
    last: usize,
    sets: u32,
}

impl Default for Batch {
    fn default() -> Self {
        Batch::new()
    }
}

impl Batch {
    /// No changes.
    pub fn new() -> Self {
        let mut writer = Writer::default();
        writer.message(BATCH_BEGIN, NLM_F_REQUEST, 0, SUBSYSTEM, |_| {});
        Batch { writer, whats: vec!["nf_tables transaction".to_owned()], last: 0, sets: 0 }
    }

    /// No changes yet, and none are made (ERESTART) if anything in nf_tables has changed since
    /// [`Nft::generation`](super::Nft::generation) gave this number.
    pub fn only_in(generation: u32) -> Self {
        const NFNL_BATCH_GENID: u16 = 1;
        let mut writer = Writer::default();
        writer.message(BATCH_BEGIN, NLM_F_REQUEST, 0, SUBSYSTEM, |w| w.u32(NFNL_BATCH_GENID, generation));
        Batch { writer, ..Batch::new() }
    }

    /// Whether it has no changes.
    pub fn is_empty(&self) -> bool {
        self.whats.len() == 1
    }

    fn push(&mut self, kind: u16, flags: u16, family: Family, what: String, fill: impl FnOnce(&mut Writer)) {
        self.last = self.writer.len();
        self.writer.message((SUBSYSTEM << 8) | kind, NLM_F_REQUEST | flags, family.number(), 0, fill);
        self.whats.push(what);
    }

    /// The bytes to send, numbered from `first`, with `end` (else the kernel tries everything
    /// and takes it back), and the sequence number of the last change.
    pub(super) fn finish(&self, first: u32, end: bool) -> Option<(Writer, u32)> {
        let mut writer = self.writer.clone();
        // Errors come for every message; one acknowledgement, for the last, says that all is done.
        writer.add_flags(self.last, NLM_F_ACK);
        if end {
            writer.message(BATCH_END, NLM_F_REQUEST, 0, SUBSYSTEM, |_| {});
        }
        writer.number(first);
        writer.finished()?;
        let count = u32::try_from(self.whats.len()).ok()?;
        Some((writer, first.wrapping_add(count - 1)))
    }

    /// What the message at this place does.
    pub(super) fn what(&self, index: u32) -> &str {
        self.whats.get(index as usize).map_or("nf_tables transaction", String::as_str)
    }

    /// `create table T`: refused with EEXIST if it is there.
    pub fn create_table(&mut self, table: Table<'_>) {
        let what = format!("create table {table}");
        self.push(NEWTABLE, NLM_F_CREATE | NLM_F_EXCL, table.family, what, |w| {
            w.text(1, table.name);
            w.u32(2, 0);
        });
    }

    /// `create chain C { type … hook … priority …; policy accept; }`: refused with EEXIST if it
    /// is there. Sending it for a base chain that exists is not just refused: closing the
    /// socket afterwards takes the kernel many milliseconds.
    pub fn create_base_chain(&mut self, chain: Chain<'_>, hook: Hook) {
        let what = format!("create {} chain {chain}", hook.kind);
        self.push(NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, chain.table.family, what, |w| {
            w.text(1, chain.table.name);
            w.text(3, chain.name);
            w.nest(4, |w| {
                w.u32(1, hook.hook as u32);
                w.u32(2, hook.priority.cast_unsigned());
            });
            w.u32(5, 1); // NF_ACCEPT
            w.text(7, hook.kind);
        });
    }

    /// `create chain C`: refused with EEXIST if it is there.
    pub fn create_chain(&mut self, chain: Chain<'_>) {
        let what = format!("create chain {chain}");
        self.push(NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, chain.table.family, what, |w| {
            w.text(1, chain.table.name);
            w.text(3, chain.name);
        });
    }

    /// `add rule C …` at the end of the chain; an empty comment is none.
    pub fn add_rule(&mut self, chain: Chain<'_>, rule: &[Expr], comment: &str) {
        let what = format!("add rule to chain {chain}");
        self.push(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, chain.table.family, what, |w| {
            w.text(1, chain.table.name);
            w.text(2, chain.name);
            w.nest(4, |w| rule.iter().for_each(|expr| expr.write(w)));
            if !comment.is_empty() {
                w.attr(7, &comment_userdata(comment));
            }
        });
    }

    /// `create set S { type … }` or `create map S { type … : verdict }`: refused with EEXIST
    /// if it is there.
    pub fn create_set(&mut self, set: Set<'_>, kind: &SetType<'_>) {
        const NFT_SET_MAP: u32 = 0x8;
        const NFT_DATA_VERDICT: u32 = 0xffff_ff00;
        self.sets += 1;
        let id = self.sets;
        let what = format!("create set {set}");
        self.push(NEWSET, NLM_F_CREATE | NLM_F_EXCL, set.table.family, what, |w| {
            w.text(1, set.table.name);
            w.text(2, set.name);
            w.u32(3, if kind.verdicts { NFT_SET_MAP } else { 0 });
            let (number, len) = key_type(kind.key);
            w.u32(4, number);
            w.u32(5, len);
            if kind.verdicts {
                w.u32(6, NFT_DATA_VERDICT);
                w.u32(7, 0);
            }
            w.u32(10, id);
            w.attr(13, &set_userdata(kind.key));
        });
    }

    /// `create map S { type KEY : VALUE; }`: refused with EEXIST if it is there.
    pub fn create_map(&mut self, map: Set<'_>, key: &[KeyType], value: &[KeyType]) {
        const NFT_SET_MAP: u32 = 0x8;
        self.sets += 1;
        let id = self.sets;
        let what = format!("create map {map}");
        self.push(NEWSET, NLM_F_CREATE | NLM_F_EXCL, map.table.family, what, |w| {
            w.text(1, map.table.name);
            w.text(2, map.name);
            w.u32(3, NFT_SET_MAP);
            let (number, len) = key_type(key);
            w.u32(4, number);
            w.u32(5, len);
            let (number, len) = key_type(value);
            w.u32(6, number);
            w.u32(7, len);
            w.u32(10, id);
            let mut orders = set_userdata(key);
            orders.extend(byte_order(1, value));
            w.attr(13, &orders);
        });
    }

    /// `create element S { …, … }`: refused with EEXIST if one of the keys is there. Many
    /// elements go into few messages.
    pub fn create_elements<'e>(&mut self, set: Set<'_>, elements: impl IntoIterator<Item = &'e Element>) {
        let elements: Vec<&Element> = elements.into_iter().collect();
        for chunk in elements.chunks(ELEMENTS) {
            let what = match chunk {
                [only] => format!("create element {} in set {set}", only.key),
                _ => format!("create {} elements in set {set}", chunk.len()),
            };
            self.push(NEWSETELEM, NLM_F_CREATE | NLM_F_EXCL, set.table.family, what, |w| {
                w.text(1, set.table.name);
                w.text(2, set.name);
                w.nest(3, |w| chunk.iter().for_each(|element| write_element(w, element)));
            });
        }
    }

    /// `create element S { … }`: refused with EEXIST if the key is there.
    pub fn create_element(&mut self, set: Set<'_>, element: &Element) {
        let what = format!("create element {} in set {set}", element.key);
        self.push(NEWSETELEM, NLM_F_CREATE | NLM_F_EXCL, set.table.family, what, |w| {
            w.text(1, set.table.name);
            w.text(2, set.name);
            w.nest(3, |w| write_element(w, element));
        });
    }

    /// `add element S { … }`: nothing changes if the key is there, whatever its comment.
    pub fn add_element(&mut self, set: Set<'_>, element: &Element) {
        let what = format!("add element {} to set {set}", element.key);
        self.push(NEWSETELEM, NLM_F_CREATE, set.table.family, what, |w| {
            w.text(1, set.table.name);
            w.text(2, set.name);
            w.nest(3, |w| write_element(w, element));
        });
    }

    /// `delete element S { … }`: refused with ENOENT if it isn't there.
    pub fn delete_element(&mut self, set: Set<'_>, key: &Key) {
        let what = format!("delete element {key} from set {set}");
        self.push(DELSETELEM, 0, set.table.family, what, |w| write_key(w, set, key));
    }

    /// `delete rule C handle H`
    pub fn delete_rule(&mut self, chain: Chain<'_>, handle: u64) {
        let what = format!("delete rule {handle} of chain {chain}");
        self.push(DELRULE, 0, chain.table.family, what, |w| {
            w.text(1, chain.table.name);
            w.text(2, chain.name);
            w.u64(3, handle);
        });
    }

    /// `flush chain C`
    pub fn flush_chain(&mut self, chain: Chain<'_>) {
        let what = format!("flush chain {chain}");
        self.push(DELRULE, 0, chain.table.family, what, |w| {
            w.text(1, chain.table.name);
            w.text(2, chain.name);
        });
    }

    /// `delete chain C`, without rules in it: refused with EBUSY if there are any, or if
    /// something leads to it.
    pub fn delete_chain(&mut self, chain: Chain<'_>) {
        let what = format!("delete chain {chain}");
        self.push(DELCHAIN, NLM_F_NONREC, chain.table.family, what, |w| {
            w.text(1, chain.table.name);
            w.text(3, chain.name);
        });
    }

    /// `delete set S`, without elements in it: refused with EBUSY if there are any (also if
    /// this batch deletes them), or if a rule uses it.
    pub fn delete_set(&mut self, set: Set<'_>) {
        let what = format!("delete set {set}");
        self.push(DELSET, NLM_F_NONREC, set.table.family, what, |w| {
            w.text(1, set.table.name);
            w.text(2, set.name);
        });
    }

    /// `delete table T`, without anything in it: refused with EBUSY if there is.
    pub fn delete_table(&mut self, table: Table<'_>) {
        let what = format!("delete table {table}");
        self.push(DELTABLE, NLM_F_NONREC, table.family, what, |w| w.text(1, table.name));
    }
}

/// The attributes that name a set and one of its keys.
pub(super) fn write_key(w: &mut Writer, set: Set<'_>, key: &Key) {
    w.text(1, set.table.name);
    w.text(2, set.name);
    w.nest(3, |w| w.nest(1, |w| w.nest(1, |w| w.attr(1, key.bytes()))));
}

fn write_element(w: &mut Writer, element: &Element) {
    w.nest(1, |w| {
        w.nest(1, |w| w.attr(1, element.key.bytes()));
        if let Some(verdict) = &element.verdict {
            w.nest(2, |w| verdict.write(w));
        }
        if let Some(data) = &element.data {
            w.nest(2, |w| w.attr(1, data.bytes()));
        }
        if !element.comment.is_empty() {
            w.attr(6, &comment_userdata(&element.comment));
        }
    });
}

/// The `nft` command's number for a key and its length: in a concatenation each part takes
/// six bits of the number, and is padded to four bytes.
fn key_type(parts: &[KeyType]) -> (u32, u32) {
    if let [only] = parts {
        return (*only as u32, u32::try_from(only.len()).unwrap_or(0));
    }
    parts.iter().fold((0, 0), |(number, len), part| {
        ((number << 6) | *part as u32, len + u32::try_from(part.len().next_multiple_of(4)).unwrap_or(0))
    })
}

/// What the `nft` command wants to find on a set to print its keys: kind 0 is the byte order
/// of the key, 1 for host and 2 for network order (libnftnl/udata.h, `enum byteorder`).
fn set_userdata(parts: &[KeyType]) -> Vec<u8> {
    byte_order(0, parts)
}

/// An entry of such user data; kind 1 is the byte order of a map's values.
fn byte_order(kind: u8, parts: &[KeyType]) -> Vec<u8> {
    let order: u32 = match parts {
        [KeyType::Ifname] => 1,
        [_] => 2,
        _ => 0,
    };
    let mut out = vec![kind, 4];
    out.extend_from_slice(&order.to_ne_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_types_are_those_of_nft() {
        assert_eq!(key_type(&[KeyType::Ipv4Addr]), (7, 4));
        assert_eq!(key_type(&[KeyType::EtherAddr]), (9, 6));
        assert_eq!(key_type(&[KeyType::Ifname, KeyType::EtherAddr]), (41 << 6 | 9, 24));
    }

    #[test]
    fn an_attribute_too_long_is_refused() {
        let mut batch = Batch::new();
        let rule = vec![Expr::masquerade(); 4_000];
        batch.add_rule(Table::new(Family::Inet, "t").chain("c"), &rule, "");
        assert!(batch.finish(1, true).is_none());
    }
}
