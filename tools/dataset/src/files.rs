//! Files that a command works on.

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::{fs, iter};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use shardfeed_client::{CacheChoice, Dataset, LoaderOptions, open_dataset};
use shardfeed_plan::{ChangeStamp, Corrupt};
use shardfeed_source::{Found, LoadError, discover};
use shardfeed_tfrecord::CompressionChoice;

use crate::progress;
use crate::source::SourceArgs;

/// Files by name.
#[derive(Clone, Debug, Args)]
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

/// A file that a command reads.
#[derive(Clone, Debug)]
pub(crate) struct InputFile {
    /// Path relative to the folder of all files; in a mixture `SOURCE:PATH`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// `None`: not examined.
    pub(crate) stamp: Option<ChangeStamp>,
}

impl InputFile {
    pub(crate) fn of(found: &Found) -> Vec<Self> {
        let stamps = found.stamps.iter().cloned().map(Some).chain(iter::repeat_with(|| None));
        let file = |(name, stamp): (&String, _)| Self {
            name: name.clone(),
            path: found.root.join(name),
            stamp,
        };
        found.paths.iter().zip(stamps).map(file).collect()
    }

    /// Size according to the stamp, else to the file system; 0 if that has no such file.
    pub(crate) fn size_bytes(&self) -> u64 {
        let known = self.stamp.as_ref().map(|stamp| stamp.size_bytes);
        known.unwrap_or_else(|| fs::metadata(&self.path).map_or(0, |found| found.len()))
    }
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
    files: FilesArgs,
    /// Policy for damaged files, as in the run: fail; leave out records from a broken framing on;
    /// leave out every damaged file
    #[arg(long, default_value = "error", value_name = "POLICY")]
    #[arg(value_parser = one_of::<Corrupt>(POLICIES))]
    corrupt: Corrupt,
    /// Scan the files without using the index cache
    #[arg(long)]
    no_cache: bool,
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

impl SampledArgs {
    /// Finds the files without scanning them.
    pub fn discover(&self) -> Result<Found, LoadError> {
        self.files.discover()
    }

    /// Finds and indexes the files, and counts the samples of a source.
    pub fn open(&self) -> anyhow::Result<Sampled> {
        let source = self.source.spec()?;
        let named = || {
            let FilesArgs { files, compression } = self.files.clone();
            LoaderOptions { files, compression, ..LoaderOptions::default() }
        };
        let options = source.as_ref().map_or_else(named, |source| source.options.clone());
        let cache = if self.no_cache { CacheChoice::Off } else { CacheChoice::Environment };
        let options = LoaderOptions { corrupt: self.corrupt, cache: cache.into(), ..options };
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
