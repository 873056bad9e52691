//! W3C trace context of a call, as carried in headers and messages. Source:
//! https://www.w3.org/TR/trace-context/, version 00.

use std::fmt;
use std::str::FromStr;

/// Name of the header, and of the environment variable that launchers set.
pub const TRACEPARENT: &str = "traceparent";

/// Length of the text: version, both ids and flags, with their dashes.
const TEXT_BYTES: usize = 55;

/// Trace of an operation across processes, and one span of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
}

/// Error: the text is not a trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no trace context; it is 00-TRACE-SPAN-FLAGS with 32, 16 and 2 hexadecimal digits, not all zero"
)]
pub struct InvalidTraceparent;

impl TraceContext {
    /// Returns a context with these ids, which should be random.
    ///
    /// An id of zero would mean none, so it is replaced; this concerns one id in 2^64.
    pub fn new(trace_id: u128, span_id: u64) -> Self {
        Self { trace_id: trace_id.max(1), span_id: span_id.max(1) }
    }

    /// Returns another span of the same trace.
    pub fn part(self, span_id: u64) -> Self {
        Self::new(self.trace_id, span_id)
    }

    pub fn trace_id(self) -> String {
        format!("{:032x}", self.trace_id)
    }

    pub fn span_id(self) -> String {
        format!("{:016x}", self.span_id)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, span_id } = self;
        write!(f, "00-{trace_id:032x}-{span_id:016x}-01")
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTraceparent;

    /// Of later versions the fields of this version are used.
    fn from_str(text: &str) -> Result<Self, InvalidTraceparent> {
        let parse = || {
            let known = text.get(..TEXT_BYTES)?;
            let rest = &text[TEXT_BYTES..];
            let mut parts = known.split('-');
            let mut hex = |digits: usize| {
                let part = parts.next().filter(|part| part.len() == digits)?;
                let is_hex = part.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
                u128::from_str_radix(part, 16).ok().filter(|_| is_hex)
            };
            let version = hex(2)?;
            let (trace_id, span_id, _flags) = (hex(32)?, hex(16)? as u64, hex(2)?);
            let fits = if version == 0 {
                rest.is_empty()
            } else {
                rest.is_empty() || rest.starts_with('-')
            };
            let is_one = version != 0xff && fits && trace_id != 0 && span_id != 0;
            is_one.then_some(Self { trace_id, span_id })
        };
        parse().ok_or(InvalidTraceparent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_it_is_written() {
        let context = TraceContext::new(0x4bf9_2f35, 0xf067);
        let text = "00-0000000000000000000000004bf92f35-000000000000f067-01";
        assert_eq!(context.to_string(), text);
        assert_eq!(text.parse(), Ok(context));
        let part = context.part(7);
        assert_eq!((part.trace_id(), part.span_id()), (context.trace_id(), format!("{:016x}", 7)));
    }

    #[test]
    fn later_versions_are_read_and_everything_else_is_refused() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = |text: &str| text.parse::<TraceContext>().is_ok();
        assert!(read(text) && read(&text.replacen("00", "cc", 1)));
        assert!(read(&format!("{}-more", text.replacen("00", "01", 1))));
        for bad in [
            "",
            "00-",
            &text[..54],
            &format!("{text}-more"),
            &format!("{text}x"),
            &text.replacen("00", "ff", 1),
            &text.to_uppercase(),
            &text.replace('b', "g"),
            &text.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &text.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &text.replace("-01", "-é"),
            &text.replacen('-', "+", 1),
        ] {
            assert!(!read(bad), "{bad}");
        }
    }
}
