//! Trace context for plugins: which operation of ours a plugin belongs to.
//!
//! As the W3C's Trace Context has it (<https://www.w3.org/TR/trace-context/>): a trace is one
//! operation from its beginning to its end, a span is a part of it, and `TRACEPARENT` tells a
//! process under which span it works. Runtimes pass it to plugins in the environment.
//!
//! Whatever runs inside [`scope`] starts plugins with a span of their own in that trace, if we were
//! started without a `TRACEPARENT`. If there is one, or outside, plugins inherit our environment
//! untouched, `TRACEPARENT`, `TRACESTATE` and `BAGGAGE` included: nobody exports spans of ours, and a
//! span that is exported by nobody would cut the caller's trace in two.

use std::fmt;
use std::future::Future;

use cnimble_cni::hash::hex;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// A span of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
}

/// The trace is recorded.
const SAMPLED: u8 = 1;

impl TraceContext {
    /// A new trace.
    pub fn new() -> Self {
        TraceContext { trace: random(), span: random(), flags: SAMPLED }
    }

    /// Reads `VERSION-TRACE-SPAN-FLAGS`. As the recommendation asks, what a later version adds
    /// behind the flags is skipped.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version: [u8; 1] = unhex(parts.next()?)?;
        let trace = unhex(parts.next()?)?;
        let span = unhex(parts.next()?)?;
        let [flags] = unhex(parts.next()?)?;
        let more = parts.next().is_some();
        if version == [0xff] || (version == [0] && more) || trace == [0; 16] || span == [0; 8] {
            return None;
        }
        Some(TraceContext { trace, span, flags: flags & SAMPLED })
    }

    /// What [`scope`] has set for this task.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|context| *context).ok()
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        TraceContext { span: random(), ..*self }
    }

    /// The trace, 32 hex digits.
    pub fn trace_id(&self) -> String {
        hex(self.trace)
    }
}

impl Default for TraceContext {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for TraceContext {
    /// The value of `TRACEPARENT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", hex(self.trace), hex(self.span), self.flags)
    }
}

/// Runs `work` under this span. Tasks that it spawns aren't part of it.
pub async fn scope<T>(context: TraceContext, work: impl Future<Output = T>) -> T {
    CURRENT.scope(context, work).await
}

/// Lower-case hex digits, and exactly as many as fit.
fn unhex<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * LENGTH || !text.bytes().all(lower) {
        return None;
    }
    let mut out = [0; LENGTH];
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(out)
}

/// Random, and not all zeroes, which would be no ID.
fn random<const LENGTH: usize>() -> [u8; LENGTH] {
    use std::hash::{BuildHasher, RandomState};
    let mut out = [0; LENGTH];
    for (index, chunk) in out.chunks_mut(8).enumerate() {
        // Each state has random keys of its own.
        let number = RandomState::new().hash_one(index) | 1;
        for (to, from) in chunk.iter_mut().zip(number.to_ne_bytes()) {
            *to = from;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn contexts_are_read_and_written() {
        let context = TraceContext::parse(TEXT).unwrap();
        assert_eq!(context.to_string(), TEXT);
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        let child = context.child();
        assert_eq!(child.trace_id(), context.trace_id());
        assert_ne!(child, context);
        let new = TraceContext::new();
        assert_eq!(TraceContext::parse(&new.to_string()), Some(new));
        assert_ne!(new.trace_id(), TraceContext::new().trace_id());
        // A version of the future, with something behind the flags.
        assert!(TraceContext::parse(&format!("01{}-more", TEXT.trim_start_matches("00"))).is_some());
    }

    #[test]
    fn what_is_no_context_is_refused() {
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_scope_ends_with_its_work() {
        let context = TraceContext::new();
        assert_eq!(scope(context, async { TraceContext::current() }).await, Some(context));
        assert_eq!(TraceContext::current(), None);
    }
}
