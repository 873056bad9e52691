//! Streams of trainers, as DLPack names them.

use crate::error::DeviceError;

/// A trainer's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConsumerStream {
    /// The legacy default stream of the device's context.
    Legacy,
    /// The default stream of the trainer's thread, which other threads cannot name.
    PerThread,
    /// A stream, by its `CUstream`.
    Handle(u64),
    /// Unspecified: the consumer of the data orders its work itself.
    Unknown,
}

impl ConsumerStream {
    /// Returns the stream that `__dlpack__(stream=)` means for CUDA.
    ///
    /// # Errors  It is 0, which may be either default stream, or no valid stream.
    pub fn from_dlpack(stream: Option<i64>) -> Result<Self, DeviceError> {
        match stream {
            None | Some(1) => Ok(Self::Legacy),
            Some(2) => Ok(Self::PerThread),
            Some(-1) => Ok(Self::Unknown),
            Some(0) => Err(DeviceError::Invalid(
                "stream=0 may be either default stream: use 1 for the legacy one or 2 for the \
                 thread's own"
                    .into(),
            )),
            Some(handle) if handle > 2 => Ok(Self::Handle(handle.cast_unsigned())),
            Some(other) => {
                Err(DeviceError::Invalid(format!("stream={other} is no stream; -1 is none")))
            }
        }
    }

    /// Returns the stream for a number as frameworks show it, where 0 is the legacy default stream.
    pub fn from_handle(handle: u64) -> Self {
        match handle {
            0 | 1 => Self::Legacy,
            2 => Self::PerThread,
            handle => Self::Handle(handle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dlpack_numbers_are_streams() {
        let of = |number| ConsumerStream::from_dlpack(number).ok();
        assert_eq!(of(None), Some(ConsumerStream::Legacy));
        assert_eq!(of(Some(1)), Some(ConsumerStream::Legacy));
        assert_eq!(of(Some(2)), Some(ConsumerStream::PerThread));
        assert_eq!(of(Some(-1)), Some(ConsumerStream::Unknown));
        assert_eq!(of(Some(0x7f00)), Some(ConsumerStream::Handle(0x7f00)));
        let refused = |number| ConsumerStream::from_dlpack(Some(number)).unwrap_err().to_string();
        let said = [refused(0), refused(-2)];
        assert_eq!(
            said,
            [
                "stream=0 may be either default stream: use 1 for the legacy one or 2 for the \
                 thread's own",
                "stream=-2 is no stream; -1 is none",
            ]
        );
    }

    #[test]
    fn a_frameworks_null_stream_is_the_legacy_one() {
        assert_eq!(ConsumerStream::from_handle(0), ConsumerStream::Legacy);
        assert_eq!(ConsumerStream::from_handle(2), ConsumerStream::PerThread);
        assert_eq!(ConsumerStream::from_handle(7), ConsumerStream::Handle(7));
    }
}
