//! Where records come from.

/// Records that can be made one by one, in any order, as often as asked.
pub(crate) trait Source: Sync {
    /// About how many bytes each record has.
    fn record_bytes(&self) -> &[u64];

    /// Something that makes records; each thread has its own.
    fn encoder(&self) -> anyhow::Result<Box<dyn Encoder + '_>>;

    /// Fails if the source is no longer what it was when it was opened.
    fn check_unchanged(&self) -> anyhow::Result<()>;
}

/// Makes records.
pub(crate) trait Encoder {
    /// Appends record `index` to `out`, as an Example.
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) -> anyhow::Result<()>;
}
