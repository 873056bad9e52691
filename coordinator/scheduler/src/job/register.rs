//! Registration and removal of jobs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shardfeed_plan::{ContentDigest, JobIdentity, Records, Segment, differences};

use super::{Job, not_found};
use crate::dataset::{Phase, check_content};
use crate::job::skipped::SampleRuns;
use crate::log::{
    Answer, Command, EventKind, JOBS_MAX, OPERATORS_BYTES_MAX, PRINCIPAL_JOBS_MAX,
    RECORD_SPEC_CHUNKS_MAX, RankRef, Refusal, RegisterJob, Result, check_count, check_length,
    check_name, check_room, check_text,
};
use crate::session::principal_name;
use crate::state::{Moment, State};

impl State {
    pub(crate) fn remove_job(&mut self, name: &str) -> Result<Answer> {
        let job = self.jobs.get(name)?;
        let served = job.usable().flat_map(|generation| generation.leases_of(name)).next();
        if let Some((_, RankRef { generation, rank, .. })) = served {
            return Err(Refusal::Invalid(format!(
                "rank {rank} of generation {generation} of job `{name}` is served; stop its ranks \
                 first"
            )));
        }
        let Some(job) = self.jobs.by_name.remove(name) else {
            return Err(not_found(name));
        };
        for (number, generation) in &job.generations {
            self.jobs.ranks -= generation.ranks.len() as u64;
            self.jobs.removed_below = self.jobs.removed_below.max(number.saturating_add(1));
            for (session, rank) in generation.leases_of(name) {
                self.sessions.drop_lease(session, &rank);
            }
        }
        self.events.tell(EventKind::JobRemoved { job: name.to_owned() });
        Ok(Answer::Done)
    }

    pub(crate) fn register_job(
        &mut self,
        moment: Moment,
        Command { principal, scope, .. }: &Command,
        register: &RegisterJob,
    ) -> Result<Answer> {
        let RegisterJob { name, identity, dataset, mixture, record_spec_chunks } = register;
        check_name("the job's name", name)?;
        check_identity(identity)?;
        let hint = "declare fewer features and operators";
        let chunks = record_spec_chunks.len();
        check_count("chunks of a record spec", chunks, RECORD_SPEC_CHUNKS_MAX, hint)?;
        self.check_dataset(dataset, identity)?;
        if let Some(mixture) = mixture {
            self.check_sources(mixture, (dataset, identity))?;
            self.check_entries(mixture, name, (principal, scope))?;
        }
        if let Some(known) = self.jobs.by_name.get_mut(name) {
            let differences = differences(&known.identity, identity);
            if differences.is_empty() {
                if let Some(mixture) = mixture {
                    known.check_mixes(mixture, (principal, scope))?;
                    known.mix(mixture);
                }
                return Ok(Answer::Done);
            }
            return Err(Refusal::OtherIdentity { name: name.clone(), differences });
        }
        let has_spec = matches!(identity.records, Records::RecordSpec(_));
        if has_spec && (!dataset.is_empty() || mixture.is_some()) && chunks == 0 {
            let reason =
                format!("the record spec of job `{name}` has no chunks; register it again");
            return Err(Refusal::Invalid(reason));
        }
        let held = self.jobs.by_name.len() as u64;
        check_room("jobs", held, JOBS_MAX as u64, "use the names of jobs that exist")?;
        if !scope.is_empty() {
            let principal = principal_name(principal);
            let own = self.jobs.of(principal).count() as u64;
            let (what, hint) = (format!("jobs of {principal}"), "have an operator remove some");
            check_room(&what, own, PRINCIPAL_JOBS_MAX, hint)?;
        }
        let job = Job {
            name: name.clone(),
            identity: identity.clone(),
            dataset: dataset.clone(),
            mixtures: mixture.iter().map(|of| (of.digest(), of.clone())).collect(),
            record_spec_chunks: record_spec_chunks.clone(),
            registered_ms: moment.now_ms,
            registered_by: principal.clone(),
            owner: None,
            continued_by: BTreeSet::new(),
            generations: BTreeMap::new(),
            opened: 0,
            sealed: VecDeque::new(),
            stale_reports: 0,
            runs: VecDeque::new(),
            numbered_from: self.jobs.removed_below,
            held: None,
            skipped: vec![],
            skipped_more: SampleRuns::default(),
        };
        self.jobs.by_name.insert(name.clone(), job);
        let (job, dataset) = (name.clone(), dataset.clone());
        self.events.tell(EventKind::JobRegistered { job, dataset });
        Ok(Answer::Done)
    }

    fn check_dataset(&self, name: &str, identity: &JobIdentity) -> Result<()> {
        if name.is_empty() {
            // In one process no other process needs to find the dataset.
            return Ok(());
        }
        self.check_ready(name, identity.content)
    }

    /// Rejects a dataset that is not ready, or has another content.
    pub(super) fn check_ready(&self, name: &str, content: ContentDigest) -> Result<()> {
        let dataset = self.datasets.get(name)?;
        match &dataset.phase {
            Phase::Ready(ready) => check_content(name, ready, content),
            Phase::Failed { failure, .. } => {
                let reason = format!("dataset `{name}` failed: {}", failure.message);
                Err(Refusal::Invalid(reason))
            }
            phase => {
                let phase = phase.in_words();
                let reason = format!("dataset `{name}` is {phase}; wait until it is ready");
                Err(Refusal::Invalid(reason))
            }
        }
    }
}

fn check_identity(identity: &JobIdentity) -> Result<()> {
    let JobIdentity { shuffle, lanes, records, decoder, .. } = identity;
    if identity.is_dynamic() && *lanes != 1 {
        let reason = format!("lanes={lanes} means nothing with mode=\"dynamic\"; leave it out");
        return Err(Refusal::Invalid(reason));
    }
    if let Records::Operators(line) = records {
        check_length("the list of operators", line, OPERATORS_BYTES_MAX)?;
    }
    check_text("the decoder's id", decoder)?;
    let plan = identity.mode.check_tail(identity.tail).and_then(|()| shuffle.validate());
    let plan = plan.and_then(|()| Segment::start(*lanes, *lanes, 1).map(|_| ()));
    plan.map_err(|error| Refusal::Invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use shardfeed_plan::{Mode, Tail};

    use super::*;
    use crate::Change;
    use crate::fixture::{DATASET, Fixture, JOB, add, digest, identity, register};

    fn with(identity: JobIdentity) -> Change {
        let (name, dataset) = (JOB.to_owned(), DATASET.to_owned());
        let (mixture, record_spec_chunks) = (None, vec![]);
        Change::RegisterJob(RegisterJob { name, identity, dataset, mixture, record_spec_chunks })
    }

    #[test]
    fn the_dataset_is_ready_and_has_that_content() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        fixture.refused(register(Tail::Drop), expect!["there is no dataset `images`"]);
        fixture.done(add());
        fixture.refused(
            register(Tail::Drop),
            expect!["dataset `images` is being listed; wait until it is ready"],
        );
        let fencing = fixture.take(session, 1)[0].fencing;
        fixture.done(crate::fixture::listing(session, fencing, 0));
        fixture.refused(
            register(Tail::Drop),
            expect![[r#"
            dataset `images` failed: no file matches /data/*.tfrecord;
            check the patterns, or add the files first"#]],
        );
        fixture.ready_dataset(session);
        let mut other = identity(Tail::Drop);
        other.content = digest(8);
        fixture.refused(
            with(other),
            expect![[r#"
            dataset `images` exists with other content:
            0707070707070707070707070707070707070707070707070707070707070707;
            use another name"#]],
        );
        fixture.done(register(Tail::Drop));
    }

    #[test]
    fn what_makes_no_order_is_refused() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let mut refused = |change: fn(&mut JobIdentity), says| {
            let mut identity = identity(Tail::Drop);
            change(&mut identity);
            fixture.refused(with(identity), says);
        };
        refused(
            |identity| identity.shuffle.window = 0,
            expect!["`shuffle_window` must be at least 1"],
        );
        refused(|identity| identity.lanes = 0, expect!["`lanes` must be at least 1"]);
        refused(
            |identity| identity.lanes = u64::MAX,
            expect!["`lanes` is 18446744073709551615, but may be at most 1048576"],
        );
        refused(
            |identity| identity.records = Records::Operators("x".repeat(20_000)),
            expect![[r#"
            the list of operators has 20000 bytes; at most 16384 are
            allowed"#]],
        );
    }

    #[test]
    fn a_dynamic_job_with_equal_steps_is_refused() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let dynamic =
            |tail, lanes| with(JobIdentity { mode: Mode::Dynamic, lanes, ..identity(tail) });
        fixture.refused(
            dynamic(Tail::Uneven, 2),
            expect![[r#"lanes=2 means nothing with mode="dynamic"; leave it out"#]],
        );
        fixture.refused(
            dynamic(Tail::Drop, 1),
            expect![[r#"
            mode="dynamic" has tail="uneven" only: with equal steps no
            rank could take another's work; pass tail="uneven", or
            mode="deterministic" for tail="drop""#]],
        );
        fixture.refused(
            dynamic(Tail::Pad, 1),
            expect![[r#"
            mode="dynamic" has tail="uneven" only: with equal steps no
            rank could take another's work; pass tail="uneven", or
            mode="deterministic" for tail="pad""#]],
        );
    }

    #[test]
    fn there_is_a_bound_for_jobs() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let job = |number: usize| {
            let (name, dataset) = (number.to_string(), DATASET.to_owned());
            Change::RegisterJob(RegisterJob {
                name,
                identity: identity(Tail::Drop),
                dataset,
                record_spec_chunks: vec![],
                mixture: None,
            })
        };
        for number in 1..JOBS_MAX {
            let command = fixture.command(job(number));
            fixture.state.apply(fixture.state.applied() + 1, &command).answer.unwrap();
        }
        fixture.refused(job(0), expect!["jobs: at most 10000; use the names of jobs that exist"]);
    }

    #[test]
    fn jobs_of_all_tokens_of_a_principal_count_together() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let register_with = |fixture: &mut Fixture, token: u64, name: &str| {
            let Change::RegisterJob(job) = register(Tail::Drop) else { unreachable!() };
            let change = Change::RegisterJob(RegisterJob { name: name.to_owned(), ..job });
            let (principal, scope) = (format!("trainer:tom (token {token})"), vec!["*".to_owned()]);
            let command = Command { principal, scope, ..fixture.command(change) };
            fixture.state.apply(fixture.state.applied() + 1, &command).answer
        };
        for number in 0..PRINCIPAL_JOBS_MAX {
            register_with(&mut fixture, number % 2, &number.to_string()).unwrap();
        }
        let refusal = register_with(&mut fixture, 2, "more").unwrap_err().to_string();
        assert!(refusal.contains("jobs of trainer:tom: at most 1000"), "{refusal}");
    }

    #[test]
    fn a_dataset_that_no_job_reads_is_removed_and_its_attempts_do_not_come_again() {
        let mut fixture = Fixture::default();
        let session = fixture.join("w");
        let remove = || Change::RemoveDataset { name: DATASET.to_owned() };
        fixture.refused(remove(), expect!["there is no dataset `images`"]);
        fixture.done(add());
        fixture.take(session, 1);
        fixture.done(remove());
        assert_eq!(fixture.state.session(session).unwrap().scans.len(), 0);
        assert!(fixture.state.datasets.with_work.is_empty());
        fixture.ready_dataset(session);
        assert_eq!(fixture.state.dataset(DATASET).unwrap().attempt, 2);
        fixture.done(remove());
        assert_eq!(fixture.state.datasets().count(), 0);
    }
}
