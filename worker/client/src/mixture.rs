//! Mixtures: their sources as one dataset, and their stages in states.

use shardfeed_plan::{LoaderState, Mixture, PlanError, Stage, StateError};
use shardfeed_source::{Dataset, LoadError, Mixed, OpenSource, SourceVersion};

use crate::options::MixtureOptions;

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

/// Returns the mixture of these versions of its sources.
///
/// # Errors  It is invalid.
pub(crate) fn mixed(
    mixture: &MixtureOptions,
    versions: Vec<SourceVersion>,
) -> Result<Mixed, PlanError> {
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
