//! Views of the state: one fact per line.

use shardfeed_scheduler::{
    Dataset, Generation, Job, PartState, Phase, Pool, Rank, RankAssignment, Scan,
};

use super::args::{Args, Failed, number};
use super::dataset::phase_name;
use super::dynamic::{numbers, ranges};
use super::{Output, Script};

impl Script {
    /// `show sessions | cordons | tokens`, `show dataset NAME`, `show job NAME`, `show sealed JOB`,
    /// `show state JOB`, `show ranks JOB [generation=N]`, `show pool JOB [generation=N] [epoch=0]`,
    /// `show history JOB RANK`, `show skipped JOB`
    pub(super) fn show(&mut self, args: &mut Args) -> Output {
        let what = args.word("a view")?;
        match what {
            "sessions" => return Ok(lines(&self.sessions_view(), "no session is live")),
            "cordons" => {
                let cordons = self.state.cordons();
                let cordons = cordons.map(|(worker, state)| format!("worker {worker} is {state}"));
                return Ok(lines(&cordons.collect::<Vec<_>>(), "no worker is cordoned"));
            }
            "tokens" => return Ok(lines(&self.tokens_view(), "there is no access token")),
            "dataset" => return self.dataset_view(args.word("a dataset")?),
            _ => {}
        }
        let name = args.word("a job")?;
        let job = self.state.job(name).ok_or_else(|| format!("there is no job {name}"))?;
        match what {
            "job" => Ok(job_view(job)),
            "sealed" => Ok(sealed_view(job)),
            "skipped" => Ok(skipped_view(job)),
            "state" => self.state_view(name),
            "ranks" => Ok(ranks_view(generation_of(job, args)?)),
            "history" => history_view(generation_of(job, args)?, number(args.word("a rank")?)?),
            "pool" => {
                let (generation, epoch) = (generation_of(job, args)?, args.or("epoch", 0)?);
                let pool = generation.pools.get(&epoch);
                Ok(pool.map_or("no list is kept".to_owned(), pool_view))
            }
            other => Err(format!("there is no view {other}").into()),
        }
    }

    fn sessions_view(&self) -> Vec<String> {
        let sessions = self.state.sessions().map(|session| {
            let (leases, scans) = (session.leases.len(), session.scans.len());
            let worker = &session.join.worker;
            format!("session {}: worker {worker}, {leases} leases, {scans} scans", session.id)
        });
        sessions.collect()
    }

    fn tokens_view(&self) -> Vec<String> {
        let tokens = self.state.access_tokens().map(|token| {
            let use_of = match token.check(self.now_ms) {
                Ok(()) => "is usable".to_owned(),
                Err(why) => why.to_string(),
            };
            format!("access token {} of {} ({}) {use_of}", token.id, token.name, token.role)
        });
        tokens.collect()
    }

    fn dataset_view(&self, name: &str) -> Output {
        let dataset = self.state.dataset(name).ok_or_else(|| format!("no dataset {name}"))?;
        let Dataset { attempt, phase, .. } = dataset;
        let mut text = vec![format!("dataset {name} is {}, attempt {attempt}", phase_name(phase))];
        if let Some(Scan { parts, .. }) = dataset.scan() {
            for (number, part) in parts.iter().enumerate() {
                text.push(match &part.state {
                    PartState::Free => format!("part {number}: free"),
                    PartState::Leased(lease) => {
                        format!(
                            "part {number}: lease {} of session {}",
                            lease.fencing, lease.session
                        )
                    }
                    PartState::Done { records, .. } => format!("part {number}: {records} records"),
                });
            }
        }
        match phase {
            Phase::Listing { lease: Some(lease) } => {
                text.push(format!("listing: lease {} of session {}", lease.fencing, lease.session));
            }
            Phase::Failed { failure, .. } => {
                let by = Some(&failure.reported_by).filter(|by| !by.is_empty());
                let by = by.map(|by| format!(" (reported by {by})")).unwrap_or_default();
                text.push(format!("failure: {}{by}", failure.message));
            }
            _ => {}
        }
        Ok(text.join("\n"))
    }

    fn state_view(&self, name: &str) -> Output {
        let latest = self.state.latest_state(name)?;
        let latest = latest.ok_or("the job has not started")?;
        let segments = serde_json::to_string(&latest.segments)?;
        let (generation, epoch) = (latest.generation, latest.epoch);
        let left_out = match latest.left_out.is_empty() {
            true => String::new(),
            false => format!(", left out {:?}", latest.left_out.ranges()),
        };
        Ok(format!(
            "latest state: generation {generation}, epoch {epoch}, segments {segments}{left_out}"
        ))
    }
}

fn ranks_view(generation: &Generation) -> String {
    let ranks = generation.ranks.iter().map(|(number, rank)| {
        let Rank { cursor, lease, ended, failure, moved_to, trainer, .. } = rank;
        let served = match lease {
            Some(lease) => format!("lease {} of session {}", lease.fencing, lease.session),
            None => "no lease".to_owned(),
        };
        let at = format!("epoch {} step {}", cursor.epoch, cursor.step);
        let mut line = format!("rank {number}: loader {trainer}, {served}, cursor {at}");
        line += if *ended { ", ended" } else { "" };
        line += &failure.as_ref().map(|why| format!(", failed: {why}")).unwrap_or_default();
        line += &moved_to.map(|to| format!(", moved to generation {to}")).unwrap_or_default();
        line
    });
    lines(&ranks.collect::<Vec<_>>(), "no rank has joined")
}

fn lines(lines: &[String], nothing: &str) -> String {
    if lines.is_empty() { nothing.to_owned() } else { lines.join("\n") }
}

fn generation_of<'a>(job: &'a Job, args: &mut Args) -> Result<&'a Generation, Failed> {
    let number = args.key("generation")?;
    let known = match number {
        Some(number) => job.generations.get(&number),
        None => job.current(),
    };
    known.ok_or_else(|| "there is no such generation".into())
}

fn job_view(job: &Job) -> String {
    let phase = format!("{:?}", job.phase()).to_lowercase();
    let mut text = vec![format!("job {} is {phase}", job.name)];
    if let Some(held) = &job.held {
        text.push(format!("held by {} ({}): {}", held.principal, held.hold, held.reason));
    }
    for generation in job.generations.values() {
        let Generation { number, run, world_size, ranks, .. } = generation;
        let start = generation.start();
        let from = format!("epoch {} step {}", start.epoch, start.step);
        let mut line = format!("generation {number}: run {run}, from {from}");
        line += &generation.parent.map(|of| format!(" of generation {of}")).unwrap_or_default();
        line += &format!(", {} of {world_size} ranks joined", ranks.len());
        line += &format!(", {} served", generation.ranks_served());
        let by = generation.superseded_by.as_ref();
        line += &by.map(|by| format!(", superseded by {}", by.generation)).unwrap_or_default();
        text.push(line);
    }
    text.join("\n")
}

fn sealed_view(job: &Job) -> String {
    let sealed = job.sealed.iter().map(|sealed| {
        let tally = sealed.tally.map(|tally| {
            let missing = tally.missing();
            format!(", {} of {} delivered, {missing} missing", tally.delivered, tally.total)
        });
        let (epoch, generation) = (sealed.epoch, sealed.generation);
        let times = format!("{} to {} ms", sealed.began_ms, sealed.sealed_ms);
        format!("epoch {epoch}: generation {generation}, {times}{}", tally.unwrap_or_default())
    });
    lines(&sealed.collect::<Vec<_>>(), "no epoch is sealed")
}

fn skipped_view(job: &Job) -> String {
    let records = job.skipped.iter().map(|record| {
        let (sample, offset) = (record.sample, record.offset);
        let of = format!("shard {} record {}", sample.shard, sample.ordinal);
        format!("{of} at offset {offset}: {}", record.reason)
    });
    lines(&records.collect::<Vec<_>>(), "no record is skipped")
}

fn history_view(generation: &Generation, rank: u64) -> Output {
    let rank = generation.ranks.get(&rank).ok_or("the rank has not joined")?;
    let past = rank.past.kept.iter().map(|past| {
        let why = serde_json::to_string(&past.why).unwrap_or_default();
        let at = format!("epoch {} step {}", past.cursor.epoch, past.cursor.step);
        format!("lease {} of worker {} ended at {at}: {why}", past.fencing, past.worker)
    });
    Ok(lines(&past.collect::<Vec<_>>(), "no lease has ended"))
}

fn pool_view(pool: &Pool) -> String {
    let mut text = vec![];
    let mut free = vec![ranges(pool.returned.iter())];
    if pool.next < pool.groups {
        free.push(format!("groups {}..{} as a whole", pool.next, pool.groups));
    }
    free.retain(|part| !part.is_empty());
    text.push(format!(
        "free: {}",
        if free.is_empty() { "nothing".into() } else { free.join(", ") }
    ));
    if !pool.dropped.is_empty() {
        text.push(format!("dropped: {}", ranges(pool.dropped.iter())));
    }
    text.extend(pool.shares.iter().map(|(rank, share)| share_view(*rank, share)));
    let tally = pool.tally();
    let mut counts = vec![
        format!("{} delivered", tally.delivered),
        format!("{} granted", tally.granted),
        format!("{} in doubt", tally.in_doubt),
        format!("{} free", tally.free),
    ];
    for (count, name) in [
        (tally.dropped, "dropped"),
        (tally.redelivered, "redelivered"),
        (tally.duplicated, "duplicated"),
    ] {
        counts.extend((count > 0).then(|| format!("{count} {name}")));
    }
    text.push(format!("of {} samples: {}", tally.total, counts.join(", ")));
    text.join("\n")
}

fn share_view(rank: u64, share: &RankAssignment) -> String {
    let RankAssignment { list, consumed, started, horizon, version, revoke_from, left, .. } = share;
    let mut line = format!("rank {rank}: [{}]", ranges(list.pieces().iter().copied()));
    line += &format!(", consumed {consumed}, started {started}, horizon {horizon}");
    line += &format!(", version {version}");
    if !list.closed().is_empty() {
        line += &format!(", runs end at {}", numbers(&list.closed()));
    }
    line += &revoke_from.map(|from| format!(", asked back from {from}")).unwrap_or_default();
    if share.doubt.is_some() {
        line += &format!(", {} in doubt", share.in_doubt());
    }
    line += if *left { ", left the epoch" } else { "" };
    line
}
