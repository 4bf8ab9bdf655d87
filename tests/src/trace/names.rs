//! The names of system calls.

use super::Syscall;

macro_rules! names {
    ($($name:ident)*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// The names of those system calls that plugins make.
const NAMES: &[(i64, &str)] = names! {
    SYS_read SYS_write SYS_openat SYS_close SYS_fstat SYS_newfstatat SYS_statx SYS_lseek SYS_mmap
    SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask SYS_ioctl SYS_pread64
    SYS_pwrite64 SYS_mremap SYS_madvise SYS_getpid SYS_socket SYS_connect SYS_sendto SYS_recvfrom
    SYS_sendmsg SYS_recvmsg SYS_bind SYS_getsockname SYS_setsockopt SYS_getsockopt SYS_clone SYS_clone3
    SYS_execve SYS_exit SYS_wait4 SYS_waitid SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_ftruncate
    SYS_mkdirat SYS_unlinkat SYS_linkat SYS_renameat SYS_renameat2 SYS_fchmod SYS_fchown SYS_umask
    SYS_statfs SYS_fstatfs SYS_prctl SYS_sigaltstack SYS_setxattr SYS_fsetxattr SYS_fgetxattr SYS_futex
    SYS_sched_getaffinity SYS_getdents64 SYS_set_tid_address SYS_clock_gettime SYS_clock_nanosleep
    SYS_exit_group SYS_tgkill SYS_gettid SYS_utimensat SYS_ppoll SYS_pipe2 SYS_prlimit64 SYS_getrandom
    SYS_setns SYS_rseq SYS_set_robust_list SYS_readlinkat SYS_faccessat SYS_faccessat2 SYS_sendmmsg
    SYS_recvmmsg SYS_getcwd SYS_geteuid SYS_sched_yield SYS_restart_syscall SYS_dup3 SYS_nanosleep
    SYS_epoll_pwait SYS_epoll_ctl SYS_epoll_create1 SYS_eventfd2 SYS_fchdir SYS_uname SYS_rt_sigreturn
    SYS_getuid SYS_getppid SYS_pidfd_open SYS_pidfd_send_signal SYS_capget SYS_capset
};

/// Calls that newer architectures lack.
#[cfg(target_arch = "x86_64")]
const OLD_NAMES: &[(i64, &str)] = names! {
    SYS_open SYS_stat SYS_lstat SYS_poll SYS_access SYS_pipe SYS_mkdir SYS_rmdir SYS_unlink SYS_link
    SYS_rename SYS_readlink SYS_arch_prctl SYS_epoll_wait SYS_dup2 SYS_fork SYS_vfork SYS_getdents
    SYS_chmod SYS_alarm SYS_symlink
};

#[cfg(not(target_arch = "x86_64"))]
const OLD_NAMES: &[(i64, &str)] = &[];

impl Syscall {
    /// Its name, or its number where that isn't known here.
    pub fn name(&self) -> String {
        name(self.number)
    }
}

/// The name of a system call.
pub fn name(number: u64) -> String {
    let found = NAMES.iter().chain(OLD_NAMES).find(|(known, _)| known.cast_unsigned() == number);
    found.map_or_else(|| format!("call {number}"), |(_, name)| name.trim_start_matches("SYS_").to_owned())
}
