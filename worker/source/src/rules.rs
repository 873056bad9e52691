use shardfeed_plan::Corrupt;
use shardfeed_tfrecord::CompressionChoice;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRules {
    pub compression: CompressionChoice,
    /// Treatment of damaged files. With `SkipRecord` a file ends where its framing breaks. With
    /// `SkipFile` a file with any damage has no samples; indexing therefore reads every byte.
    pub corrupt: Corrupt,
}

impl From<CompressionChoice> for FileRules {
    fn from(compression: CompressionChoice) -> Self {
        Self { compression, corrupt: Corrupt::Error }
    }
}
