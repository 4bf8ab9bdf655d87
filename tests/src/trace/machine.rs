//! The registers that a system call is made by, on each architecture.

pub(super) use this::*;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod this {
    use nix::errno::Errno;
    use nix::sys::ptrace;
    use nix::unistd::Pid;

    pub(crate) const IS_KNOWN: bool = true;

    /// The call that is about to be made; `None` if one has been.
    pub(crate) fn entered(pid: Pid) -> Option<(u64, [u64; 6])> {
        let info = ptrace::syscall_info(pid).ok()?;
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return None;
        }
        // SAFETY: `op` says that this member is the one.
        let entry = unsafe { info.u.entry };
        Some((entry.nr, entry.args))
    }

    /// Has the kernel make another call, or none (-1).
    pub(crate) fn replace(pid: Pid, number: i64) {
        let at = (8 * libc::ORIG_RAX) as ptrace::AddressType;
        let _ = ptrace::write_user(pid, at, number);
    }

    /// The return value of the call.
    pub(crate) fn returned(pid: Pid) -> Option<i64> {
        ptrace::read_user(pid, (8 * libc::RAX) as ptrace::AddressType).ok()
    }

    /// Has the call return an error.
    pub(crate) fn answer(pid: Pid, error: Errno) {
        let at = (8 * libc::RAX) as ptrace::AddressType;
        let _ = ptrace::write_user(pid, at, -libc::c_long::from(error as i32));
    }
}

#[cfg(target_arch = "aarch64")]
mod this {
    use nix::errno::Errno;
    use nix::sys::ptrace;
    use nix::unistd::Pid;

    pub(crate) const IS_KNOWN: bool = true;

    /// The set of registers with the call's number alone (linux/elf.h).
    const NT_ARM_SYSTEM_CALL: usize = 0x404;

    /// The call that is about to be made; `None` if one has been. The kernel shows in x7 which it is: 0 is the entry.
    pub(crate) fn entered(pid: Pid) -> Option<(u64, [u64; 6])> {
        let registers = ptrace::getregs(pid).ok()?.regs;
        let [a, b, c, d, e, f, _, 0, number, ..] = registers else { return None };
        Some((number, [a, b, c, d, e, f]))
    }

    /// Has the kernel make another call, or none (-1).
    pub(crate) fn replace(pid: Pid, number: i64) {
        let mut number = i32::try_from(number).unwrap();
        let mut place =
            libc::iovec { iov_base: (&raw mut number).cast(), iov_len: std::mem::size_of_val(&number) };
        // SAFETY: the kernel reads the number, which outlives the call.
        unsafe { libc::ptrace(libc::PTRACE_SETREGSET, pid.as_raw(), NT_ARM_SYSTEM_CALL, &raw mut place) };
    }

    /// The return value of the call.
    pub(crate) fn returned(pid: Pid) -> Option<i64> {
        ptrace::getregs(pid).ok().map(|registers| registers.regs[0].cast_signed())
    }

    /// Has the call return an error.
    pub(crate) fn answer(pid: Pid, error: Errno) {
        if let Ok(mut registers) = ptrace::getregs(pid) {
            registers.regs[0] = (-i64::from(error as i32)).cast_unsigned();
            let _ = ptrace::setregs(pid, registers);
        }
    }
}

#[cfg(not(any(all(target_arch = "x86_64", target_env = "gnu"), target_arch = "aarch64")))]
mod this {
    use nix::errno::Errno;
    use nix::unistd::Pid;

    pub(crate) const IS_KNOWN: bool = false;

    pub(crate) fn entered(_: Pid) -> Option<(u64, [u64; 6])> {
        None
    }

    pub(crate) fn replace(_: Pid, _: i64) {}

    pub(crate) fn returned(_: Pid) -> Option<i64> {
        None
    }

    pub(crate) fn answer(_: Pid, _: Errno) {}
}
