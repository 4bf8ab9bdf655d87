//! The listening Unix socket.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::socket::sockopt::{AcceptConn, SockType};
use nix::sys::socket::{self, getsockopt};

use tokio::net::{UnixListener, UnixStream};

/// The mode of the socket's file: its owner and group may connect.
const MODE: u32 = 0o660;

/// A listening Unix socket. Its file is removed on drop, unless a service manager made it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file. It is `None` for the file of a service manager.
    file: Option<(u64, u64)>,
}

/// The reason why a socket can't be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{}: another process listens there", .0.display())]
    Taken(PathBuf),
    #[error("{}: there is a file of this name, and it is no socket", .0.display())]
    NoSocket(PathBuf),
    #[error("what the service manager has passed is no Unix stream socket that listens")]
    NotListening,
    #[error("{doing} {}: {source}", path.display())]
    System { doing: &'static str, path: PathBuf, source: io::Error },
}

impl Socket {
    /// Listens at `path`, and makes its directory. It replaces a socket on which no process listens any more, and
    /// nothing else.
    ///
    /// # Errors
    /// Fails with [`SocketError::Taken`] if another process listens there.
    pub async fn bind(path: &Path) -> Result<Socket, SocketError> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(|err| system_error("making the directory of", path, err))?;
        }
        remove_stale(path).await?;
        // The socket is made under another name, so that no process connects before the mode is set.
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let _ = fs::remove_file(&draft);
        let listener = UnixListener::bind(&draft).map_err(|err| system_error("listening on", path, err))?;
        let placed = fs::set_permissions(&draft, fs::Permissions::from_mode(MODE))
            .and_then(|()| fs::symlink_metadata(&draft))
            // Unlike a rename, a link fails if the path exists by now.
            .and_then(|of| fs::hard_link(&draft, path).map(|()| (of.dev(), of.ino())));
        let _ = fs::remove_file(&draft);
        match placed {
            Ok(file) => Ok(Socket { listener, path: path.to_owned(), file: Some(file) }),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                Err(SocketError::Taken(path.to_owned()))
            }
            Err(err) => Err(system_error("listening on", path, err)),
        }
    }

    /// Uses a listening socket that a service manager has passed. Its file stays, because clients wait there for the
    /// next server.
    pub fn passed(fd: OwnedFd) -> Result<Socket, SocketError> {
        let is_stream = getsockopt(&fd, SockType) == Ok(socket::SockType::Stream);
        if !is_stream || getsockopt(&fd, AcceptConn) != Ok(true) {
            return Err(SocketError::NotListening);
        }
        let listener = std::os::unix::net::UnixListener::from(fd);
        let address = listener.local_addr().map_err(|_| SocketError::NotListening)?;
        let path = address.as_pathname().unwrap_or(Path::new("the socket that was passed")).to_owned();
        let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener = listener.map_err(|err| system_error("listening on", &path, err))?;
        Ok(Socket { listener, path, file: None })
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// Fails if the kernel refuses it.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another server may have replaced the file.
        if let Some(file) = self.file
            && fs::symlink_metadata(&self.path).is_ok_and(|of| (of.dev(), of.ino()) == file)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn system_error(doing: &'static str, path: &Path, source: io::Error) -> SocketError {
    SocketError::System { doing, path: path.to_owned(), source }
}

/// Removes the socket at `path` if no process listens on it. Fails if one does, or if the file is no socket.
async fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(system_error("looking at", path, err)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(err) if err.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|err| system_error("removing the stale socket", path, err))
        }
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        // Any other failure, such as a full queue, means that a process listens.
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

    #[tokio::test]
    async fn only_a_unix_socket_that_listens_is_taken_from_a_service_manager() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cri.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let socket = Socket::passed(listener.try_clone().unwrap().into()).unwrap();
        assert_eq!(socket.path(), path);
        let (_client, accepted) = tokio::join!(UnixStream::connect(&path), socket.listener.accept());
        accepted.unwrap();
        drop(socket);
        // The service manager's own is open.
        assert!(path.exists() && std::os::unix::net::UnixStream::connect(&path).is_ok());

        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let datagram = std::os::unix::net::UnixDatagram::bind(dir.path().join("datagram")).unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = fs::File::create(dir.path().join("file")).unwrap();
        for fd in [OwnedFd::from(stream), datagram.into(), tcp.into(), file.into()] {
            assert!(matches!(Socket::passed(fd), Err(SocketError::NotListening)));
        }
    }
}
