//! The readers of what comes from outside, for fuzzers.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;

use crate::holder::{self, Holder};
use crate::index::{self, Index};

/// Takes any bytes for a lease, and for the name of one.
pub fn lease(bytes: &[u8]) {
    if let Holder::Attachment(own) = Holder::parse(bytes) {
        assert!(Holder::parse(&holder::content(&own)).is(&own));
    }
    if let Ok(name) = std::str::from_utf8(bytes) {
        let ip = crate::address(name);
        assert!(ip.is_none_or(|ip| ip.to_string() == name));
    }
}

/// Takes any bytes for the entries of an index. The first eight are the key to look for, the next one the address to
/// put in and take out.
pub fn index(bytes: &[u8]) {
    thread_local! {
        static FILE: OnceCell<File> = const { OnceCell::new() };
    }
    let (Some(key), Some(last)) = (bytes.first_chunk(), bytes.get(8)) else { return };
    let (key, ip) = (u64::from_le_bytes(*key), IpAddr::from([10, 0, 0, *last]));
    let outcome = FILE.with(|file| {
        let file = match file.get() {
            Some(file) => file.try_clone()?,
            None => {
                let new = nameless()?;
                let own = new.try_clone()?;
                let _ = file.set(new);
                own
            }
        };
        index::fuzz(file, bytes.get(9..).unwrap_or_default(), key, ip)
    });
    assert!(outcome.is_ok(), "{outcome:?}");
}

fn nameless() -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir())
}

impl Index {
    /// How often the index says that the container with this key may have `ip`.
    pub(crate) fn count(&self, key: u64, ip: IpAddr) -> Option<usize> {
        Some(self.find(key)?.into_iter().filter(|found| *found == ip).count())
    }
}
