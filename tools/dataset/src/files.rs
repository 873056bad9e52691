//! Files that a command works on.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use shardfeed_plan::Corrupt;
use shardfeed_source::{CacheChoice, Dataset, FileRules, Found, LoadError, discover};
use shardfeed_tfrecord::CompressionChoice;

use crate::progress;

/// Files by name.
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// TFRecord files: paths, quoted globs (*, ?, [a-z], **), or @LIST, a text file with one per
    /// line
    #[arg(required = true, value_name = "FILES")]
    files: Vec<String>,
    /// Compression of the files
    #[arg(
        long,
        default_value = "auto",
        value_name = "SCHEME",
        value_parser = PossibleValuesParser::new(["auto", "none", "gzip", "zlib"])
            .try_map(|name| name.parse::<CompressionChoice>())
    )]
    pub(crate) compression: CompressionChoice,
}

/// Files that are indexed.
#[derive(Debug, Args)]
pub struct DatasetArgs {
    #[command(flatten)]
    files: FilesArgs,
    /// Policy for damaged files, as in the run: fail; leave out records from a broken framing on;
    /// leave out every damaged file
    #[arg(
        long,
        default_value = "error",
        value_name = "POLICY",
        value_parser = PossibleValuesParser::new(["error", "skip-record", "skip-file"])
            .try_map(|name| name.parse::<Corrupt>())
    )]
    corrupt: Corrupt,
    /// Scan the files without using the index cache
    #[arg(long)]
    no_cache: bool,
}

impl FilesArgs {
    /// Finds the files, in the bytewise order of their paths.
    pub fn discover(&self) -> Result<Found, LoadError> {
        let mut found = discover(&self.files, &mut |_| true)?;
        found.paths.sort();
        Ok(found)
    }
}

impl DatasetArgs {
    /// Finds the files without scanning them.
    pub fn discover(&self) -> Result<Found, LoadError> {
        self.files.discover()
    }

    /// Finds and indexes the files.
    pub fn open(&self) -> Result<Dataset, LoadError> {
        let FilesArgs { files, compression } = &self.files;
        let cache = if self.no_cache { CacheChoice::Off } else { CacheChoice::Environment };
        let rules = FileRules { compression: *compression, corrupt: self.corrupt };
        Dataset::open(files, rules, &cache.into(), &mut progress::of_scan())
    }
}
