//! A lock on which neither shared nor exclusive holders starve. While ADDs come without a pause, the lock is shared at
//! every moment. So a process that wants it exclusively closes a turnstile in front of it: later ones wait there, and
//! those inside finish. A process that hangs inside must not block all others, so the turnstile opens again after a
//! while, and closes after another.

use std::path::Path;
use std::time::Duration;

use super::LockError;
use super::file::{FileLock, LockMode, Wait, Waiting};

/// How long the turnstile stays closed, and then open. It is more than an ADD takes.
const SLICE: Duration = Duration::from_secs(2);

/// Takes the lock on `path` through the turnstile in the file `turn`. Fails with [`LockError::Busy`] at the end of
/// `wait`.
pub(super) async fn take_lock(
    path: &Path,
    turn: &Path,
    kind: LockMode,
    wait: Wait<'_>,
) -> Result<FileLock, LockError> {
    let mut waiting = Waiting::new(wait);
    let mut closed: Option<FileLock> = None;
    loop {
        let busy = match kind {
            // A shared holder passes the turnstile, and releases it at once.
            LockMode::Shared => match FileLock::attempt(turn, LockMode::Shared)? {
                Some(_passing) => match FileLock::attempt(path, kind)? {
                    Some(lock) => return Ok(lock),
                    None => path,
                },
                None => turn,
            },
            LockMode::Alone => {
                let closes = (waiting.lasted().as_millis() / SLICE.as_millis()).is_multiple_of(2);
                if !closes {
                    closed = None;
                } else if closed.is_none() {
                    closed = FileLock::attempt(turn, LockMode::Alone)?;
                }
                match FileLock::attempt(path, kind)? {
                    Some(lock) => return Ok(lock),
                    None => path,
                }
            }
        };
        waiting.pause(busy).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LONG: Duration = Duration::from_secs(100);

    #[tokio::test(flavor = "current_thread")]
    async fn work_without_a_pause_lets_clean_up_in() {
        let dir = tempfile::tempdir().unwrap();
        let (path, turn) = (dir.path().join("lock"), dir.path().join("turn"));
        let done = Cell::new(false);
        // Each lets go and takes again without a pause, so that one is inside at every moment.
        let work = || async {
            while !done.get() {
                let lock = take_lock(&path, &turn, LockMode::Shared, Wait::new("it", LONG)).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(lock.unwrap());
            }
        };
        let cleaning = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(take_lock(&path, &turn, LockMode::Alone, Wait::new("it", LONG)).await.unwrap());
            done.set(true);
        };
        tokio::join!(work(), work(), work(), cleaning);
    }
}
