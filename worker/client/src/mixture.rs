//! Mixtures: their sources as one dataset, and their stages in states.

use std::sync::Arc;

use shardfeed_pipeline::Schema;
use shardfeed_plan::{LoaderState, Mixture, PlanError, Source, Stage, StateError};
use shardfeed_source::{
    CacheOptions, Dataset, LeftOut, LoadError, Mixed, OpenSource, Rights, SampleMap, SampleMaps,
    SourceVersion,
};

use crate::contents::{Contents, ShardRow};
use crate::options::{LoaderOptions, MixtureOptions};
use crate::request::DatasetRequest;

/// Returns a loader's datasets as one: the only one, or the sources of its mixture.
///
/// # Errors  The mixture is invalid.
pub(crate) fn joined(
    mixture: Option<&MixtureOptions>,
    mut sources: Vec<OpenSource>,
) -> Result<Dataset, LoadError> {
    match mixture {
        Some(mixture) => Dataset::joined(sources, |versions| Ok(mixed(mixture, versions)?)),
        None => Ok(sources.pop().expect("a loader without a mixture opens one dataset").dataset),
    }
}

/// Returns a loader's datasets as one: the only one, or the sources of its mixture.
///
/// # Errors  The mixture is invalid.
pub(crate) fn joined_contents(
    mixture: Option<&MixtureOptions>,
    requests: &[DatasetRequest],
    mut parts: Vec<Contents>,
) -> Result<Contents, LoadError> {
    let Some(mixture) = mixture else {
        return Ok(parts.pop().expect("a loader without a mixture opens one dataset"));
    };
    let has_maps = parts.iter().any(|part| part.samples.is_some());
    let (mut shards, mut left_out, mut left_out_total) = (vec![], vec![], 0);
    let (mut maps, mut versions) = (SampleMaps::default(), vec![]);
    let rules = requests.first().map(|request| request.rules).unwrap_or_default();
    for (request, part) in requests.iter().zip(parts) {
        let first_shard = shards.len() as u32;
        let order = Source::new(&request.source, part.counts()).map_err(PlanError::from)?;
        let order = order.with_record_spec(request.record_spec_digest());
        if has_maps {
            // Only a worker, which has the files, needs their bytes.
            let all = |shard: &ShardRow| SampleMap::of_all(shard.records, u64::MAX).into();
            maps.extend(match part.samples {
                Some(samples) => Arc::unwrap_or_clone(samples),
                None => SampleMaps::new(part.shards.iter().map(all).collect(), vec![], 0),
            });
        }
        let shifted = |left: LeftOut| LeftOut { shard: left.shard + first_shard, ..left };
        left_out.extend(part.left_out.into_iter().map(shifted));
        left_out_total += part.left_out_total;
        shards.extend(part.shards);
        versions.push(SourceVersion {
            order: Arc::new(order),
            root: part.root.into(),
            rights: Rights::Own,
            rules: part.rules,
            first_shard,
            dataset: part.name,
            content: part.digest,
            files: None,
            missing: part.missing,
        });
    }
    let mixed = mixed(mixture, versions)?;
    Ok(Contents {
        name: String::new(),
        root: String::new(),
        rules,
        digest: mixed.of_job().digest(),
        shards,
        left_out,
        left_out_total,
        samples: has_maps.then(|| Arc::new(maps)),
        mixed: Some(Arc::new(mixed)),
        missing: None,
    })
}

/// Returns the mixture of these versions of its sources.
///
/// # Errors  It is invalid.
fn mixed(mixture: &MixtureOptions, versions: Vec<SourceVersion>) -> Result<Mixed, PlanError> {
    let mut stages = Vec::with_capacity(mixture.stages.len());
    let mut indexes = Vec::with_capacity(mixture.stages.len());
    for stage in &mixture.stages {
        let weights = stage.weights.iter();
        let sources: Vec<_> =
            weights.map(|(index, weight)| (&*versions[*index].order, weight.as_str())).collect();
        stages.push(Stage::new(stage.first_epoch, stage.length, &sources)?);
        indexes.push(stage.weights.iter().map(|(index, _)| *index).collect());
    }
    Ok(Mixed::new(Mixture::new(stages)?, versions, &indexes))
}

/// Returns the first epoch from which on all sources have their files, and the reason why one has none
/// before; `None`: all have them.
pub(crate) fn missing(mixed: &Mixed) -> Option<(u64, String)> {
    let (from, version) = mixed.complete_from()?;
    let reason = version.missing.as_deref().unwrap_or_default();
    Some((from, format!("source `{}` of the mixture: {reason}", version.order.name())))
}

/// Keeps the files of a mixture's sources, so that starts after a stage need none of them.
///
/// # Errors  As [`shardfeed_source::keep_files`].
pub(crate) fn keep_files(
    options: &LoaderOptions,
    schema: &Arc<Schema>,
    contents: &Contents,
) -> Result<(), LoadError> {
    let (Some(mixture), Some(mixed)) = (&options.mixture, &contents.mixed) else {
        return Ok(());
    };
    if options.cluster.is_some() {
        let has_files = |(of, version): &(&DatasetRequest, &SourceVersion)| {
            of.dataset.is_none() && version.missing.is_none()
        };
        let requests = DatasetRequest::of(options, schema)?;
        let mut sources = requests.iter().zip(&mixed.versions).filter(has_files);
        return sources.try_for_each(|(of, version)| of.keep(options, &version.dataset));
    }
    let sources = mixture.sources.iter().zip(&mixed.versions);
    for (source, version) in sources.filter(|(_, version)| version.missing.is_none()) {
        let Some(digest) = version.files else { continue };
        let shards = version.shards();
        let shards = &contents.shards[shards.start as usize..shards.end as usize];
        let paths = shards.iter().map(|shard| shard.path.clone()).collect();
        let cache = CacheOptions { index: source.index.clone(), ..options.cache.clone() };
        shardfeed_source::keep_files(&source.files, (&version.root, paths, digest), &cache)?;
    }
    Ok(())
}

/// Adds the digest of the stages begun at a state's position.
pub(crate) fn with_stages(state: LoaderState, mixed: Option<&Mixed>) -> LoaderState {
    LoaderState { stages: mixed.map(|mixed| stages_at(&state, mixed)), ..state }
}

/// Rejects states of a mixture with other stages.
///
/// # Errors  `OtherStages`.
pub fn check_stages(states: &[LoaderState], mixed: Option<&Mixed>) -> Result<(), StateError> {
    let Some(mixed) = mixed else {
        return Ok(());
    };
    states.iter().try_for_each(|state| {
        let right = stages_at(state, mixed);
        if state.stages.as_ref() == Some(&right) {
            return Ok(());
        }
        let left = state.stages.clone().unwrap_or_else(|| "none".to_owned());
        Err(StateError::OtherStages { epoch: state.epoch, left, right })
    })
}

fn stages_at(state: &LoaderState, mixed: &Mixed) -> String {
    let mixture = &mixed.mixture;
    mixture.stages_digest(mixture.begun(state.epoch, state.step()))
}
