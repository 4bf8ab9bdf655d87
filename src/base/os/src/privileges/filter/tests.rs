//! The program, run as the kernel runs it.

use super::*;

const OTHERWISE: u32 = SECCOMP_RET_ERRNO | 1;

/// The program's answer to a call (seccomp(2), bpf(4)).
fn answer(program: &[sock_filter], architecture: u32, number: u32) -> u32 {
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        match u32::from(code) {
            code if code == BPF_LD | BPF_W | BPF_ABS => {
                a = if k == NUMBER_AT { number } else { architecture }
            }
            code if code == BPF_LD | BPF_IMM => a = k,
            code if code == BPF_ALU | BPF_AND | BPF_K => a &= k,
            code if code == BPF_ALU | BPF_RSH | BPF_K => a >>= k,
            code if code == BPF_ALU | BPF_RSH | BPF_X => a >>= x,
            code if code == BPF_MISC | BPF_TAX => x = a,
            code if code == BPF_RET | BPF_K => return k,
            code if code == BPF_JMP | BPF_JEQ | BPF_K => at += usize::from(if a == k { jt } else { jf }),
            code if code == BPF_JMP | BPF_JSET | BPF_K => at += usize::from(if a & k != 0 { jt } else { jf }),
            other => panic!("instruction {other:#x}"),
        }
    }
}

#[test]
fn the_program_lets_through_what_is_listed_and_nothing_else() {
    let lists: &[&[c_long]] = &[ALWAYS, OLDER];
    let program = program(7, &map(lists), OTHERWISE);
    let listed = |number: u32| lists.iter().copied().flatten().any(|call| *call == c_long::from(number));
    for number in (0..2000).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
        let expected = if listed(number) { SECCOMP_RET_ALLOW } else { OTHERWISE };
        assert_eq!(answer(&program, 7, number), expected, "call {number}");
        assert_eq!(answer(&program, 8, number), OTHERWISE, "call {number} of another architecture");
    }
}

#[test]
fn every_listed_call_has_a_place_in_the_map() {
    for call in [ALWAYS, OLDER, WITH_SYS_ADMIN].into_iter().flatten() {
        assert!(usize::try_from(*call).unwrap() < 32 * WORDS, "{call}");
    }
}

#[test]
fn the_way_into_a_pod_takes_a_capability() {
    for call in WITH_SYS_ADMIN {
        assert!(![ALWAYS, OLDER].iter().copied().flatten().any(|other| other == call), "{call}");
    }
}
