//! The parts of the standard library's start that a plugin needs, because it skips the rest (see the package
//! cnimble-plugins): three open descriptors, and no death by SIGPIPE. Without a dynamic loader it also makes constant
//! data read-only.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{SigHandler, Signal, signal};

/// Prepares the process. It must be called first.
pub(super) fn prepare() {
    seal();
    // A caller may have closed one. The next opened file would get its number, and an answer for stdout would be
    // written into a lease.
    fill(std::io::stdin());
    fill(std::io::stdout());
    fill(std::io::stderr());
    // The reader of an answer or of a delegate's configuration may exit. That is an error like any other, and an ADD
    // must be rolled back. SAFETY: no handler is installed, so none can do anything unsafe.
    if let Err(err) = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) } {
        log::warn!("can't ignore SIGPIPE: {err}");
    }
}

/// Rounds an address down to the begin of its page. Returns `None` if the size of a page is unknown.
fn round_down(address: usize, page: usize) -> Option<usize> {
    address.checked_div(page).map(|pages| pages * page)
}

/// Opens /dev/null as this descriptor if it is closed. A new descriptor has the lowest free number, so those below must
/// be open.
fn fill(descriptor: impl AsFd) {
    if fcntl(descriptor, FcntlArg::F_GETFD) == Err(Errno::EBADF)
        && let Ok(null) = File::options().read(true).write(true).open("/dev/null")
    {
        // The descriptor stays open for the rest of the process's life.
        std::mem::forget(null);
    }
}

/// Makes data read-only that is constant except for its relocation. So a stray write can't change tables of functions.
/// A loader does that, and so does glibc's start of a static program. musl's start does not.
fn seal() {
    // SAFETY: the function is of the type that dl_iterate_phdr(3) calls, and needs no data.
    unsafe { libc::dl_iterate_phdr(Some(seal_program), std::ptr::null_mut()) };
}

/// The callback of dl_iterate_phdr(3). The program is first, and the iteration ends there.
unsafe extern "C" fn seal_program(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes the program's headers, which are loaded for good.
    let (base, headers) = unsafe {
        (
            usize::try_from((*info).dlpi_addr),
            std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into()),
        )
    };
    // SAFETY: getauxval(3) only reads.
    let page = usize::try_from(unsafe { libc::getauxval(libc::AT_PAGESZ) });
    let (Ok(base), Ok(page)) = (base, page) else { return 1 };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO) {
        let (Ok(offset), Ok(length)) = (usize::try_from(header.p_vaddr), usize::try_from(header.p_memsz))
        else {
            continue;
        };
        // Only complete pages are protected, as a loader does: both ends are rounded down.
        let (Some(start), Some(end)) =
            (round_down(base + offset, page), round_down(base + offset + length, page))
        else {
            continue;
        };
        // SAFETY: the linker put only data there that is not written after the start.
        let outcome =
            unsafe { libc::mprotect(start as *mut c_void, end.saturating_sub(start), libc::PROT_READ) };
        if outcome != 0 {
            log::warn!("constants stay writable: {}", Errno::last());
        }
    }
    1
}
