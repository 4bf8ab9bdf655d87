//! The Unix socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Who may connect: the owner, root, and its group.
const MODE: u32 = 0o660;

/// A socket that listens; its file goes with it.
#[derive(Debug)]
pub struct Socket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// Device and inode, by which the file is known to be ours still.
    file: (u64, u64),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A process listens there.
    #[error("{}: another process listens there", .0.display())]
    Taken(PathBuf),
    /// Something else has this name.
    #[error("{}: there is a file of this name, and it is no socket", .0.display())]
    NoSocket(PathBuf),
    /// The system says no.
    #[error("{doing} {}: {source}", path.display())]
    System {
        /// What was being done.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl Socket {
    /// Listens at `path`, with mode 0660; makes its directory. A socket on which no process listens any more is
    /// replaced, nothing else.
    ///
    /// # Errors
    /// A process listens there; it is another kind of file; the system's.
    pub async fn bind(path: &Path) -> Result<Socket, SocketError> {
        let failed = |doing, source| SocketError::System { doing, path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(|err| failed("making the directory of", err))?;
        }
        remove_stale(path).await?;
        // Bound under another name, so that no one connects, or may, before the mode is right.
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let _ = fs::remove_file(&draft);
        let listener = UnixListener::bind(&draft).map_err(|err| failed("listening on", err))?;
        let placed = fs::set_permissions(&draft, fs::Permissions::from_mode(MODE))
            .and_then(|()| fs::symlink_metadata(&draft))
            // Unlike a rename it fails if there is something by now.
            .and_then(|of| fs::hard_link(&draft, path).map(|()| (of.dev(), of.ino())));
        let _ = fs::remove_file(&draft);
        match placed {
            Ok(file) => Ok(Socket { listener, path: path.to_owned(), file }),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                Err(SocketError::Taken(path.to_owned()))
            }
            Err(err) => Err(failed("listening on", err)),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another server's isn't ours to remove.
        if fs::symlink_metadata(&self.path).is_ok_and(|of| (of.dev(), of.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |doing, source| SocketError::System { doing, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(failed("looking at", err)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(err) if err.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|err| failed("removing the stale socket", err))
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        // A queue that is full is one, too.
        _ => Err(SocketError::Taken(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_replaced_only_if_no_process_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/cri.sock");
        let first = Socket::bind(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let err = Socket::bind(&path).await.unwrap_err();
        assert!(matches!(err, SocketError::Taken(_)), "{err}");
        drop(first);
        assert!(!path.exists());

        // Left by a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let socket = Socket::bind(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 1);
        drop(socket);

        fs::write(&path, "mine").unwrap();
        let err = Socket::bind(&path).await.unwrap_err();
        assert!(matches!(err, SocketError::NoSocket(_)), "{err}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
