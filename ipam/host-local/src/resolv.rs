//! Reads the file `resolvConf`, which has the form of resolv.conf(5), into the `dns` of the result.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use cnimble_cni::{Dns, Error};
use cnimble_os::files::{self as files, Links};

/// The largest file that is read, in bytes.
const LIMIT: usize = 1 << 20;
/// The number of the device /dev/null: major 1, minor 3 (Documentation/admin-guide/devices.txt in the kernel).
const NULL_DEVICE: u64 = 1 << 8 | 3;

/// Reads the file. Fails with code 5 and the path if it is missing, is no file, or is absurdly large. /dev/null counts
/// as an empty file, by which an administrator says that there is no name server.
pub fn read(path: &Path) -> Result<Dns, Error> {
    match files::read(path, LIMIT, Links::Follow) {
        Ok(text) => Ok(parse(&String::from_utf8_lossy(&text))),
        Err(err) if files::is_foreign(&err) && is_null_device(path) => Ok(Dns::default()),
        Err(err) => Err(Error::io("ipam.resolvConf: reading", path, &err)),
    }
}

/// Returns true if the path leads to /dev/null, or to a device with the same number.
fn is_null_device(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == NULL_DEVICE)
}

/// Parses the text as the Go plugin does. The last `domain` counts, and `search` and `options` add up. Keywords without
/// a value and unknown ones are ignored.
pub(crate) fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let (Some(keyword), Some(value)) = (fields.next(), fields.next()) else {
            continue;
        };
        let values = std::iter::once(value).chain(fields).map(str::to_owned);
        // The first field of a comment is no keyword, so comments are ignored as well.
        match keyword {
            "nameserver" => dns.nameservers.push(value.to_owned()),
            "domain" => dns.domain = value.to_owned(),
            "search" => dns.search.extend(values),
            "options" => dns.options.extend(values),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read() {
        let dns = parse(
            "# nameserver 10.0.0.9\n; search no\n\nnameserver 10.0.0.1 ignored\n\tnameserver\tfd00::1\r\n\
             nameserver\ndomain a.example\ndomain b.example\nsearch one two\nsearch three\n\
             options ndots:5  rotate\nsortlist 1.2.3.4\n#nameserver x\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.domain, "b.example");
        assert_eq!(dns.search, ["one", "two", "three"]);
        assert_eq!(dns.options, ["ndots:5", "rotate"]);
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_file_that_cant_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(read(&missing).unwrap_err().msg.contains(missing.to_str().unwrap()));
        assert!(read(dir.path()).unwrap_err().msg.ends_with("is not a regular file"));
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read(&pipe).unwrap_err().msg.ends_with("is not a regular file"));
        assert!(read(Path::new("/dev/zero")).unwrap_err().msg.ends_with("is not a regular file"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(read(Path::new("/dev/null")).unwrap().is_empty() && read(&link).unwrap().is_empty());
        let file = dir.path().join("file");
        std::fs::write(&file, b"nameserver 1.1.1.1\xff\n").unwrap();
        assert_eq!(read(&file).unwrap().nameservers.len(), 1);
    }
}
