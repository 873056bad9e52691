//! Sources of records.

use serde::Serialize;

/// Records that can be encoded one by one, in any order, any number of times.
pub(crate) trait Source: Sync {
    /// Approximate size of each record, bytes.
    fn record_bytes(&self) -> &[u64];

    /// Classes that labels refer to, if there are any.
    fn classes(&self) -> Option<Classes> {
        None
    }

    /// Creates an encoder; each thread has its own.
    fn encoder(&self) -> anyhow::Result<Box<dyn Encoder + '_>>;

    /// Fails if the source has changed since it was opened. By default, each file is read once, and
    /// its size is checked then.
    fn check_unchanged(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Classes {
    /// Label of the first class; the others follow.
    pub(crate) first_label: i64,
    /// Names of the classes, in the order of their labels.
    pub(crate) names: Vec<String>,
}

pub(crate) trait Encoder {
    /// Appends record `index` to `out`, as an Example.
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) -> anyhow::Result<()>;
}
