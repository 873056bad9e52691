//! Commands about jobs and their ranks.

use shardfeed_plan::{
    DECODER_NONE, DatasetStage, DatasetVersion, Digest, Intent, JobIdentity, JobMixture, LeftOut,
    Mode, ORDER_VERSION, Records, Sample, Segment, Shuffle, Steps, Tail, mixture_digest,
};
use shardfeed_scheduler::{
    Answer, Change, CursorReport, DoubtPolicy, InDoubt, LeaseRef, PeerProcess, RankCursor, Refusal,
    RegisterJob, ReportSkipped, SkippedRecord, StartRank, Started,
};

use super::args::{Args, Failed, number};
use super::dataset::digest;
use super::loader::{ListCopy, Loader};
use super::{Output, Script};

impl Script {
    pub(super) fn dispatch_job(&mut self, name: &str, args: &mut Args) -> Output {
        match name {
            "job" => self.register(args),
            "remove-job" => self.remove_job(args),
            "start" => self.start(args),
            "reconnect" => self.reconnect(args),
            "move" => self.move_on(args),
            "report" => self.report(args),
            "end" => self.end(args),
            "lease" => self.lease(args),
            "report-skipped" => self.report_skipped(args),
            _ => self.dispatch_dynamic(name, args),
        }
    }

    /// `job NAME [dataset=NAME] [tail=drop] [lanes=2] [seed=1] [content=7] [shuffle=true]
    /// [window=10]`, or a dynamic job: `job NAME groups="10 10 10"`, the samples of each group. Or
    /// a job with a mixture: `job NAME mix="DATASET=COUNT..." [then="EPOCH DATASET=COUNT..."]
    /// [of=7]`, the samples of one mixture epoch from datasets with content `of` and 50 samples.
    fn register(&mut self, args: &mut Args) -> Output {
        let name = args.word("a job")?.to_owned();
        let groups = args.numbers("groups")?;
        let is_dynamic = args.or("mode", Mode::default())? == Mode::Dynamic || !groups.is_empty();
        let mode = if is_dynamic { Mode::Dynamic } else { Mode::Deterministic };
        let mixture = mixture(args)?;
        let content = match mixture {
            Some(_) => mixture_digest(),
            None => digest(args.or("content", 7)?),
        };
        let shuffle = Shuffle {
            digest: content,
            seed: args.or("seed", 1)?,
            enabled: args.or("shuffle", true)?,
            window: args.or("window", 10)?,
            interleave: 4,
            block_length: 1,
        };
        let identity = JobIdentity {
            order: ORDER_VERSION,
            content,
            shuffle,
            lanes: args.or("lanes", if is_dynamic { 1 } else { 2 })?,
            tail: args.or("tail", if is_dynamic { Tail::Uneven } else { Tail::Drop })?,
            mode,
            records: Records::Operators(String::new()),
            decoder: DECODER_NONE.to_owned(),
        };
        let dataset = args.or("dataset", String::new())?;
        let (record_spec_chunks, known) = (vec![], mixture.as_ref().map(JobMixture::digest));
        let register =
            RegisterJob { name: name.clone(), identity, dataset, mixture, record_spec_chunks };
        let done = self.apply(register.change())?;
        let mixtures = self.mixtures.entry(name.clone()).or_default();
        mixtures.extend(known.filter(|known| !mixtures.contains(known)));
        if !groups.is_empty() {
            self.groups.insert(name.clone(), groups);
        }
        done.say(format!("job {name} is registered"))
    }

    /// `remove-job NAME`
    fn remove_job(&mut self, args: &mut Args) -> Output {
        let name = args.word("a job")?.to_owned();
        let done = self.apply(Change::RemoveJob { name: name.clone() })?;
        done.say(format!("job {name} is removed"))
    }

    /// `start JOB RANK WORKER [world=2] [run=r1|none] [trainer=ID] [limit=N] [in_doubt=redeliver]
    /// [grace=MS] [uid=N] [state=GENERATION] [reshard=true] [mixture=N] [left_out=N] [replaces=STEP]
    /// [POSITION]`: a
    /// process starts its loader, with the N-th mixture of the job, by default the last one, and the
    /// last N steps before the position left out.
    fn start(&mut self, args: &mut Args) -> Output {
        let (job, rank, session) = self.rank_at_worker(args)?;
        let run = args.or("run", "r1".to_owned())?;
        let default = format!("{run}-{rank}");
        let in_doubt = match args.or("in_doubt", "redeliver".to_owned())?.as_str() {
            "drop" => InDoubt::Drop,
            _ => InDoubt::Redeliver,
        };
        let (epoch, segments) = self.position(&job, args)?;
        let state_generation = args.key("state")?;
        let step: u64 = segments.iter().map(|segment| segment.steps.most()).sum();
        let left_out: Option<u64> = args.key("left_out")?;
        let left_out = left_out.map_or(vec![], |steps| vec![(step.saturating_sub(steps), step)]);
        let left_out = LeftOut::new(left_out);
        let peer = args.key("uid")?.map(|uid| PeerProcess { uid, gid: uid, pid: 1 });
        let start = StartRank {
            run: Some(run).filter(|run| run != "none"),
            rank,
            world_size: args.or("world", 2)?,
            limit: args.key("limit")?,
            session,
            trainer: args.or("trainer", default)?,
            intent: Intent::Start {
                state_generation,
                epoch,
                segments,
                is_reshard: args.or("reshard", false)?,
            },
            left: None,
            doubt: DoubtPolicy { in_doubt, grace_ms: args.or("grace", 60_000)? },
            mixture: self.mixture_of(&job, args)?,
            left_out,
            peer,
            replaces: self.replaced(&job, rank, args)?,
            job,
        };
        self.send_start(start)
    }

    /// `replaces=STEP`: the loader that has the rank, on the same worker, ends at that step.
    fn replaced(
        &self,
        job: &str,
        rank: u64,
        args: &mut Args,
    ) -> Result<Option<CursorReport>, Failed> {
        let Some(step) = args.key("replaces")? else { return Ok(None) };
        let loader = self.loader(job, rank)?;
        Ok(Some(CursorReport { lease: loader.lease.clone(), epoch: loader.epoch, step }))
    }

    fn mixture_of(&self, job: &str, args: &mut Args) -> Result<Option<Digest>, Failed> {
        let known = self.mixtures.get(job).map_or(&[][..], Vec::as_slice);
        let number: usize = args.or("mixture", known.len())?;
        Ok(number.checked_sub(1).and_then(|index| known.get(index)).copied())
    }

    /// `reconnect JOB RANK WORKER [generation=N] [epoch=N] [step=N] [left=STEP] [trainer=ID]`: the
    /// same loader continues, through this or another worker.
    fn reconnect(&mut self, args: &mut Args) -> Output {
        let (job, rank, session) = self.rank_at_worker(args)?;
        let loader = self.loader(&job, rank)?;
        let intent = Intent::Reconnect {
            generation: args.or("generation", loader.lease.generation)?,
            epoch: args.or("epoch", loader.epoch)?,
            step: args.or("step", loader.step)?,
        };
        let left = args.key("left")?.map(|step| RankCursor { epoch: loader.epoch, step });
        let trainer = args.or("trainer", loader.start.trainer.clone())?;
        let start = StartRank { session, trainer, intent, left, ..loader.start.clone() };
        self.send_start(start)
    }

    /// `move JOB RANK WORKER [left=STEP] [POSITION]`: the same loader continues elsewhere
    /// (`set_epoch`), in another generation.
    fn move_on(&mut self, args: &mut Args) -> Output {
        let (job, rank, session) = self.rank_at_worker(args)?;
        let (epoch, segments) = self.position(&job, args)?;
        let loader = self.loader(&job, rank)?;
        let from = args.or("from", loader.lease.generation)?;
        let left = args.key("left")?.map(|step| RankCursor { epoch: loader.epoch, step });
        let intent = Intent::Move { from, epoch, segments };
        let start = StartRank { session, intent, left, ..loader.start.clone() };
        self.send_start(start)
    }

    /// Sends a start, and keeps the lease and the position as the worker does.
    fn send_start(&mut self, start: StartRank) -> Output {
        let (job, rank) = (start.job.clone(), start.rank);
        let done = self.apply(Change::StartRank(start.clone()))?;
        let Answer::Started(started) = &done.answer else { return Err("no start".into()) };
        let Started { generation, fencing, run, epoch, segments } = started.clone();
        let lease = LeaseRef { job: job.clone(), generation, rank, fencing };
        let steps: u64 = segments.iter().map(|segment| segment.steps.most()).sum();
        let cursor = self.state.rank(&job, generation, rank).map(|rank| rank.cursor);
        let (epoch, step) = cursor.map_or((epoch, steps), |cursor| (cursor.epoch, cursor.step));
        let (key, copy) = ((job, rank), ListCopy::default());
        let last_release = self.loaders.remove(&key).and_then(|old| old.last_release);
        self.loaders.insert(key, Loader { start, lease, epoch, step, copy, last_release });
        let mut line = format!(
            "rank {rank} has lease {fencing} in generation {generation} (run {run}), \
             at epoch {epoch} step {step}"
        );
        if segments.len() > 1 {
            line += &format!("\n  segments {}", serde_json::to_string(&segments)?);
        }
        done.say(line)
    }

    /// Epoch and segments of a POSITION: `[epoch=0] [step=0] [lanes=N] [batch=8]`, or
    /// `[epoch=0] segments=JSON` as in a loader state: lanes, global batch and steps of each.
    fn position(&self, job: &str, args: &mut Args) -> Result<(u64, Vec<Segment>), Failed> {
        let epoch = args.or("epoch", 0)?;
        let is_dynamic = self.state.job(job).is_some_and(|job| job.identity.is_dynamic());
        let lanes = args.or("lanes", if is_dynamic { 1 } else { 2 })?;
        let (global_batch, steps) = (args.or("batch", 8)?, Steps::All(args.or("step", 0)?));
        let segments: Option<String> = args.key("segments")?;
        Ok(match segments {
            Some(json) => (epoch, serde_json::from_str(&json)?),
            None => (epoch, vec![Segment { lanes, global_batch, steps }]),
        })
    }

    /// `report JOB RANK [epoch=N] [step=N] [fencing=N]`: a worker reports a rank's progress.
    fn report(&mut self, args: &mut Args) -> Output {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let loader = self.loader(&job, rank)?;
        let (epoch, step) = (args.or("epoch", loader.epoch)?, args.or("step", loader.step)?);
        let fencing = args.or("fencing", loader.lease.fencing)?;
        let lease = LeaseRef { fencing, ..loader.lease.clone() };
        let generation = lease.generation;
        let ignored = |script: &Self| script.state.job(&job).map(|job| job.stale_reports);
        let before = ignored(self);
        let cursors = vec![CursorReport { lease, epoch, step }];
        let done = self.apply(Change::Report { cursors })?;
        let at = self.state.rank(&job, generation, rank).map(|rank| rank.cursor);
        let at =
            at.map_or("unknown".to_owned(), |at| format!("epoch {} step {}", at.epoch, at.step));
        if ignored(self) != before {
            return done.say(format!("rank {rank}: the report was ignored; its cursor is {at}"));
        }
        if let Some(loader) = self.loaders.get_mut(&(job, rank)) {
            loader.go_to(epoch, step);
        }
        done.say(format!("rank {rank}: its cursor is {at}"))
    }

    /// `end JOB RANK [gone=true] [step=N] [failure=TEXT]`: the trainer has finished, or is gone
    /// without a report of its position.
    fn end(&mut self, args: &mut Args) -> Output {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let loader = self.loader(&job, rank)?;
        let (lease, epoch) = (loader.lease.clone(), loader.epoch);
        let (is_told, failure) = (!args.or("gone", false)?, args.key("failure")?);
        let position = args.key("step")?.map(|step| RankCursor { epoch, step });
        let done = self.apply(Change::EndRank { lease, is_told, failure, position })?;
        done.say(format!("rank {rank} has ended"))
    }

    /// `lease JOB RANK [fencing=N] [generation=N]`: the check of each call of a worker for a rank.
    fn lease(&mut self, args: &mut Args) -> Output {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let known = self.loader(&job, rank)?.lease.clone();
        let fencing = args.or("fencing", known.fencing)?;
        let lease =
            LeaseRef { fencing, generation: args.or("generation", known.generation)?, ..known };
        Ok(match self.state.verdict(&lease) {
            Ok(()) => format!("lease {fencing} is valid"),
            Err(refusal @ Refusal::Fenced { .. }) => format!("fenced: {refusal}"),
            Err(refusal) => format!("superseded: {refusal}"),
        })
    }

    /// `report-skipped JOB WORKER [shard=0] ordinals="N ..." [reason=TEXT] [mixture=N]`: the shards are
    /// those of the N-th mixture of the job, by default the last one.
    fn report_skipped(&mut self, args: &mut Args) -> Output {
        let job = args.word("a job")?.to_owned();
        let worker = args.word("a worker")?.to_owned();
        let session = self.session(&worker, args)?;
        let (shard, ordinals) = (args.or("shard", 0)?, args.numbers("ordinals")?);
        let reason = args.or("reason", "wrong checksum".to_owned())?;
        let record = |ordinal: u64| {
            let (sample, reason) = (Sample { shard, ordinal }, reason.clone());
            SkippedRecord { sample, offset: 100 * ordinal, reason }
        };
        let records = ordinals.into_iter().map(record).collect();
        let mixture = self.mixture_of(&job, args)?;
        let report = ReportSkipped { session, job: job.clone(), records, mixture };
        let done = self.apply(Change::ReportSkipped(report))?;
        let count = self.state.job(&job).map_or(0, |job| job.skipped_count());
        done.say(format!("job {job} skips {count} records"))
    }

    /// Job, rank and session of a command that names a rank and a worker.
    fn rank_at_worker(&self, args: &mut Args) -> Result<(String, u64, u64), Failed> {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let worker = args.word("a worker")?.to_owned();
        Ok((job, rank, self.session(&worker, args)?))
    }

    pub(super) fn loader(&self, job: &str, rank: u64) -> Result<&Loader, Failed> {
        let loader = self.loaders.get(&(job.to_owned(), rank));
        loader.ok_or_else(|| format!("rank {rank} of job {job} was never started").into())
    }
}

/// Reads the mixture of a job: the datasets are its sources.
fn mixture(args: &mut Args) -> Result<Option<JobMixture>, Failed> {
    let Some(first) = args.key::<String>("mix")? else {
        return Ok(None);
    };
    let content = digest(args.or("of", 7)?);
    let mut mixture = JobMixture { versions: vec![], stages: vec![] };
    let then = args.key::<String>("then")?;
    for text in std::iter::once(format!("0 {first}")).chain(then) {
        let mut words = text.split_whitespace();
        let first_epoch = number(words.next().unwrap_or_default())?;
        let mut stage = DatasetStage { first_epoch, counts: vec![] };
        for word in words {
            let (dataset, count) = word.split_once('=').ok_or("a source is DATASET=COUNT")?;
            let known = mixture.versions.iter().position(|known| known.dataset == dataset);
            let version = known.unwrap_or_else(|| {
                let (name, dataset) = (dataset.to_owned(), dataset.to_owned());
                let order_digest = content;
                let (samples, record_spec) = (50, None);
                let version =
                    DatasetVersion { name, dataset, content, order_digest, samples, record_spec };
                mixture.versions.push(version);
                mixture.versions.len() - 1
            });
            stage.counts.push((version as u32, number(count)?));
        }
        mixture.stages.push(stage);
    }
    Ok(Some(mixture))
}
