//! Commands about dynamic jobs: claims, revocations, and samples in doubt.

use shardfeed_plan::dynamic::GroupRange;
use shardfeed_scheduler::{
    Answer, Change, Claim, ClaimResult, PoolFacts, RankRevoke, Refusal, Revoke, Speeds,
    WaitForDoubt,
};

use super::args::{Args, Failed, number};
use super::{Output, Script};

/// Group ranges, each as `GROUP:FROM..TO`.
pub(super) fn ranges(ranges: impl IntoIterator<Item = GroupRange>) -> String {
    let text = |range: GroupRange| format!("{}:{}..{}", range.group, range.from, range.to);
    ranges.into_iter().map(text).collect::<Vec<_>>().join(" ")
}

pub(super) fn numbers(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

fn claim_line(rank: u64, taken: &Result<ClaimResult, Refusal>) -> String {
    let taken = match taken {
        Ok(taken) => taken,
        Err(refusal) => return format!("rank {rank} is refused: {refusal}"),
    };
    let mut facts = vec![];
    facts.extend(taken.truncated.map(|position| format!("its list is cut at {position}")));
    if !taken.pieces.is_empty() {
        facts.push(format!("gets {}", ranges(taken.pieces.iter().copied())));
    }
    if !taken.closed.is_empty() {
        facts.push(format!("runs end at {}", numbers(&taken.closed)));
    }
    facts.push(format!("horizon {}", taken.horizon));
    facts.push(format!("version {}", taken.version));
    facts.extend(taken.revoke_from.map(|from| format!("asked to give back from {from}")));
    facts.extend(taken.ended.then(|| "the epoch has ended".to_owned()));
    format!("rank {rank}: {}", facts.join(", "))
}

impl Script {
    pub(super) fn dispatch_dynamic(&mut self, name: &str, args: &mut Args) -> Output {
        match name {
            "claim" => self.claim(args, false),
            "give-back" => self.claim(args, true),
            "late-give-back" => self.late_give_back(args),
            "deliver" => self.deliver(args),
            "balance" => self.balance(args),
            "revoke" => self.revoke(args),
            "wait" => self.wait(args),
            "gone" => self.gone(args),
            _ => self.dispatch_operator(name, args),
        }
    }

    /// `claim JOB RANK ... [wants=8] [ahead=4] [epoch=N] [step=N] [started=N]
    /// [fencing=N]`: workers report the progress of ranks, and claim more groups, in one command.
    ///
    /// `give-back` is a claim of no samples that cuts the list where the rank was asked to, or
    /// `from=N`. Positions are those of the worker's copy of the list.
    fn claim(&mut self, args: &mut Args, gives_back: bool) -> Output {
        let job = args.word("a job")?.to_owned();
        let ranks = args.words().iter().map(|rank| number(rank)).collect::<Result<Vec<_>, _>>()?;
        let (wants, ahead) =
            (args.or("wants", if gives_back { 0 } else { 8 })?, args.or("ahead", 4)?);
        let (from, epoch, fencing) = (args.key("from")?, args.key("epoch")?, args.key("fencing")?);
        let (step, started) = (args.key("step")?, args.key("started")?);
        let mut takes = vec![];
        for rank in &ranks {
            let mut claim = self.claim_of(&job, *rank, epoch)?;
            (claim.wants, claim.ahead) = (wants, ahead);
            claim.step = step.unwrap_or(claim.step);
            claim.started = started.unwrap_or(claim.started);
            claim.lease.fencing = fencing.unwrap_or(claim.lease.fencing);
            if gives_back {
                self.cut_copy(&mut claim, from)?;
            }
            takes.push(claim);
        }
        self.send_claims(&ranks, takes)
    }

    /// `late-give-back JOB RANK`: the network delivers the last `give-back` a second time.
    fn late_give_back(&mut self, args: &mut Args) -> Output {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let claim = self.loader(&job, rank)?.last_release.clone();
        let done = self.apply(Change::ClaimGroups { takes: vec![claim.ok_or("nothing was")?] })?;
        // The worker does not see the answer.
        let Answer::Taken(taken) = &done.answer else { return Err("no claims".into()) };
        done.say(claim_line(rank, &taken[0]))
    }

    fn send_claims(&mut self, ranks: &[u64], takes: Vec<Claim>) -> Output {
        let job = takes.first().map(|claim| claim.lease.job.clone()).unwrap_or_default();
        let done = self.apply(Change::ClaimGroups { takes })?;
        let Answer::Taken(all) = &done.answer else { return Err("no claims".into()) };
        if let [Err(refusal)] = all.as_slice() {
            return Err(refusal.to_string().into());
        }
        let mut lines = vec![];
        for (rank, taken) in ranks.iter().zip(all) {
            lines.push(claim_line(*rank, taken));
            if let (Ok(taken), Some(loader)) = (taken, self.loaders.get_mut(&(job.clone(), *rank)))
            {
                loader.learn(taken);
            }
        }
        done.say(lines.join("\n"))
    }

    /// The claim of a rank's worker, as it follows from its copy of the list.
    fn claim_of(&mut self, job: &str, rank: u64, epoch: Option<u64>) -> Result<Claim, Failed> {
        let sizes = self.groups.get(job).cloned().unwrap_or_default();
        let loader = self.loaders.get_mut(&(job.to_owned(), rank));
        let loader = loader.ok_or_else(|| format!("rank {rank} was never started"))?;
        if let Some(epoch) = epoch.filter(|epoch| *epoch != loader.epoch) {
            loader.go_to(epoch, 0);
        }
        let (epoch, generation) = (loader.epoch, loader.lease.generation);
        let known = self.state.job(job).and_then(|job| job.generations.get(&generation));
        let at = known.and_then(|known| known.pools.get(&epoch)).map_or(0, |pool| pool.next);
        let next = sizes.iter().skip(usize::try_from(at)?).copied().collect();
        let (groups, samples) = (sizes.len() as u64, sizes.iter().sum());
        Ok(Claim {
            lease: loader.lease.clone(),
            epoch,
            step: loader.step,
            started: loader.copy.started,
            known: loader.copy.list.pieces().len() as u64,
            wants: 0,
            ahead: 0,
            released: None,
            version: Some(loader.copy.version),
            facts: PoolFacts { groups, samples, at, next },
        })
    }

    /// Cuts the worker's copy of a list, and makes the claim give the rest back.
    fn cut_copy(&mut self, claim: &mut Claim, from: Option<u64>) -> Result<(), Failed> {
        let key = (claim.lease.job.clone(), claim.lease.rank);
        let loader = self.loaders.get_mut(&key).ok_or("never started")?;
        let copy = &mut loader.copy;
        let from = from.or(copy.revoke_from).ok_or("the rank was not asked to give back")?;
        let from = from.max(copy.started);
        copy.list.truncate_to(from);
        claim.released = Some(from);
        claim.known = copy.list.pieces().len() as u64;
        loader.last_release = Some(claim.clone());
        Ok(())
    }

    /// `deliver JOB RANK [batches=1]`: the worker gives batches to the trainer, which consumes
    /// them. The coordinator learns of it with the next claim or report.
    fn deliver(&mut self, args: &mut Args) -> Output {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let batches = args.or("batches", 1)?;
        let loader = self.loaders.get_mut(&(job, rank)).ok_or("the rank was never started")?;
        let mut lines = vec![];
        for _ in 0..batches {
            let (step, horizon) = (loader.step, loader.copy.horizon);
            let Some(positions) = loader.copy.list.positions_of(step) else {
                lines.push(format!("rank {rank} step {step}: the worker has no whole batch"));
                break;
            };
            if positions.end > horizon {
                lines.push(format!("rank {rank} step {step}: waits, the horizon is {horizon}"));
                break;
            }
            loader.copy.started = loader.copy.started.max(positions.end);
            loader.step += 1;
            let samples = ranges(loader.copy.list.pieces_in(positions));
            lines.push(format!("rank {rank} step {step}: {samples}"));
        }
        Ok(lines.join("\n"))
    }

    /// `balance JOB [speeds="N N"]`: the revocations that the leader proposes now; samples per
    /// second of each rank.
    fn balance(&mut self, args: &mut Args) -> Output {
        let job = args.word("a job")?;
        let speeds: Speeds = (0..).zip(args.numbers("speeds")?).collect();
        let mut lines = vec![];
        for revoke in self.state.balance(job, &speeds) {
            for RankRevoke { rank, from } in &revoke.revokes {
                lines.push(format!("rank {rank} is to give back its list from {from}"));
            }
            self.apply(Change::Revoke(revoke))?;
        }
        let nothing = || "no rank is to give back anything".to_owned();
        Ok(if lines.is_empty() { nothing() } else { lines.join("\n") })
    }

    /// `revoke JOB RANK from=N [epoch=0]`
    fn revoke(&mut self, args: &mut Args) -> Output {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let (from, epoch) = (args.or("from", 0)?, args.or("epoch", 0)?);
        let generation = self.loader(&job, rank)?.lease.generation;
        let revokes = vec![RankRevoke { rank, from }];
        self.apply(Change::Revoke(Revoke { job, generation, epoch, revokes }))?
            .say(format!("rank {rank} is to give back its list from {from}"))
    }

    /// `wait JOB MS`: the leader saw each epoch that waits only for samples in doubt wait so long.
    fn wait(&mut self, args: &mut Args) -> Output {
        let job = args.word("a job")?;
        let ms = number(args.word("a number of ms")?)?;
        let waiting = self.state.waiting_for_doubt();
        let Some((job, generation, epochs)) = waiting.into_iter().find(|one| one.0 == job) else {
            return Ok("no epoch waits only for samples in doubt".to_owned());
        };
        let text = numbers(&epochs);
        let wait = WaitForDoubt { job, generation, epochs, ms };
        self.apply(Change::WaitForDoubt(wait))?.say(format!("epoch {text} waited {ms} ms more"))
    }

    /// `gone JOB RANK`: an operator declares that the rank's trainer does not come back.
    fn gone(&mut self, args: &mut Args) -> Output {
        let (job, rank) = (args.word("a job")?.to_owned(), number(args.word("a rank")?)?);
        let done = self.apply(Change::DeclareGone { job, rank })?;
        let Answer::Decided { samples } = done.answer else { return Err("no decision".into()) };
        done.say(format!("rank {rank} is gone; {samples} samples were in doubt"))
    }
}
