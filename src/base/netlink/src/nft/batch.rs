//! A batch: changes that the kernel makes all together or not at all.

use super::expr::Expr;
use super::udata::{Of, byte_order, comment_userdata};
use super::{Chain, Element, Family, Hook, Key, KeyType, Set, Table, header, type_of};
use crate::uapi::netlink::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_NONREC, NLM_F_REQUEST};
use crate::uapi::nf_tables::*;
use crate::uapi::nfnetlink::{
    NF_ACCEPT, NFGENMSG, NFNL_BATCH_GENID, NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES,
    NFPROTO_UNSPEC,
};
use crate::wire::{self, Writer};

/// The most elements in one message. Each has at most some 350 bytes, so all have less than 64 KiB.
const ELEMENTS: usize = 150;

/// The flags of a request that makes an object. The kernel refuses it with EEXIST if the object is there.
const MAKE: u16 = NLM_F_CREATE | NLM_F_EXCL;

/// What the kernel is to do with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The kernel makes the changes.
    Commit,
    /// The kernel makes all changes and takes them back.
    TryOut,
}

/// A list of changes. Nothing happens until [`Nft::commit`](super::Nft::commit).
#[derive(Debug, Clone)]
pub struct Batch {
    writer: Writer,
    /// What each message does, for errors. The first step stands for the message that begins the batch.
    steps: Vec<Step>,
    /// The place of the last message, in bytes.
    last: usize,
    /// The number of sets that the batch makes.
    sets: u32,
}

/// What one message does.
#[derive(Debug, Clone)]
struct Step {
    what: String,
    /// The family of a table that the message creates.
    table: Option<Family>,
}

impl Default for Batch {
    fn default() -> Self {
        Batch::new()
    }
}

impl Batch {
    /// A batch without changes.
    pub fn new() -> Self {
        let mut writer = Writer::default();
        writer.message(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, &subsystem(), |_| {});
        let begin = Step { what: "nf_tables transaction".to_owned(), table: None };
        Batch { writer, steps: vec![begin], last: 0, sets: 0 }
    }

    /// A batch that fails with ERESTART if anything in nf_tables has changed since
    /// [`Nft::generation`](super::Nft::generation) gave this number.
    pub fn only_in(generation: u32) -> Self {
        let mut writer = Writer::default();
        writer.message(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, &subsystem(), |w| {
            w.u32_be(NFNL_BATCH_GENID, generation);
        });
        Batch { writer, ..Batch::new() }
    }

    /// Whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.steps.len() == 1
    }

    /// Appends a message. `message` is its type and its flags.
    fn push(&mut self, message: (u16, u16), family: Family, what: String, fill: impl FnOnce(&mut Writer)) {
        let (kind, flags) = message;
        self.last = self.writer.len();
        self.writer.message(type_of(kind), NLM_F_REQUEST | flags, &header(family.number()), fill);
        let table = (kind == NFT_MSG_NEWTABLE).then_some(family);
        self.steps.push(Step { what, table });
    }

    /// Returns the number of messages, with the batch's beginning and end.
    pub(super) fn messages(&self) -> u32 {
        u32::try_from(self.steps.len() + 1).unwrap_or(u32::MAX)
    }

    /// Returns the batch with sequence numbers from `first` on. `None` if something didn't fit into its length field.
    pub(super) fn finish(&self, first: u32, purpose: Purpose) -> Option<Vec<u8>> {
        let mut writer = self.writer.clone();
        if purpose == Purpose::Commit {
            writer.message(NFNL_MSG_BATCH_END, NLM_F_REQUEST, &subsystem(), |_| {});
        }
        let mut bytes = writer.finish()?;
        // The kernel reports every error. It acknowledges only the last message, which says that all is done.
        let flags = wire::flags(&bytes, self.last) | NLM_F_ACK;
        wire::set_flags(&mut bytes, self.last, flags);
        wire::number(&mut bytes, first);
        Some(bytes)
    }

    /// Returns what the message at this place does, in words.
    pub(super) fn what(&self, index: u32) -> &str {
        self.step(index).map_or("nf_tables transaction", |step| step.what.as_str())
    }

    /// Returns the family of the table that the message at this place creates, or `None` if it creates none.
    pub(super) fn creates_table(&self, index: u32) -> Option<Family> {
        self.step(index)?.table
    }

    fn step(&self, index: u32) -> Option<&Step> {
        self.steps.get(usize::try_from(index).ok()?)
    }

    /// `create table T`: refused with EEXIST if it is there.
    pub fn create_table(&mut self, table: Table<'_>) {
        let what = format!("create table {table}");
        self.push((NFT_MSG_NEWTABLE, MAKE), table.family, what, |w| {
            w.text(NFTA_TABLE_NAME, table.name);
            w.u32_be(NFTA_TABLE_FLAGS, 0);
        });
    }

    /// `create table T { flags owner; }`: refused with EEXIST if it is there. Only this socket may change the table,
    /// and the kernel deletes it when the socket closes. A listing that ends early closes the socket of
    /// [`Nft::new`](super::Nft::new), but not that of [`Nft::open_in`](super::Nft::open_in). Exists since Linux 5.12.
    pub fn create_owned_table(&mut self, table: Table<'_>) {
        let what = format!("create table {table} for this process");
        self.push((NFT_MSG_NEWTABLE, MAKE), table.family, what, |w| {
            w.text(NFTA_TABLE_NAME, table.name);
            w.u32_be(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
        });
    }

    /// `create chain C { type … hook … priority …; policy accept; }`: refused with EEXIST if it is there. After this
    /// change the kernel takes many milliseconds to close the socket.
    pub fn create_base_chain(&mut self, chain: Chain<'_>, hook: Hook) {
        let what = format!("create {} chain {chain}", hook.kind);
        self.push((NFT_MSG_NEWCHAIN, MAKE), chain.table.family, what, |w| {
            chain.write(w);
            w.nest(NFTA_CHAIN_HOOK, |w| {
                w.u32_be(NFTA_HOOK_HOOKNUM, hook.hook as u32);
                w.u32_be(NFTA_HOOK_PRIORITY, hook.priority.cast_unsigned());
            });
            w.u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT.cast_unsigned());
            w.text(NFTA_CHAIN_TYPE, hook.kind);
        });
    }

    /// `create chain C`: refused with EEXIST if it is there.
    pub fn create_chain(&mut self, chain: Chain<'_>) {
        let what = format!("create chain {chain}");
        self.push((NFT_MSG_NEWCHAIN, MAKE), chain.table.family, what, |w| chain.write(w));
    }

    /// `add rule C …` at the end of the chain. An empty comment is none.
    pub fn add_rule(&mut self, chain: Chain<'_>, rule: &[Expr], comment: &str) {
        self.new_rule(NLM_F_APPEND, chain, rule, comment);
    }

    /// `insert rule C …` in front of all others. An empty comment is none.
    pub fn insert_rule(&mut self, chain: Chain<'_>, rule: &[Expr], comment: &str) {
        self.new_rule(0, chain, rule, comment);
    }

    /// Makes a rule. `place` is NLM_F_APPEND for the end of the chain, and 0 for the front.
    fn new_rule(&mut self, place: u16, chain: Chain<'_>, rule: &[Expr], comment: &str) {
        let what = format!("add rule to chain {chain}");
        self.push((NFT_MSG_NEWRULE, NLM_F_CREATE | place), chain.table.family, what, |w| {
            chain.write_of_rules(w);
            w.nest(NFTA_RULE_EXPRESSIONS, |w| rule.iter().for_each(|expr| expr.write(w)));
            if !comment.is_empty() {
                w.bytes(NFTA_RULE_USERDATA, &comment_userdata(comment));
            }
        });
    }

    /// `create set S { type KEY; }`: refused with EEXIST if it is there.
    pub fn create_set(&mut self, set: Set<'_>, key: &[KeyType]) {
        self.create(format!("create set {set}"), set, key, None);
    }

    /// `create map S { type KEY : VALUE; }`: refused with EEXIST if it is there.
    pub fn create_map(&mut self, map: Set<'_>, key: &[KeyType], value: &[KeyType]) {
        self.create(format!("create map {map}"), map, key, Some(value));
    }

    fn create(&mut self, what: String, set: Set<'_>, key: &[KeyType], value: Option<&[KeyType]>) {
        // A number that is unique in the batch.
        self.sets += 1;
        let id = self.sets;
        let mut orders = byte_order(Of::Keys, key);
        orders.extend(value.map(|value| byte_order(Of::Values, value)).unwrap_or_default());
        self.push((NFT_MSG_NEWSET, MAKE), set.table.family, what, |w| {
            set.write(w);
            w.u32_be(NFTA_SET_FLAGS, if value.is_some() { NFT_SET_MAP } else { 0 });
            let (number, len) = key_type(key);
            w.u32_be(NFTA_SET_KEY_TYPE, number);
            w.u32_be(NFTA_SET_KEY_LEN, len);
            if let Some((number, len)) = value.map(key_type) {
                w.u32_be(NFTA_SET_DATA_TYPE, number);
                w.u32_be(NFTA_SET_DATA_LEN, len);
            }
            w.u32_be(NFTA_SET_ID, id);
            w.bytes(NFTA_SET_USERDATA, &orders);
        });
    }

    /// `create element S { …, … }`: refused with EEXIST if one of the keys is there. Many elements go into few
    /// messages.
    pub fn create_elements<'e>(&mut self, set: Set<'_>, elements: impl IntoIterator<Item = &'e Element>) {
        let elements: Vec<&Element> = elements.into_iter().collect();
        for chunk in elements.chunks(ELEMENTS) {
            let what = match chunk {
                [only] => format!("create element {} in set {set}", only.key),
                _ => format!("create {} elements in set {set}", chunk.len()),
            };
            self.new_elements(MAKE, set, what, chunk);
        }
    }

    /// `create element S { … }`: refused with EEXIST if the key is there.
    pub fn create_element(&mut self, set: Set<'_>, element: &Element) {
        self.create_elements(set, [element]);
    }

    /// `add element S { … }`: nothing changes if the key exists, with any comment.
    pub fn add_element(&mut self, set: Set<'_>, element: &Element) {
        let what = format!("add element {} to set {set}", element.key);
        self.new_elements(NLM_F_CREATE, set, what, &[element]);
    }

    fn new_elements(&mut self, flags: u16, set: Set<'_>, what: String, elements: &[&Element]) {
        self.push((NFT_MSG_NEWSETELEM, flags), set.table.family, what, |w| {
            set.write_of_elements(w);
            w.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |w| {
                elements.iter().for_each(|element| write_element(w, element));
            });
        });
    }

    /// `delete element S { … }`: refused with ENOENT if it isn't there.
    pub fn delete_element(&mut self, set: Set<'_>, key: &Key) {
        let what = format!("delete element {key} from set {set}");
        self.push((NFT_MSG_DELSETELEM, 0), set.table.family, what, |w| write_key(w, set, key));
    }

    /// `delete rule C handle H`: refused with ENOENT if it isn't there.
    pub fn delete_rule(&mut self, chain: Chain<'_>, handle: u64) {
        let what = format!("delete rule {handle} of chain {chain}");
        self.push((NFT_MSG_DELRULE, 0), chain.table.family, what, |w| {
            chain.write_of_rules(w);
            w.u64_be(NFTA_RULE_HANDLE, handle);
        });
    }

    /// `flush chain C`: deletes all rules of the chain.
    pub fn flush_chain(&mut self, chain: Chain<'_>) {
        let what = format!("flush chain {chain}");
        self.push((NFT_MSG_DELRULE, 0), chain.table.family, what, |w| chain.write_of_rules(w));
    }

    /// `delete chain C`: refused with EBUSY if it has rules, or if something leads to it.
    pub fn delete_chain(&mut self, chain: Chain<'_>) {
        let what = format!("delete chain {chain}");
        self.push((NFT_MSG_DELCHAIN, NLM_F_NONREC), chain.table.family, what, |w| chain.write(w));
    }

    /// `delete set S`. Fails with EBUSY if a rule uses the set, and from Linux 6.12 on if it has elements, or this
    /// batch deletes them. Older kernels delete the elements with the set. Where that matters, look first and bind the
    /// batch to the generation ([`Batch::only_in`]).
    pub fn delete_set(&mut self, set: Set<'_>) {
        let what = format!("delete set {set}");
        self.push((NFT_MSG_DELSET, NLM_F_NONREC), set.table.family, what, |w| set.write(w));
    }

    /// `delete table T`, with everything in it.
    pub fn drop_table(&mut self, table: Table<'_>) {
        let what = format!("delete table {table} with its content");
        self.push((NFT_MSG_DELTABLE, 0), table.family, what, |w| w.text(NFTA_TABLE_NAME, table.name));
    }

    /// `delete table T`, without anything in it: refused with EBUSY if there is.
    pub fn delete_table(&mut self, table: Table<'_>) {
        let what = format!("delete table {table}");
        self.push((NFT_MSG_DELTABLE, NLM_F_NONREC), table.family, what, |w| {
            w.text(NFTA_TABLE_NAME, table.name);
        });
    }
}

/// Writes the name of the set, and a list of one element, of which only the key is told.
pub(super) fn write_key(w: &mut Writer, set: Set<'_>, key: &Key) {
    set.write_of_elements(w);
    w.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |w| {
        w.nest(NFTA_LIST_ELEM, |w| write_value(w, NFTA_SET_ELEM_KEY, key));
    });
}

fn write_element(w: &mut Writer, element: &Element) {
    w.nest(NFTA_LIST_ELEM, |w| {
        write_value(w, NFTA_SET_ELEM_KEY, &element.key);
        if let Some(data) = &element.data {
            write_value(w, NFTA_SET_ELEM_DATA, data);
        }
        if !element.comment.is_empty() {
            w.bytes(NFTA_SET_ELEM_USERDATA, &comment_userdata(&element.comment));
        }
    });
}

fn write_value(w: &mut Writer, kind: u16, value: &Key) {
    w.nest(kind, |w| w.bytes(NFTA_DATA_VALUE, value.bytes()));
}

/// `struct nfgenmsg` of a batch's beginning and its end.
fn subsystem() -> [u8; NFGENMSG] {
    let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
    [NFPROTO_UNSPEC, 0, high, low]
}

/// The `nft` command's number for a key and its length: in a concatenation each part takes six bits of the number, and
/// is padded to four bytes.
fn key_type(parts: &[KeyType]) -> (u32, u32) {
    if let [only] = parts {
        return (*only as u32, u32::try_from(only.len()).unwrap_or(0));
    }
    parts.iter().fold((0, 0), |(number, len), part| {
        ((number << 6) | *part as u32, len + u32::try_from(part.len().next_multiple_of(4)).unwrap_or(0))
    })
}

#[cfg(test)]
mod tests;
