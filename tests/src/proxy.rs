//! A proxy between clients and a server, which the test can slow down or hold up.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Listens at `at`, in the namespace of the calling thread, and passes on what is said, until the test ends. `heed`
/// sees each piece before it goes on, with whether it is a client's, and may take its time; after `false` nothing
/// more of that side is passed on. The server's side of a connection stays open when its client has gone.
///
/// # Panics
/// If it can't listen.
pub fn proxy(at: SocketAddr, server: SocketAddr, heed: impl Fn(bool, &[u8]) -> bool + Send + Sync + 'static) {
    let listener = TcpListener::bind(at).unwrap();
    let heed = Arc::new(heed);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { continue };
            let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
            let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { continue };
            let seen = Arc::clone(&heed);
            std::thread::spawn(move || pass(from, to, |piece| seen(true, piece)));
            let seen = Arc::clone(&heed);
            std::thread::spawn(move || pass(server, client, |piece| seen(false, piece)));
        }
    });
}

fn pass(mut from: TcpStream, mut to: TcpStream, heed: impl Fn(&[u8]) -> bool) {
    let mut piece = [0; 1 << 14];
    let mut goes_on = true;
    while let Ok(length) = from.read(&mut piece) {
        if length == 0 {
            return;
        }
        if goes_on {
            let is_last = !heed(&piece[..length]);
            goes_on = to.write_all(&piece[..length]).is_ok() && !is_last;
        }
    }
}
