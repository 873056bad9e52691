use shardfeed_plan::Corrupt;
use shardfeed_tfrecord::{CompressionChoice, UnknownCompression};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRules {
    pub compression: CompressionChoice,
    /// Treatment of damaged files. With `SkipRecord` a file ends where its framing breaks. With
    /// `SkipFile` a file with any damage has no samples; indexing therefore reads every byte.
    pub corrupt: Corrupt,
}

impl FileRules {
    /// Parses the names of rules in a message; an empty `corrupt` is that of an earlier release.
    pub fn parse(compression: &str, corrupt: &str) -> Result<Self, String> {
        let corrupt = match corrupt {
            "" => Corrupt::Error,
            corrupt => corrupt.parse()?,
        };
        let unknown = |error: UnknownCompression| error.to_string();
        Ok(Self { compression: compression.parse().map_err(unknown)?, corrupt })
    }
}
