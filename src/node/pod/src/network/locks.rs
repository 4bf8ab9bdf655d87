//! Locks by key within this process, so that each pod has one operation at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The locks. One is made for a key on demand, and is removed with its last user.
#[derive(Debug)]
pub(crate) struct Locks<K: Ord> {
    held: Arc<Mutex<BTreeMap<K, Arc<tokio::sync::Mutex<()>>>>>,
}

impl<K: Ord> Default for Locks<K> {
    fn default() -> Self {
        Locks { held: Arc::default() }
    }
}

/// A held lock, which is released on drop.
#[derive(Debug)]
pub(crate) struct Guard<K: Ord> {
    held: Arc<Mutex<BTreeMap<K, Arc<tokio::sync::Mutex<()>>>>>,
    key: K,
    // An `Option`, so that `drop` can release it before it looks at the map.
    lock: Option<OwnedMutexGuard<()>>,
}

impl<K: Ord + Clone> Locks<K> {
    /// Takes the lock of a key. Waiting callers get it in the order of asking.
    pub(crate) async fn lock(&self, key: &K) -> Guard<K> {
        let lock = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(held.entry(key.clone()).or_default())
        };
        // The guard is made first, so that it removes an unused lock even if this future is dropped.
        let mut guard = Guard { held: Arc::clone(&self.held), key: key.clone(), lock: None };
        guard.lock = Some(lock.lock_owned().await);
        guard
    }
}

impl<K: Ord> Drop for Guard<K> {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock = None;
        // No task can take a reference while the map is locked. A single one is the map's own.
        if held.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            held.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(flavor = "current_thread")]
    async fn one_holder_for_each_key_and_nothing_stays() {
        let locks = Locks::<u32>::default();
        let inside = AtomicU32::new(0);
        let work = |key: u32| {
            let (locks, inside) = (&locks, &inside);
            async move {
                let _guard = locks.lock(&key).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        };
        futures::future::join_all((0..20).map(|_| work(1))).await;
        assert_eq!(locks.held.lock().unwrap().len(), 0);

        let one = locks.lock(&1).await;
        let other = locks.lock(&2).await;
        // A waiter that gives up leaves the lock to its holder.
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(1), locks.lock(&1)).await;
        assert!(waiting.is_err());
        assert_eq!(locks.held.lock().unwrap().len(), 2);
        drop((one, other));
        assert_eq!(locks.held.lock().unwrap().len(), 0);
    }
}
