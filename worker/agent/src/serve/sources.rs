//! Datasets that a trainer opened, and the one that its job reads: the only one, or a mixture.

use std::sync::{Arc, Weak};

use shardfeed_pipeline::{Schema, ShardSchemas};
use shardfeed_plan::{DatasetVersion, Digest, JobMixture, SOURCES_MAX};
use shardfeed_proto::common::v1 as wire;
use shardfeed_proto::trainer::v1::SideTable;
use shardfeed_proto::{ErrorKind, WireError, mixture_from};
use shardfeed_reader::{EncodedSpec, SourceSchemas};
use shardfeed_source::{Dataset, LoadError, Lock, Mixed, OpenSource, SourceVersion};

use crate::catalog::Opened;

/// Maximum number of mixtures in use that are remembered, to be shared by trainers.
const MIXTURES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct OpenedSource {
    /// Name of the source of a mixture; empty: the trainer's only dataset.
    pub(super) source: String,
    pub(super) opened: Opened,
    pub(super) program: Vec<u8>,
    /// Encoded record spec of its columns; empty: it has that of the job.
    pub(super) record_spec: Vec<u8>,
}

/// Record spec of a job.
pub(super) struct JobRecords {
    pub(super) schema: Arc<Schema>,
    /// Side tables of all sources, as found by the trainer.
    pub(super) tables: Vec<SideTable>,
}

/// Dataset or mixture that the ranks of a job read.
#[derive(Debug)]
pub(super) struct JobInput {
    pub(super) dataset: Arc<Dataset>,
    /// Name of the dataset; empty with a mixture.
    pub(super) name: String,
    pub(super) mixture: Option<Arc<JobMixture>>,
    pub(super) schemas: ShardSchemas,
}

/// The datasets that a trainer opened, in the order of its requests.
#[derive(Debug, Default)]
pub(super) struct OpenedSources(Vec<OpenedSource>);

impl OpenedSources {
    /// Adds a dataset; one that is no source of a mixture takes the place of all others.
    ///
    /// # Errors  There are too many.
    pub(super) fn push(&mut self, opened: OpenedSource) -> Result<(), LoadError> {
        if opened.source.is_empty() {
            self.0.clear();
        }
        if self.0.len() >= SOURCES_MAX {
            let message =
                format!("a mixture has at most {SOURCES_MAX} versions of sources in a cluster");
            return Err(WireError::new(ErrorKind::Invalid, message).into());
        }
        self.0.push(opened);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what a job reads.
    /// - `records`: record spec of the job.
    /// - `shared`: mixtures of this worker's other trainers.
    ///
    /// # Errors  The trainer registers other datasets than it opened.
    pub(super) fn input(
        &self,
        mixture: Option<wire::JobMixture>,
        records: JobRecords,
        shared: &Mixtures,
    ) -> Result<JobInput, LoadError> {
        let Some(mixture) = mixture else {
            let [only] = &self.0[..] else { return Err(other("datasets")) };
            check_program(only, &records.schema)?;
            let Opened { dataset, name, .. } = only.opened.clone();
            let schemas = records.schema.into();
            return Ok(JobInput { dataset, name, mixture: None, schemas });
        };
        let mixture = mixture_from(mixture).map_err(|error| {
            WireError::new(ErrorKind::Invalid, format!("the trainer's mixture: {error}"))
        })?;
        let mut schemas: Vec<Arc<Schema>> = Vec::with_capacity(self.0.len());
        let mut distinct = SourceSchemas::new(&records.schema)?;
        let mut digests = vec![None; self.0.len()];
        for (at, source) in self.0.iter().enumerate() {
            if source.record_spec.is_empty() {
                check_program(source, &records.schema)?;
                schemas.push(Arc::clone(&records.schema));
                continue;
            }
            let (schema, encoded) = schema_of(&source.record_spec, &records.tables)?;
            check_program(source, &schema)?;
            digests[at] = Some(encoded.source_digest(schema.decoder()));
            schemas.push(distinct.of(schema)?);
        }
        let dataset = shared.join(&mixture, &self.0, &digests)?;
        let versions = dataset.mixed().map(|mixed| &mixed.versions[..]).unwrap_or_default();
        let schemas = versions.iter().map(|version| version.first_shard).zip(schemas).collect();
        let schemas = ShardSchemas::new(schemas)?;
        // With the names of the datasets that this worker opened.
        let mixture = dataset.mixed().map(|mixed| Arc::new(mixed.of_job()));
        Ok(JobInput { dataset, name: String::new(), mixture, schemas })
    }
}

/// Builds a schema from a trainer's declaration.
/// - `tables`: paths of the side tables, as found by the trainer.
pub(super) fn schema_of(
    record_spec: &[u8],
    tables: &[SideTable],
) -> Result<(Schema, EncodedSpec), LoadError> {
    let mut spec = EncodedSpec::decode(record_spec)?;
    for SideTable { digest, path } in tables {
        spec.place_table(digest, path);
    }
    let schema = Schema::new(spec)?;
    let encoded = EncodedSpec::of(&schema)?;
    Ok((schema, encoded))
}

/// Rejects samples that a record spec does not make.
fn check_program(source: &OpenedSource, schema: &Schema) -> Result<(), LoadError> {
    let samples = EncodedSpec::of_samples(schema)?;
    if samples.as_ref().map_or(&[][..], EncodedSpec::bytes) != source.program {
        return Err(other("samples"));
    }
    Ok(())
}

fn other(what: &str) -> LoadError {
    let message = format!("the trainer registers other {what} than it opened");
    WireError::new(ErrorKind::WrongVersion, message).into()
}

/// Mixtures whose ranks this worker serves, joined once for all trainers that opened the same datasets.
#[derive(Debug, Default)]
pub(crate) struct Mixtures(Lock<Vec<JoinedMixture>>);

/// Datasets of a mixture, joined.
#[derive(Debug)]
struct JoinedMixture {
    digest: Digest,
    /// The opened datasets: a file that was replaced makes another one, another user's rights, too.
    sources: Vec<Weak<Dataset>>,
    dataset: Weak<Dataset>,
}

impl JoinedMixture {
    fn find(&self, digest: Digest, sources: &[OpenedSource]) -> Option<Arc<Dataset>> {
        let is_same = |(known, source): (&Weak<Dataset>, &OpenedSource)| {
            known.as_ptr() == Arc::as_ptr(&source.opened.dataset)
        };
        let is_it = self.digest == digest
            && self.sources.len() == sources.len()
            && self.sources.iter().zip(sources).all(is_same);
        self.dataset.upgrade().filter(|_| is_it)
    }
}

impl Mixtures {
    /// Returns the datasets of a mixture as one.
    ///
    /// # Errors  They are not those of the mixture.
    fn join(
        &self,
        mixture: &JobMixture,
        sources: &[OpenedSource],
        record_specs: &[Option<Digest>],
    ) -> Result<Arc<Dataset>, LoadError> {
        let digest = mixture.digest();
        // Held while it is joined: other ranks of the host want the same one.
        let mut known = self.0.lock();
        if let Some(dataset) = known.iter().find_map(|joined| joined.find(digest, sources)) {
            return Ok(dataset);
        }
        let source = |(of, record_spec): (&OpenedSource, &Option<Digest>)| OpenSource {
            name: of.source.clone(),
            dataset_name: of.opened.name.clone(),
            rules: of.opened.rules,
            record_spec: *record_spec,
            dataset: (*of.opened.dataset).clone(),
            missing: of.opened.missing.clone(),
        };
        let opened = sources.iter().zip(record_specs).map(source).collect();
        let dataset = Dataset::joined(opened, |versions| {
            let stages = mixture.versions_of_stages();
            let numbers = mixture.mixture().map_err(shardfeed_plan::PlanError::from)?;
            let is_it = |(version, wanted): (&SourceVersion, &DatasetVersion)| {
                let SourceVersion { order, content, .. } = version;
                let DatasetVersion {
                    name, content: of, order_digest, samples, record_spec, ..
                } = wanted;
                let numbers = (order.order_digest(), order.samples(), order.record_spec());
                (order.name(), *content) == (name, *of)
                    && numbers == (*order_digest, *samples, *record_spec)
            };
            if versions.len() != mixture.versions.len()
                || !versions.iter().zip(&mixture.versions).all(is_it)
            {
                return Err(other("sources"));
            }
            Ok(Mixed::new(numbers, versions, &stages))
        })?;
        let dataset = Arc::new(dataset);
        known.retain(|joined| joined.dataset.strong_count() > 0);
        if known.len() >= MIXTURES_MAX {
            known.remove(0);
        }
        let sources = sources.iter().map(|source| Arc::downgrade(&source.opened.dataset)).collect();
        known.push(JoinedMixture { digest, sources, dataset: Arc::downgrade(&dataset) });
        Ok(dataset)
    }
}
