//! Mixtures of jobs: the datasets that a job's generations read by weight.

use shardfeed_plan::{DatasetVersion, Digest, JobIdentity, JobMixture, mixture_digest};

use super::Job;
use crate::job::generation::Generation;
use crate::job::skipped::SampleRuns;
use crate::log::{
    MIXTURE_ENTRIES_MAX, MIXTURES_KEPT, PRINCIPAL_MIXTURE_ENTRIES_MAX, RankCursor, Refusal, Result,
    StartRank, check_name, check_room,
};
use crate::session::principal_name;
use crate::state::State;

impl State {
    /// Rejects a mixture of datasets that are not ready or have another content.
    pub(super) fn check_sources(
        &self,
        mixture: &JobMixture,
        (dataset, identity): (&str, &JobIdentity),
    ) -> Result<()> {
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

    /// Rejects a mixture for which the state has no room.
    pub(super) fn check_entries(
        &self,
        mixture: &JobMixture,
        job: &str,
        (principal, scope): (&str, &[String]),
    ) -> Result<()> {
        let known = self.jobs.by_name.get(job);
        if known.is_some_and(|known| known.mixture(mixture.digest()).is_some()) {
            return Ok(());
        }
        let of =
            |job: &Job| job.mixtures.iter().map(|(_, known)| known.entries() as u64).sum::<u64>();
        let hint = "remove jobs that are no longer needed";
        let new = mixture.entries() as u64;
        let held = self.jobs.by_name.values().map(of).sum::<u64>().saturating_add(new);
        check_room("sources in the mixtures of all jobs", held, MIXTURE_ENTRIES_MAX, hint)?;
        if scope.is_empty() {
            return Ok(());
        }
        let who = principal_name(principal);
        let held = self.jobs.of(who).map(of).sum::<u64>().saturating_add(new);
        let what = format!("sources in the mixtures of the jobs of {who}");
        check_room(&what, held, PRINCIPAL_MIXTURE_ENTRIES_MAX, hint)
    }
}

impl Job {
    pub fn mixture(&self, digest: Digest) -> Option<&JobMixture> {
        self.mixtures.iter().find(|(of, _)| *of == digest).map(|(_, mixture)| mixture)
    }

    /// Returns the mixture of the current generation, or the one registered last.
    pub fn mixture_shown(&self) -> Option<&JobMixture> {
        let current = self.current().and_then(|current| self.mixture(current.mixture?));
        current.or(self.mixtures.last().map(|(_, mixture)| mixture))
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
        let mut versions = self.mixtures.iter().flat_map(|(_, mixture)| &mixture.versions);
        versions.any(|version| version.dataset == dataset)
    }

    /// Rejects a new mixture of a limited principal that did not register the job.
    pub(super) fn check_mixes(
        &self,
        mixture: &JobMixture,
        (principal, scope): (&str, &[String]),
    ) -> Result<()> {
        let (who, registrar) = (principal_name(principal), principal_name(&self.registered_by));
        let is_theirs = registrar.is_empty() || who == registrar || self.continued_by.contains(who);
        if scope.is_empty() || is_theirs || self.mixture(mixture.digest()).is_some() {
            return Ok(());
        }
        Err(Refusal::Denied(format!(
            "job `{}` is of {registrar}; {who} may not change its mixture: give the loader another job=",
            self.name
        )))
    }

    /// Adds a mixture; forgets the oldest one that no generation reads any more.
    pub(super) fn mix(&mut self, mixture: &JobMixture) {
        let digest = mixture.digest();
        if self.mixture(digest).is_some() {
            return;
        }
        self.mixtures.push((digest, mixture.clone()));
        if self.mixtures.len() > MIXTURES_KEPT {
            let is_read = |digest: &Digest| {
                let mut usable = self.generations.values();
                usable.any(|known| known.superseded_by.is_none() && known.mixture == Some(*digest))
            };
            let unread = self.mixtures.iter().position(|(of, _)| !is_read(of));
            self.mixtures.remove(unread.unwrap_or(0));
        }
    }

    /// Forgets the corrupt records when a generation with other sources opens: samples are named by
    /// the shards of all sources, which it numbers otherwise.
    pub(super) fn recount_skipped(&mut self, next: Option<Digest>) {
        if !self.numbers_as_current(next) {
            self.skipped.clear();
            self.skipped_more = SampleRuns::default();
        }
    }

    /// True if a mixture numbers the shards of its sources as that of the current generation.
    pub(super) fn numbers_as_current(&self, mixture: Option<Digest>) -> bool {
        let versions = |digest: Option<Digest>| {
            digest.and_then(|digest| self.mixture(digest)).map(|mixture| &mixture.versions)
        };
        let current = self.current().and_then(|current| current.mixture);
        match (versions(current), versions(mixture)) {
            (Some(current), Some(other)) => {
                let content = |of: &DatasetVersion| (of.name.clone(), of.content);
                current.iter().map(content).eq(other.iter().map(content))
            }
            (_, None) => mixture.is_none(),
            (None, Some(_)) => self.current().is_none(),
        }
    }

    /// Rejects the opening of a generation with a mixture that is not registered.
    pub(super) fn check_mixture(&self, start: &StartRank) -> Result<()> {
        let (rank, job) = (start.rank, &self.name);
        let reason = match start.mixture {
            Some(digest) if self.mixture(digest).is_some() => return Ok(()),
            None if self.mixtures.is_empty() => return Ok(()),
            Some(_) => format!(
                "the mixture of rank {rank} of job `{job}` is no longer kept, as too many others were \
                 registered since; make the loader again"
            ),
            None => format!(
                "job `{job}` has a mixture, and rank {rank} names none; use the same version of \
                 shardfeed for its worker"
            ),
        };
        Err(Refusal::Invalid(reason))
    }
}
