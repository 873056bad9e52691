//! Mixtures in Python's format.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use shardfeed_embedded::{MixtureOptions, MixtureSource, MixtureStage, SharedIndex};
use shardfeed_plan::{Length, Mixture, MixtureError, Source, Stage};
use shardfeed_tfrecord::CompressionChoice;

use crate::errors::{config_error, load_error};
use crate::loader::option;
use crate::spec::record_spec;

/// Length of a mixture epoch: a number of samples, or the name of a rule.
#[derive(FromPyObject)]
pub(crate) enum LengthOf {
    Samples(u64),
    Rule(String),
}

impl LengthOf {
    fn length(self, py: Python<'_>) -> PyResult<Length> {
        Ok(match self {
            Self::Samples(samples) => Length::Samples(samples),
            Self::Rule(rule) => match rule.as_str() {
                "first_exhausted" => Length::FirstExhausted,
                "all_exhausted" => Length::AllExhausted,
                _ => return Err(config_error(py)(format!("epoch={rule:?} is no rule"))),
            },
        })
    }
}

/// A source: name, dataset of a cluster, files, index, compression, records.
type SourceTuple<'py> =
    (String, Option<String>, Vec<String>, Option<String>, String, Bound<'py, PyDict>);

/// A stage: first epoch, length, and each source (its index or its name) with its weight.
type StageTuple<S> = (u64, LengthOf, Vec<(S, String)>);

pub(crate) fn shared_index(py: Python<'_>, named: Option<String>) -> PyResult<Option<SharedIndex>> {
    let index = named.map(|named| SharedIndex::parse(&named)).transpose();
    index.map_err(|error| load_error(py, &error))
}

pub(crate) fn mixture_options(
    py: Python<'_>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Option<MixtureOptions>> {
    let Some(mixture) = options.get_item("mixture")?.filter(|mixture| !mixture.is_none()) else {
        return Ok(None);
    };
    let sources: Vec<SourceTuple<'_>> = mixture.get_item("sources")?.extract()?;
    let stages: Vec<StageTuple<usize>> = mixture.get_item("stages")?.extract()?;
    let source = |(name, dataset, files, index, compression, records): SourceTuple<'_>| {
        let compression = compression.parse::<CompressionChoice>().map_err(config_error(py))?;
        let index = shared_index(py, index)?;
        let records = record_spec(py, &|name| option(&records, name))?;
        Ok(MixtureSource { name, dataset, files, index, compression, records })
    };
    let stage = |(first_epoch, length, weights): StageTuple<usize>| {
        Ok(MixtureStage { first_epoch, length: length.length(py)?, weights })
    };
    Ok(Some(MixtureOptions {
        sources: sources.into_iter().map(source).collect::<PyResult<_>>()?,
        stages: stages.into_iter().map(stage).collect::<PyResult<_>>()?,
    }))
}

/// Checks names, weights, lengths and first epochs, before any file is read.
#[pyfunction]
pub(crate) fn check_mixture(py: Python<'_>, stages: Vec<StageTuple<String>>) -> PyResult<()> {
    let failed = config_error::<MixtureError>(py);
    let mut made = Vec::with_capacity(stages.len());
    for (first_epoch, length, weights) in stages {
        let length = length.length(py)?;
        // The sizes are not known yet, and have no influence on these checks.
        let sources = weights.iter().map(|(name, _)| Source::new(name, vec![1]));
        let sources = sources.collect::<Result<Vec<_>, _>>().map_err(&failed)?;
        let weights = weights.iter().map(|(_, weight)| weight.as_str());
        let weighted: Vec<_> = sources.iter().zip(weights).collect();
        match Stage::new(first_epoch, length, &weighted) {
            // Depends on the sizes.
            Err(MixtureError::TooLong | MixtureError::Length { .. }) => return Ok(()),
            stage => made.push(stage.map_err(&failed)?),
        }
    }
    Mixture::new(made).map(drop).map_err(failed)
}
