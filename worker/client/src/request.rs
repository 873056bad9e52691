//! Datasets that a loader opens: one, or each version of each source of a mixture.

use std::collections::BTreeSet;
use std::sync::Arc;

use shardfeed_pipeline::{RecordSpec, SampleProgram, Schema, ShardSchemas};
use shardfeed_plan::Digest;
use shardfeed_reader::{EncodedSpec, SourceSchemas};
use shardfeed_source::{
    CacheOptions, Dataset, FileRules, LoadError, Mixed, OpenSource, ScanProgress, SharedIndex,
    keep_dataset, kept_dataset,
};

use crate::mixture;
use crate::options::{LoaderOptions, MixtureSource};

#[derive(Clone, Debug)]
pub struct DatasetRequest {
    /// Name of the source of a mixture; empty: the loader's only dataset.
    pub source: String,
    /// Name of the dataset in the cluster, instead of files.
    pub dataset: Option<String>,
    /// Files: paths, URLs, globs.
    pub files: Vec<String>,
    pub rules: FileRules,
    /// Index of the files that hosts share.
    pub index: Option<SharedIndex>,
    /// True if the last stage of a mixture does not have it: its files may be gone.
    pub(crate) ends: bool,
    /// Makes samples of records; `None`: each record is one.
    pub(crate) program: Option<EncodedProgram>,
    pub(crate) schema: Arc<Schema>,
    /// Record spec of these columns, if it is not that of the job.
    pub(crate) record_spec: Option<Arc<EncodedSpec>>,
}

impl DatasetRequest {
    /// Returns the datasets of a loader.
    /// - `schema`: of `options.records`.
    ///
    /// # Errors  The records of a source are invalid, or make other columns.
    pub(crate) fn of(
        options: &LoaderOptions,
        schema: &Arc<Schema>,
    ) -> Result<Vec<Self>, LoadError> {
        let Some(mixture) = &options.mixture else {
            return Ok(vec![Self {
                source: String::new(),
                dataset: options.dataset.clone(),
                files: options.files.clone(),
                rules: options.file_rules(),
                index: options.index.clone(),
                ends: false,
                program: EncodedProgram::of(schema)?,
                schema: Arc::clone(schema),
                record_spec: None,
            }]);
        };
        let job = EncodedSpec::of(schema)?;
        let mut schemas = SourceSchemas::new(schema)?;
        let last = mixture.stages.last().map_or(&[][..], |stage| &stage.weights);
        let source = |(at, source): (usize, &MixtureSource)| {
            let MixtureSource { name, dataset, files, index, compression, records } =
                source.clone();
            let own = source_schema(records.unwrap_or_default(), schema)?;
            let program = EncodedProgram::of(&own)?;
            let spec = EncodedSpec::of(&own)?;
            let record_spec = (spec.bytes() != job.bytes()).then(|| Arc::new(spec));
            let rules = FileRules { compression, corrupt: options.corrupt };
            let schema = schemas.of(own)?;
            let ends = last.iter().all(|(index, _)| *index != at);
            let source = name;
            Ok(Self { source, dataset, files, rules, index, ends, program, schema, record_spec })
        };
        mixture.sources.iter().enumerate().map(source).collect()
    }

    /// Returns the schemas of a loader's shards.
    /// - `mixed`: the mixture of these sources, if they are mixed.
    ///
    /// # Errors  Sources make different columns.
    pub(crate) fn schemas(
        requests: &[Self],
        mixed: Option<&Mixed>,
    ) -> Result<ShardSchemas, LoadError> {
        let first_shard = |at: usize| mixed.map_or(0, |mixed| mixed.versions[at].first_shard);
        let schemas = requests.iter().enumerate();
        let schemas = schemas.map(|(at, request)| (first_shard(at), Arc::clone(&request.schema)));
        Ok(ShardSchemas::new(schemas.collect())?)
    }

    /// Returns the name of the dataset that it is in a cluster if its files are gone, and the last
    /// stage does not have it.
    ///
    /// # Errors  As [`shardfeed_source::kept_dataset`].
    pub fn kept(&self, options: &LoaderOptions) -> Result<Option<String>, LoadError> {
        if !self.ends || self.dataset.is_some() {
            return Ok(self.dataset.clone().filter(|_| self.ends));
        }
        let cache = CacheOptions { index: self.index.clone(), ..options.cache.clone() };
        kept_dataset(&self.files, (self.rules, self.program()), &cache, &mut || true)
    }

    /// Keeps that name, for starts after its last stage.
    ///
    /// # Errors  As [`shardfeed_source::keep_dataset`].
    pub(crate) fn keep(&self, options: &LoaderOptions, dataset: &str) -> Result<(), LoadError> {
        let cache = CacheOptions { index: self.index.clone(), ..options.cache.clone() };
        keep_dataset(&self.files, (self.rules, self.program()), dataset, &cache)
    }

    /// Digest of its record spec, if it is not that of the job.
    pub(crate) fn record_spec_digest(&self) -> Option<Digest> {
        self.record_spec.as_ref().map(|spec| spec.source_digest(self.schema.decoder()))
    }

    /// Returns the encoded record spec that makes samples; empty: each record is one.
    pub fn program(&self) -> &[u8] {
        self.program.as_ref().map_or(&[], |program| program.encoded.bytes())
    }

    /// Finds and indexes its files in this process, and counts their samples. If the files are gone,
    /// and a later stage has none of them, it has the samples that it had.
    ///
    /// # Errors  See [`Dataset::open`] and [`Dataset::with_samples`].
    pub(crate) fn open(
        &self,
        options: &LoaderOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<OpenSource, LoadError> {
        let cache = &CacheOptions { index: self.index.clone(), ..options.cache.clone() };
        let program = self.program.as_ref().map(|encoded| &encoded.program);
        let opened = Dataset::open(&self.files, self.rules, program, cache, progress);
        let (dataset, missing) = match opened {
            Err(LoadError::NotFound(reason)) if self.ends => {
                match Dataset::kept(&self.files, self.rules, program, cache, progress)? {
                    Some(dataset) => (dataset, Some(reason)),
                    None => return Err(LoadError::NotFound(reason)),
                }
            }
            opened => (opened?, None),
        };
        Ok(self.opened((String::new(), self.rules), dataset, missing))
    }

    /// Returns its dataset as a source of a mixture.
    /// - `dataset_name`, `rules`: of the dataset in a cluster. `missing`: as of [`OpenSource`].
    pub fn opened(
        &self,
        (dataset_name, rules): (String, FileRules),
        dataset: Dataset,
        missing: Option<String>,
    ) -> OpenSource {
        let (name, record_spec) = (self.source.clone(), self.record_spec_digest());
        OpenSource { name, dataset_name, rules, record_spec, dataset, missing }
    }
}

/// Returns the index of a loader in a cluster, the same for all of its sources.
///
/// # Errors  They have different ones; there is no working directory.
pub(crate) fn common_index(requests: &[DatasetRequest]) -> Result<Option<SharedIndex>, LoadError> {
    let mut index: Option<SharedIndex> = None;
    for named in requests.iter().filter_map(|request| request.index.clone()) {
        let named = named.absolute()?;
        if let Some(other) = index.replace(named.clone()).filter(|other| *other != named) {
            let (first, second) = (other.to_string(), named.to_string());
            return Err(LoadError::Option(format!(
                "sources have different indexes, index={first:?} and index={second:?}; in a cluster \
                 all have that of the workers"
            )));
        }
    }
    Ok(index)
}

/// Opens a loader's datasets in this process as one: the only one, or its mixture's sources.
///
/// # Errors  Only a coordinator knows one; see [`Dataset::open`], [`Dataset::with_samples`].
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
    let schema = Arc::new(Schema::new(options.records.clone().unwrap_or_default())?);
    open_all(options, &DatasetRequest::of(options, &schema)?, progress)
}

/// Returns the schema of a mixture's source, with its columns in the order of the job's.
fn source_schema(records: RecordSpec, job: &Schema) -> Result<Schema, LoadError> {
    let schema = Schema::new(records)?;
    let names = |of: &Schema| -> Vec<String> {
        of.columns().iter().map(|(name, _)| name.to_string()).collect()
    };
    let (ours, theirs) = (names(job), names(&schema));
    if ours == theirs || BTreeSet::from_iter(&ours) != BTreeSet::from_iter(&theirs) {
        return Ok(schema);
    }
    Ok(Schema::new(RecordSpec { outputs: Some(ours), ..schema.spec().clone() })?)
}

/// A sample program, and its encoding for workers and coordinators.
#[derive(Clone, Debug)]
pub(crate) struct EncodedProgram {
    pub(crate) program: Arc<SampleProgram>,
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
}
