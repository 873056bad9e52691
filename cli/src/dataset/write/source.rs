//! Where records come from.

use serde::Serialize;

/// Records that can be made one by one, in any order, as often as asked.
pub(crate) trait Source: Sync {
    /// About how many bytes each record has.
    fn record_bytes(&self) -> &[u64];

    /// The classes that labels stand for, if there are any.
    fn classes(&self) -> Option<Classes> {
        None
    }

    /// Something that makes records; each thread has its own.
    fn encoder(&self) -> anyhow::Result<Box<dyn Encoder + '_>>;

    /// Fails if the source is no longer what it was when it was opened.
    fn check_unchanged(&self) -> anyhow::Result<()>;
}

/// What labels stand for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Classes {
    /// The label of the first one; the others follow.
    pub(crate) first_label: i64,
    pub(crate) names: Vec<String>,
}

/// Makes records.
pub(crate) trait Encoder {
    /// Appends record `index` to `out`, as an Example.
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) -> anyhow::Result<()>;
}
