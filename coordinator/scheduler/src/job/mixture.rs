//! Mixtures of jobs: the datasets that a job's generations read by weight.

use shardfeed_plan::{Digest, JobIdentity, JobMixture, mixture_digest};

use super::Job;
use crate::job::generation::Generation;
use crate::job::skipped::SampleRuns;
use crate::log::bound::check_name;
use crate::log::command::StartRank;
use crate::log::cursor::RankCursor;
use crate::log::refusal::Refusal;
use crate::session::principal_name;
use crate::state::State;

impl State {
    /// Rejects a mixture of datasets that are not ready or have another content.
    pub(super) fn check_sources(
        &self,
        mixture: &JobMixture,
        (dataset, identity): (&str, &JobIdentity),
    ) -> Result<(), Refusal> {
        let invalid = |reason: &str| Err(Refusal::Invalid(reason.to_owned()));
        if identity.is_dynamic() {
            return invalid(
                "mode=\"dynamic\" grants whole files, and a mixture delivers samples by weight; \
                 use mode=\"deterministic\"",
            );
        }
        if !dataset.is_empty() || identity.content != mixture_digest() {
            return invalid("the identity of a job with a mixture names no dataset");
        }
        mixture.mixture().map_err(|error| Refusal::Invalid(error.to_string()))?;
        for version in &mixture.versions {
            check_name("the name of a dataset", &version.dataset)?;
            self.check_ready(&version.dataset, version.content)?;
        }
        Ok(())
    }
}

impl Job {
    /// Returns the mixture of this digest.
    pub fn mixture(&self, digest: Digest) -> Option<&JobMixture> {
        self.mixtures.iter().find(|known| known.digest() == digest)
    }

    /// Returns the mixture of the current generation, or the one registered last.
    pub fn mixture_shown(&self) -> Option<&JobMixture> {
        let current = self.current().and_then(|current| self.mixture(current.mixture?));
        current.or(self.mixtures.last())
    }

    /// Returns the digest of the stages of a generation's mixture that are begun at a position;
    /// `None`: it reads one dataset.
    pub(super) fn stages_at(&self, generation: &Generation, at: RankCursor) -> Option<String> {
        // It was checked when it was registered.
        let mixture = self.mixture(generation.mixture?)?.mixture().ok()?;
        Some(mixture.stages_digest(mixture.begun(at.epoch, at.step)))
    }

    /// True if a mixture of the job has this dataset.
    pub(crate) fn mixes(&self, dataset: &str) -> bool {
        let mut versions = self.mixtures.iter().flat_map(|mixture| &mixture.versions);
        versions.any(|version| version.dataset == dataset)
    }

    /// Rejects another mixture of a limited principal that did not register the job.
    pub(super) fn check_mixes(
        &self,
        mixture: &JobMixture,
        (principal, scope): (&str, &[String]),
    ) -> Result<(), Refusal> {
        let (who, registrar) = (principal_name(principal), principal_name(&self.registered_by));
        let is_theirs = registrar.is_empty() || who == registrar || self.continued_by.contains(who);
        if scope.is_empty() || is_theirs || self.mixtures.last() == Some(mixture) {
            return Ok(());
        }
        Err(Refusal::Denied(format!(
            "job `{}` is of {registrar}; {who} may not change its mixture: give the loader another job=",
            self.name
        )))
    }

    /// Adds the mixture that was registered last, and forgets those that no generation reads.
    pub(super) fn mix(&mut self, mixture: &JobMixture) {
        if self.mixtures.last() == Some(mixture) {
            return;
        }
        // Samples are named by the shards of all versions, which another list numbers otherwise.
        let is_other = |last: &JobMixture| last.versions != mixture.versions;
        if self.mixtures.last().is_none_or(is_other) {
            self.skipped.clear();
            self.skipped_more = SampleRuns::default();
        }
        let read: Vec<_> =
            self.generations.values().filter_map(|generation| generation.mixture).collect();
        self.mixtures.retain(|known| known != mixture && read.contains(&known.digest()));
        self.mixtures.push(mixture.clone());
    }

    /// Rejects a start with a mixture that is not registered.
    pub(super) fn check_mixture(&self, start: &StartRank) -> Result<(), Refusal> {
        let is_known = match start.mixture {
            Some(digest) => self.mixture(digest).is_some(),
            None => self.mixtures.is_empty(),
        };
        if is_known {
            return Ok(());
        }
        Err(Refusal::Invalid(format!(
            "rank {} of job `{}` does not read the mixture that is registered: another rank \
             registered other sources or stages; give all ranks the same ones, and start them again",
            start.rank, self.name
        )))
    }
}
