//! Datasets that a loader opens: one, or each version of each source of a mixture.

use std::sync::Arc;

use shardfeed_pipeline::{RecordSpec, SampleProgram, Schema};
use shardfeed_reader::EncodedSpec;
use shardfeed_source::{
    CacheOptions, Dataset, FileRules, LoadError, OpenSource, ScanProgress, SharedIndex,
};

use crate::mixture;
use crate::options::{LoaderOptions, MixtureSource};

/// A dataset to open.
#[derive(Clone, Debug)]
pub struct DatasetRequest {
    /// Name of the source of a mixture; empty: the loader's only dataset.
    pub source: String,
    /// Name of the dataset in the cluster, instead of files.
    pub dataset: Option<String>,
    /// Files: paths, URLs, globs.
    pub files: Vec<String>,
    /// Rules for reading the files.
    pub rules: FileRules,
    /// Index of the files that hosts share.
    pub index: Option<SharedIndex>,
    /// Makes samples of records; `None`: each record is one.
    pub(crate) program: Option<EncodedProgram>,
}

impl DatasetRequest {
    /// Returns the datasets of a loader.
    ///
    /// # Errors  The filter of a source is invalid.
    pub(crate) fn of(options: &LoaderOptions, schema: &Schema) -> Result<Vec<Self>, LoadError> {
        let Some(mixture) = &options.mixture else {
            return Ok(vec![Self {
                source: String::new(),
                dataset: options.dataset.clone(),
                files: options.files.clone(),
                rules: options.file_rules(),
                index: options.index.clone(),
                program: EncodedProgram::of(schema)?,
            }]);
        };
        let source = |source: &MixtureSource| {
            let MixtureSource { name, dataset, files, index, compression, filter } = source.clone();
            let records = options.records.clone().unwrap_or_default();
            let schema = Schema::new(RecordSpec { filter, ..records })?;
            let program = EncodedProgram::of(&schema)?;
            let rules = FileRules { compression, corrupt: options.corrupt };
            Ok(Self { source: name, dataset, files, rules, index, program })
        };
        mixture.sources.iter().map(source).collect()
    }

    /// Returns the encoded part of the record spec that makes samples of records; empty: each record
    /// is one.
    pub fn program(&self) -> &[u8] {
        self.program.as_ref().map_or(&[], EncodedProgram::encoded)
    }

    /// Finds and indexes its files in this process, and counts their samples.
    ///
    /// # Errors  See [`Dataset::open`] and [`Dataset::with_samples`].
    pub(crate) fn open(
        &self,
        options: &LoaderOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<OpenSource, LoadError> {
        let cache = &CacheOptions { index: self.index.clone(), ..options.cache.clone() };
        let mut dataset = Dataset::open(&self.files, self.rules, cache, progress)?;
        if let Some(program) = &self.program {
            let program = program.program();
            dataset = dataset.with_samples(program, options.corrupt, cache, progress)?;
        }
        let (name, dataset_name) = (self.source.clone(), String::new());
        Ok(OpenSource { name, dataset_name, rules: self.rules, dataset })
    }
}

/// Opens the datasets of a loader in this process, and returns them as one: the only one, or the
/// sources of its mixture.
///
/// # Errors  One is known to a coordinator only; see [`Dataset::open`] and
/// [`Dataset::with_samples`].
pub(crate) fn open_all(
    options: &LoaderOptions,
    requests: &[DatasetRequest],
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<Dataset, LoadError> {
    if let Some(name) = requests.iter().find_map(|request| request.dataset.as_ref()) {
        let message = format!("dataset={name:?} is known to a coordinator only; pass coordinator=");
        return Err(LoadError::Option(message));
    }
    let sources = requests.iter().map(|request| request.open(options, progress));
    let sources = sources.collect::<Result<_, _>>()?;
    mixture::joined(options.mixture.as_ref(), sources)
}

/// Opens the files of a loader in this process without the loader, and counts their samples.
/// - `progress`: called while files are read; returning `false` cancels.
///
/// # Errors  As [`crate::Loader::open`].
pub fn open_dataset(
    options: &LoaderOptions,
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<Dataset, LoadError> {
    let schema = Schema::new(options.records.clone().unwrap_or_default())?;
    open_all(options, &DatasetRequest::of(options, &schema)?, progress)
}

/// A sample program, and its encoding for workers and coordinators.
#[derive(Clone, Debug)]
pub(crate) struct EncodedProgram {
    program: Arc<SampleProgram>,
    encoded: Arc<EncodedSpec>,
}

impl EncodedProgram {
    /// Returns the program of a schema, if it has one.
    ///
    /// # Errors  Its encoding is larger than the limit.
    pub(crate) fn of(schema: &Schema) -> Result<Option<Self>, LoadError> {
        let encoded = EncodedSpec::of_samples(schema)?.map(Arc::new);
        let program = schema.samples().map(Arc::clone);
        Ok(program.zip(encoded).map(|(program, encoded)| Self { program, encoded }))
    }

    pub(crate) fn program(&self) -> &Arc<SampleProgram> {
        &self.program
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        self.encoded.bytes()
    }
}
