//! `/proc/sys/net`: relative to the namespace of the thread that opens the file.

use super::Result;

/// Reads `net/ipv4/ip_forward` and so on (a path below /proc/sys), trimmed.
///
/// # Errors
/// ENOENT if the kernel has no such key.
pub fn read(_key: &str) -> Result<String> {
    todo!()
}

/// Writes a key.
///
/// # Errors
/// ENOENT if the kernel has no such key, EROFS where /proc/sys is read-only.
pub fn write(_key: &str, _value: &str) -> Result<()> {
    todo!()
}

/// Writes a key only if it has another value: read-only file systems with the right value
/// are fine. Returns the old value if it was changed.
///
/// # Errors
/// As [`write`].
pub fn ensure(_key: &str, _value: &str) -> Result<Option<String>> {
    todo!()
}
