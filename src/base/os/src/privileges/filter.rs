//! The filter of system calls (seccomp(2)): a bit map with a word for each 32 calls. The kernel runs a new program once
//! for the number of every call, and a list would take five times as long.

use std::ffi::{c_long, c_ulong};

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_IMM, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_MISC, BPF_RET,
    BPF_RSH, BPF_TAX, BPF_W, BPF_X, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_LOG, sock_filter,
    sock_fprog,
};
use nix::errno::Errno;

use super::calls::{ALWAYS, OLDER, WITH_SYS_ADMIN};
use super::{Caps, Level};

/// No architecture has more than 512 calls yet.
const WORDS: usize = 16;
/// The numbers of instructions for each word, and before the words.
const EACH: u8 = 4;
const FRONT: usize = 8;

/// linux/audit.h. A filter must check it first.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// The offsets in `struct seccomp_data` (linux/seccomp.h).
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

pub(super) fn install(level: Level, keep: Caps) {
    let otherwise = match level {
        Level::Off | Level::Usual => return,
        Level::Log => SECCOMP_RET_LOG,
        Level::Strict => SECCOMP_RET_ERRNO | Errno::EPERM as u32,
    };
    let Some(architecture) = ARCHITECTURE else {
        log::debug!("no filter of system calls is known for this architecture");
        return;
    };
    let more = if keep.has(Caps::SYS_ADMIN) { WITH_SYS_ADMIN } else { &[] };
    let mut program = program(architecture, &map(&[ALWAYS, OLDER, more]), otherwise);
    if let Err(errno) = load(&mut program) {
        log::debug!("system calls aren't filtered: {}", errno.desc());
    }
}

fn load(program: &mut [sock_filter]) -> Result<(), Errno> {
    let Ok(len) = u16::try_from(program.len()) else { return Err(Errno::E2BIG) };
    let program = sock_fprog { len, filter: program.as_mut_ptr() };
    let (operation, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
    // SAFETY: the program outlives the call, which copies it.
    let outcome =
        unsafe { libc::syscall(libc::SYS_seccomp, operation, flags as c_ulong, &raw const program) };
    Errno::result(outcome).map(drop)
}

fn map(lists: &[&[c_long]]) -> [u32; WORDS] {
    let mut map = [0; WORDS];
    for call in lists.iter().copied().flatten() {
        if let Ok(call) = usize::try_from(*call)
            && let Some(word) = map.get_mut(call / 32)
        {
            *word |= 1 << (call % 32);
        }
    }
    map
}

/// Allows the calls in the map, and returns `otherwise` for the others.
fn program(architecture: u32, map: &[u32; WORDS], otherwise: u32) -> Vec<sock_filter> {
    let say = |code: u32, k: u32| jump(code, k, 0, 0);
    let mut program = vec![
        say(BPF_LD | BPF_W | BPF_ABS, ARCHITECTURE_AT),
        jump(BPF_JMP | BPF_JEQ | BPF_K, architecture, 1, 0),
        say(BPF_RET | BPF_K, otherwise),
        // X is the number of the bit in its word, A that of the word.
        say(BPF_LD | BPF_W | BPF_ABS, NUMBER_AT),
        say(BPF_ALU | BPF_AND | BPF_K, 31),
        say(BPF_MISC | BPF_TAX, 0),
        say(BPF_LD | BPF_W | BPF_ABS, NUMBER_AT),
        say(BPF_ALU | BPF_RSH | BPF_K, 5),
    ];
    debug_assert_eq!(program.len(), FRONT);
    let used: Vec<(u32, u32)> = (0..).zip(map.iter().copied()).filter(|(_, bits)| *bits != 0).collect();
    let mut left = u8::try_from(used.len()).unwrap_or(u8::MAX);
    for (nth, bits) in used {
        left = left.saturating_sub(1);
        // Counted from the end of this block: first the return of `otherwise`, then that of the allowed calls.
        let rest = left.saturating_mul(EACH);
        program.extend([
            jump(BPF_JMP | BPF_JEQ | BPF_K, nth, 0, EACH - 1),
            say(BPF_LD | BPF_IMM, bits),
            say(BPF_ALU | BPF_RSH | BPF_X, 0),
            jump(BPF_JMP | BPF_JSET | BPF_K, 1, rest.saturating_add(1), rest),
        ]);
    }
    program.extend([say(BPF_RET | BPF_K, otherwise), say(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)]);
    program
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // All codes of the classic BPF are below 256.
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}

#[cfg(test)]
mod tests;
