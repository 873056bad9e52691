//! The sources of a mixture, opened in this process.

use shardfeed_pipeline::{RecordSpec, Schema};
use shardfeed_plan::{LoaderState, Mixture, PlanError, Stage, StateError};
use shardfeed_source::{Dataset, FileRules, LoadError, Mixed, ScanProgress, SourceVersion};

use crate::options::{LoaderOptions, MixtureOptions, MixtureSource};

/// Opens every source, and returns them as one dataset.
///
/// # Errors  A source cannot be opened; the mixture is invalid.
pub(crate) fn open(
    options: &LoaderOptions,
    mixture: &MixtureOptions,
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<Dataset, LoadError> {
    let mut sources = Vec::with_capacity(mixture.sources.len());
    for source in &mixture.sources {
        let MixtureSource { name, files, compression, filter } = source;
        let rules = FileRules { compression: *compression, corrupt: options.corrupt };
        let mut dataset = Dataset::open(files, rules, &options.cache, progress)?;
        let records = options.records.clone().unwrap_or_default();
        let schema = Schema::new(RecordSpec { filter: filter.clone(), ..records })?;
        if let Some(program) = schema.samples() {
            let (corrupt, cache) = (options.corrupt, &options.cache);
            dataset = dataset.with_samples(program, corrupt, cache, progress)?;
        }
        sources.push((name.clone(), dataset));
    }
    Dataset::joined(sources, |versions| Ok(mixed(mixture, versions)?))
}

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

/// Adds the digest of the stages begun at a state's position.
pub(crate) fn with_stages(state: LoaderState, mixed: Option<&Mixed>) -> LoaderState {
    LoaderState { stages: mixed.map(|mixed| stages_at(&state, mixed)), ..state }
}

/// Rejects states of a mixture with other stages.
pub(crate) fn check_stages(
    states: &[LoaderState],
    mixed: Option<&Mixed>,
) -> Result<(), StateError> {
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
