//! Inserts elements of one or several parts in one transaction.

use nix::errno::Errno;

use cnimble_netlink::nft::{Batch, Nft, Table};
use cnimble_netlink::{Error, Result};

use super::plan::{Changes, Refusal};
use super::{Layout, Placed, is_in_place};
use crate::retry::{OVERTAKEN, retry};

/// The changes of several parts, to be committed as one batch.
#[derive(Default)]
pub(crate) struct Transaction {
    batch: Batch,
    tables: Vec<Table<'static>>,
    /// The first new element. It shows whether the batch was applied.
    first: Option<(Table<'static>, Placed)>,
}

impl Transaction {
    /// Plans an owner's elements of one part, as the [`Claim`](super::Claim) on each set says. Nothing changes before
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    /// Fails with EEXIST if another owner keeps an element, and with ENOENT if the layout can't make a set.
    pub(crate) fn add<L: Layout>(&mut self, nft: &mut Nft, wanted: &[Placed]) -> Result<Changes> {
        if wanted.is_empty() {
            return Ok(Changes::default());
        }
        let changes = Changes::after_look::<L>(nft, wanted, None).map_err(|refusal| match refusal {
            Refusal::Kernel(err) => err,
            Refusal::Taken(old) => Error::new(format!("create element {}", old.element.key), Errno::EEXIST),
            Refusal::Lacks(sets) => {
                Error::new(format!("add elements to set {}", sets.join(", ")), Errno::ENOENT)
            }
        })?;
        changes.fill::<L>(&mut self.batch, &mut self.tables);
        if let Some((placed, _)) = changes.inserted.first() {
            self.first.get_or_insert_with(|| (L::TABLE, placed.clone()));
        }
        Ok(changes)
    }

    /// Makes all changes, or none. If the kernel had no memory for its answer (ENOBUFS), looks whether they have been
    /// made.
    pub(crate) fn commit(self, nft: &mut Nft) -> Result<()> {
        match (nft.commit(&self.batch), self.first) {
            (Err(err), Some((table, placed)))
                if err.is(Errno::ENOBUFS) && is_in_place(nft, table, &placed)? =>
            {
                Ok(())
            }
            (answered, _) => answered,
        }
    }
}

/// Fills and commits a transaction. Repeats both while the kernel answers with one of `overtaken`, as [`retry`] does.
pub(crate) fn transact<T>(
    nft: &mut Nft,
    overtaken: &[Errno],
    mut fill: impl FnMut(&mut Transaction, &mut Nft) -> Result<T>,
) -> Result<T> {
    // After ENOBUFS the changes may have been made. The next attempt looks at them and finds nothing left to do.
    retry(&[overtaken, &[Errno::ENOBUFS]].concat(), || {
        let mut transaction = Transaction::default();
        let changes = fill(&mut transaction, nft)?;
        transaction.commit(nft)?;
        Ok(changes)
    })
}

/// Inserts an owner's elements of one part, in one transaction. Repeats it if a concurrent process was faster.
pub(crate) fn insert<L: Layout>(nft: &mut Nft, wanted: &[Placed]) -> Result<Changes> {
    transact(nft, &OVERTAKEN, |transaction, nft| transaction.add::<L>(nft, wanted))
}
