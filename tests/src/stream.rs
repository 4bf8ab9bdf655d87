//! A stream between two pods that goes on while something happens.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::{Ns, PATIENCE, wait_until};

/// An address with its port.
pub fn socket(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

/// A stream between two pods: what goes there comes back.
pub struct Stream {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// Begins one from a pod to another, which has the address.
    ///
    /// # Panics
    /// There is no way.
    pub fn between(from: &Ns, to: &Ns, ip: &str) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let listener = to.within(|| TcpListener::bind("[::]:7777").unwrap());
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|read| read == 1) && stream.write_all(&byte).is_ok() {}
        });
        let mut stream = from.within(|| TcpStream::connect(socket(ip, 7777)).unwrap());
        stream.set_read_timeout(Some(Duration::from_secs_f32(PATIENCE))).unwrap();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let ask = std::thread::spawn(move || {
            let mut byte = [0];
            while !stopped.load(Ordering::Relaxed) {
                stream.write_all(&[7]).unwrap();
                stream.read_exact(&mut byte).unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Stream { stop, count, threads: vec![ask, echo] }
    }

    /// It still goes there and back.
    ///
    /// # Panics
    /// Panics if it does not.
    pub fn flows(&self, when: &str) {
        let before = self.count.load(Ordering::Relaxed);
        let more = || self.count.load(Ordering::Relaxed) > before + 3;
        assert!(wait_until(PATIENCE, more), "the stream stands still: {when}");
    }

    /// Ends the connection.
    ///
    /// # Panics
    /// Panics if it broke.
    pub fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}
