//! Files that a command works on.

use std::error::Error;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use shardfeed_client::{CacheChoice, Dataset, LoaderOptions, open_dataset};
use shardfeed_plan::Corrupt;
use shardfeed_source::{Found, LoadError, discover};
use shardfeed_tfrecord::CompressionChoice;

use crate::progress;
use crate::source::SourceArgs;

/// Files by name.
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// TFRecord files: paths, quoted globs (*, ?, [a-z], **), or @LIST, a text file with one per
    /// line
    #[arg(required = true, value_name = "FILES")]
    files: Vec<String>,
    /// Compression of the files
    #[arg(long, default_value = "auto", value_name = "SCHEME")]
    #[arg(value_parser = one_of::<CompressionChoice>(SCHEMES))]
    pub(crate) compression: CompressionChoice,
}

/// Files that are indexed.
#[derive(Debug, Args)]
pub struct DatasetArgs {
    #[command(flatten)]
    files: FilesArgs,
    /// Policy for damaged files, as in the run: fail; leave out records from a broken framing on;
    /// leave out every damaged file
    #[arg(long, default_value = "error", value_name = "POLICY")]
    #[arg(value_parser = one_of::<Corrupt>(POLICIES))]
    corrupt: Corrupt,
    /// Scan the files without using the index cache
    #[arg(long)]
    no_cache: bool,
}

/// Compressions of files, as options have them.
pub const SCHEMES: &[&str] = &["auto", "none", "gzip", "zlib"];

pub const POLICIES: &[&str] = &["error", "skip-record", "skip-file"];

/// Returns the parser of a value that has one of these names.
pub fn one_of<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

/// Files that are indexed, or a source that a Python module declares.
#[derive(Debug, Args)]
#[command(mut_arg("files", |files| files.required(false).required_unless_present("source")))]
pub struct SampledArgs {
    #[command(flatten)]
    files: DatasetArgs,
    #[command(flatten)]
    source: SourceArgs,
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

    fn options(&self) -> LoaderOptions {
        let FilesArgs { files, compression } = &self.files;
        self.with_policy(LoaderOptions {
            files: files.clone(),
            compression: *compression,
            ..LoaderOptions::default()
        })
    }

    /// Returns the options of a loader with the policy for damaged files and the cache.
    fn with_policy(&self, options: LoaderOptions) -> LoaderOptions {
        let cache = if self.no_cache { CacheChoice::Off } else { CacheChoice::Environment };
        LoaderOptions { corrupt: self.corrupt, cache: cache.into(), ..options }
    }
}

impl SampledArgs {
    pub fn discover(&self) -> Result<Found, LoadError> {
        self.files.discover()
    }

    /// Finds and indexes the files, and counts the samples of a source.
    pub fn open(&self) -> anyhow::Result<Sampled> {
        let source = self.source.spec()?;
        let options = match &source {
            Some(source) => self.files.with_policy(source.options.clone()),
            None => self.files.options(),
        };
        let dataset = open_dataset(&options, &mut progress::of_scan())?;
        if let Some(source) = source.filter(|_| options.corrupt == Corrupt::Error) {
            source.check_records(&dataset)?;
        }
        Ok(Sampled { dataset, options })
    }
}

/// A dataset with the samples of a source.
#[derive(Debug)]
pub struct Sampled {
    pub dataset: Dataset,
    pub options: LoaderOptions,
}
