//! Talks to a program on all of its pipes at once.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};

use super::{Failure, Limits};

/// Our ends of the pipes until they are closed, and what the program has printed.
pub(super) struct Pipes<'a> {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    unsent: &'a [u8],
    said: Vec<u8>,
    complained: Vec<u8>,
    limits: Limits,
}

impl<'a> Pipes<'a> {
    pub(super) fn new(child: &mut Child, input: &'a [u8], limits: Limits) -> io::Result<Self> {
        let pipes = Pipes {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            unsent: input,
            said: Vec::new(),
            complained: Vec::new(),
            limits,
        };
        for end in pipes.ends().into_iter().flatten() {
            fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(pipes)
    }

    fn ends(&self) -> [Option<BorrowedFd<'_>>; 3] {
        [
            self.stdin.as_ref().map(AsFd::as_fd),
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
        ]
    }

    /// Returns what poll(2) must wait for before [`talk`](Self::talk) can go on.
    pub(super) fn waited(&self) -> Vec<PollFd<'_>> {
        let [stdin, stdout, stderr] = self.ends();
        let writable = stdin.map(|end| PollFd::new(end, PollFlags::POLLOUT));
        let readable = [stdout, stderr].into_iter().flatten().map(|end| PollFd::new(end, PollFlags::POLLIN));
        writable.into_iter().chain(readable).collect()
    }

    /// Returns whether the program can print nothing more.
    pub(super) fn are_done(&self) -> bool {
        self.stdout.is_none() && self.stderr.is_none()
    }

    /// Writes and reads what is possible without waiting. Fails if the program has printed too much on stdout.
    pub(super) fn talk(&mut self) -> Result<(), Failure> {
        self.say().map_err(Failure::Talk)?;
        let room = self.limits.stdout;
        if let Some(stdout) = &mut self.stdout
            && read_waiting(stdout, |piece| {
                self.said.extend_from_slice(piece);
                self.said.len() <= room
            })
            .map_err(Failure::Talk)?
        {
            self.stdout = None;
        }
        if self.said.len() > room {
            return Err(Failure::TooMuch(room));
        }
        let kept = self.limits.stderr.unwrap_or_default();
        if let Some(stderr) = &mut self.stderr
            && read_waiting(stderr, |piece| {
                let room = kept.saturating_sub(self.complained.len());
                self.complained.extend_from_slice(piece.get(..room).unwrap_or(piece));
                true
            })
            .map_err(Failure::Talk)?
        {
            self.stderr = None;
        }
        Ok(())
    }

    /// Writes the input, and closes the pipe behind its last byte.
    fn say(&mut self) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        while !self.unsent.is_empty() {
            match stdin.write(self.unsent) {
                Ok(length) => self.unsent = self.unsent.get(length..).unwrap_or_default(),
                Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                // A program that doesn't read its input closes the pipe; its answer counts.
                Err(err) if err.kind() == ErrorKind::BrokenPipe => break,
                Err(err) => return Err(err),
            }
        }
        self.stdin = None;
        Ok(())
    }

    /// Returns what came on stdout and stderr.
    pub(super) fn kept(self) -> (Vec<u8>, Vec<u8>) {
        (self.said, self.complained)
    }
}

/// Reads until the pipe is empty, or `keep` wants no more. Returns whether the pipe is at its end.
fn read_waiting(from: &mut impl Read, mut keep: impl FnMut(&[u8]) -> bool) -> io::Result<bool> {
    let mut piece = [0; 16 << 10];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(true),
            Ok(length) => {
                if !keep(piece.get(..length).unwrap_or_default()) {
                    return Ok(false);
                }
            }
            Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}
