//! Refusals as people read them: each one is produced, and all of them are shown together.

use std::fmt::Write;

use expect_test::{Expect, expect};
use shardfeed_plan::{Intent, JobIdentity, Mode, Sample, Segment, Steps, Tail};

use crate::fixture::{
    DATASET, Fixture, JOB, add, dynamic_job, facts, first_of_two, from, identity, join, listing,
    register, scanned, segment, take_of, taken, takes,
};
use crate::log::bound::{DECODERS_MAX, SCOPES_MAX};
use crate::{
    ACCESS_TOKENS_MAX, AccessRole, CORDONS_MAX, Change, Claim, Command, Cordon, CreateAccess,
    ExchangeAccess, JoinSession, PoolFacts, RANKS_TOTAL_MAX, REVOKES_MAX, RankRevoke, RegisterJob,
    ReportSkipped, Revoke, SKIPPED_KEPT, SkippedRecord, StartRank, State, TEXT_BYTES_MAX,
};

/// Table of refused requests and their messages.
#[derive(Default)]
struct Table(String);

impl Table {
    fn add(&mut self, asked: &str, said: impl std::fmt::Display) {
        writeln!(self.0, "{asked}\n    {said}").unwrap();
    }

    /// Adds a change, which must be refused and change nothing.
    fn refused(&mut self, fixture: &mut Fixture, asked: &str, change: Change) {
        let before = fixture.contents();
        let refusal = fixture.apply(change).expect_err(asked);
        assert_eq!(fixture.contents(), before, "{asked}");
        self.add(asked, refusal);
    }

    /// As [`Table::refused`], for a claim of a rank.
    fn refused_take(&mut self, fixture: &mut Fixture, asked: &str, take: Claim) {
        let before = fixture.contents();
        let refusal = takes(fixture, vec![take]).remove(0).expect_err(asked);
        assert_eq!(fixture.contents(), before, "{asked}");
        self.add(asked, refusal);
    }

    #[expect(clippy::needless_pass_by_value, reason = "expect! makes values")]
    fn check(&self, says: Expect) {
        says.assert_eq(&self.0);
    }
}

fn token(id: &str) -> CreateAccess {
    CreateAccess {
        id: id.to_owned(),
        digest: crate::fixture::digest(1),
        name: "ada".to_owned(),
        role: AccessRole::Worker,
        jobs: vec![],
        ttl_ms: 1_000,
        join_ttl_ms: None,
    }
}

#[test]
fn every_refusal_of_a_name_or_a_text_says_which_one() {
    let (mut fixture, session) = Fixture::with_job(Tail::Drop);
    let mut table = Table::default();
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    let joins = |join: JoinSession| Change::JoinSession(join);
    let starts = |start: StartRank| Change::StartRank(start);
    let first = first_of_two(session);
    let registers = |name: &str, identity: JobIdentity| {
        let (name, dataset) = (name.to_owned(), DATASET.to_owned());
        let (mixture, record_spec_chunks) = (None, vec![]);
        Change::RegisterJob(RegisterJob { name, identity, dataset, mixture, record_spec_chunks })
    };
    let wordy = JobIdentity { decoder: long.clone(), ..identity(Tail::Drop) };
    let lanes = JobIdentity { mode: Mode::Dynamic, ..identity(Tail::Drop) };
    let asked = [
        ("a worker's version", joins(JoinSession { version: "1\n".into(), ..join("v", "i") })),
        ("a worker's socket", joins(JoinSession { endpoint: long, ..join("v", "i") })),
        ("a decoder", joins(JoinSession { decoders: vec![String::new()], ..join("v", "i") })),
        ("a job", registers("", identity(Tail::Drop))),
        ("a job's decoder", registers("j", wordy)),
        ("a dynamic job's lanes", registers("j", lanes)),
        ("the job of a start", starts(StartRank { job: String::new(), ..first.clone() })),
        ("the run of a start", starts(StartRank { run: Some(String::new()), ..first.clone() })),
        ("the trainer of a start", starts(StartRank { trainer: "\u{7}".into(), ..first.clone() })),
        ("no ranks", starts(StartRank { world_size: 0, ..first.clone() })),
        ("a rank too many", starts(StartRank { rank: 2, ..first })),
        ("an access token's id", Change::CreateAccess(token(""))),
        (
            "an access token's job",
            Change::CreateAccess(CreateAccess { jobs: vec![String::new()], ..token("t") }),
        ),
        (
            "a worker to cordon",
            Change::CordonWorker { worker: String::new(), state: Cordon::Cordoned },
        ),
    ];
    for (what, change) in asked {
        table.refused(&mut fixture, what, change);
    }
    table.check(expect![[r#"
        a worker's version
            the worker's version "1\n" has characters that cannot be printed
        a worker's socket
            the worker's endpoint has 4097 bytes; at most 200 are allowed
        a decoder
            the decoder is empty
        a job
            the job's name is empty
        a job's decoder
            the decoder's id has 4097 bytes; at most 4096 are allowed
        a dynamic job's lanes
            lanes=2 means nothing with mode="dynamic"; leave it out
        the job of a start
            the job's name is empty
        the run of a start
            the run is empty
        the trainer of a start
            the trainer's id "\u{7}" has characters that cannot be printed
        no ranks
            world_size=0 is not in 1..=1048576
        a rank too many
            rank=2 is not in 0..2: ranks count from 0 to world_size - 1
        an access token's id
            the token's id is empty
        an access token's job
            the job is empty
        a worker to cordon
            the worker's name is empty
    "#]]);
}

#[test]
fn every_refusal_of_too_much_says_how_much_there_may_be_and_that_much_is_taken() {
    let (mut fixture, session) = Fixture::with_job(Tail::Drop);
    let mut table = Table::default();
    let decodes = |count: usize| {
        Change::JoinSession(JoinSession { decoders: vec!["d".into(); count], ..join("v", "i") })
    };
    table.refused(&mut fixture, "decoders of a worker", decodes(DECODERS_MAX + 1));
    fixture.apply(decodes(DECODERS_MAX)).unwrap();
    let of_jobs = |count: usize| {
        Change::CreateAccess(CreateAccess { jobs: vec![JOB.into(); count], ..token("t") })
    };
    table.refused(&mut fixture, "jobs of an access token", of_jobs(SCOPES_MAX + 1));
    fixture.apply(of_jobs(SCOPES_MAX)).unwrap();
    let skips = |count: usize| {
        let record = |ordinal| SkippedRecord {
            sample: Sample { shard: 1, ordinal },
            offset: ordinal,
            reason: "torn".to_owned(),
        };
        let records = (0..count as u64).map(record).collect();
        let job = JOB.to_owned();
        Change::ReportSkipped(ReportSkipped { session, job, records, mixture: None })
    };
    table.refused(&mut fixture, "corrupt records in a report", skips(SKIPPED_KEPT + 1));
    fixture.apply(skips(SKIPPED_KEPT)).unwrap();

    let known = fixture.state.access.by_id["t"].clone();
    let more = (1..ACCESS_TOKENS_MAX).map(|number| (format!("t{number}"), known.clone()));
    fixture.state.access.by_id.extend(more);
    table.refused(&mut fixture, "access tokens", Change::CreateAccess(token("u")));
    let cordon = |worker: &str| {
        let (worker, state) = (worker.to_owned(), Cordon::Cordoned);
        Change::CordonWorker { worker, state }
    };
    let more = (0..CORDONS_MAX).map(|number| (number.to_string(), Cordon::Cordoned));
    fixture.state.sessions.cordons.extend(more);
    table.refused(&mut fixture, "cordoned workers", cordon("v"));
    // Starting this many ranks would take too long; only their number is checked.
    fixture.state.jobs.ranks = RANKS_TOTAL_MAX;
    let (index, command) = (10_001, fixture.command(Change::StartRank(first_of_two(session))));
    table.add("ranks", fixture.state.apply(index, &command).answer.unwrap_err());
    table.check(expect![[r#"
        decoders of a worker
            decoders of a worker: at most 16; list fewer
        jobs of an access token
            jobs of a token: at most 64; name a common prefix and `*`
        corrupt records in a report
            records in a report: at most 1000; report fewer
        access tokens
            access tokens: at most 20000; revoke unused tokens; there is room 30 days later
        cordoned workers
            cordoned workers: at most 100000; open workers that came back, or will not
        ranks
            ranks in all generations: at most 2000000; start fewer ranks in all jobs together
    "#]]);
}

#[test]
fn a_job_of_a_dataset_that_is_not_ready_is_refused_with_how_far_it_is() {
    let mut fixture = Fixture::default();
    let session = fixture.join("w");
    let mut table = Table::default();
    fixture.done(add());
    table.refused(&mut fixture, "no worker has listed it", register(Tail::Drop));
    let fencing = fixture.take(session, 1)[0].fencing;
    fixture.done(listing(session, fencing, 1));
    table.refused(&mut fixture, "no worker has scanned it", register(Tail::Drop));
    let fencing = fixture.take(session, 1)[0].fencing;
    fixture.done(scanned(session, fencing, 0));
    table.refused(&mut fixture, "its parts are scanned", register(Tail::Drop));
    table.check(expect![[r#"
        no worker has listed it
            dataset `images` is being listed; wait until it is ready
        no worker has scanned it
            dataset `images` is being scanned; wait until it is ready
        its parts are scanned
            dataset `images` is being put together; wait until it is ready
    "#]]);
}

#[test]
fn who_speaks_for_another_is_refused() {
    let mut fixture = Fixture::default();
    let mut table = Table::default();
    let proves = JoinSession { proved: true, ..join("w", "i1") };
    fixture.apply(Change::JoinSession(proves.clone())).unwrap();
    let other = JoinSession { incarnation: "i2".to_owned(), ..proves };
    let command = Command {
        principal: "worker:other".to_owned(),
        ..fixture.command(Change::JoinSession(other))
    };
    let refusal = fixture.state.apply(fixture.state.applied() + 1, &command).answer;
    table.add("a worker under the name of another one", refusal.unwrap_err());
    fixture.done(Change::CreateAccess(CreateAccess { join_ttl_ms: Some(5_000), ..token("j") }));
    let exchange = |join: &str, id: &str| {
        let (join, id, name) = (join.to_owned(), id.to_owned(), "w-1".to_owned());
        let digest = crate::fixture::digest(2);
        Change::ExchangeAccess(ExchangeAccess { join, id, digest, name })
    };
    table.add(
        "a join token that is shown in place of the access token",
        fixture.state.access_token("j").unwrap().check(0).unwrap_err(),
    );
    fixture.done(exchange("j", "w"));
    table.add("who made the other one", &fixture.state.access_token("w").unwrap().created_by);
    table.refused(&mut fixture, "a join token once more", exchange("j", "x"));
    table.check(expect![[r#"
        a worker under the name of another one
            worker `w` is of test, not of worker:other; give this worker another name (--name)
        a join token that is shown in place of the access token
            is a join token: exchange it first
        who made the other one
            join token j, made by test
        a join token once more
            access token `j` is a join token that was used; ask an admin for another one
    "#]]);
}

/// Two ranks of a dynamic job, with batches of 4.
fn two() -> (Fixture, StartRank) {
    let (mut fixture, session) = dynamic_job();
    let start = first_of_two(session);
    fixture.start_all(&start);
    (fixture, start)
}

#[test]
fn every_refusal_of_a_take_says_what_the_rank_has() {
    let mut table = Table::default();
    let (mut fixture, session) = Fixture::with_job(Tail::Drop);
    fixture.start(first_of_two(session));
    let take = take_of(&fixture, 0, 10);
    table.refused_take(&mut fixture, "a deterministic job", take);

    let (mut fixture, _) = two();
    let first = take_of(&fixture, 0, 10);
    let begun = Claim { started: 1, ..first.clone() };
    table.refused_take(&mut fixture, "samples begun before the first claim", begun);
    let none = Claim { facts: PoolFacts { groups: 0, ..facts() }, ..first };
    table.refused_take(&mut fixture, "an epoch without groups", none);
    taken(&mut fixture, 0, 0, 10);
    let known = Claim { known: 1, ..take_of(&fixture, 0, 10) };
    let wrong = [
        ("more than was granted", Claim { started: 21, ..known.clone() }),
        ("a step after the granted ones", Claim { step: 6, ..known.clone() }),
        ("begun samples, returned", Claim { started: 8, released: Some(7), ..known.clone() }),
        (
            "an epoch of another size",
            Claim { facts: PoolFacts { samples: 41, ..facts() }, ..known.clone() },
        ),
    ];
    for (what, take) in wrong {
        table.refused_take(&mut fixture, what, take);
    }
    fixture.report(0, 0, 2);
    table.refused_take(&mut fixture, "a step that is consumed", Claim { step: 1, ..known });
    let one = RankRevoke { rank: 0, from: 0 };
    let revoke = |generation: u64, count: usize| {
        let (job, revokes) = (JOB.to_owned(), vec![one.clone(); count]);
        Change::Revoke(Revoke { job, generation, epoch: 0, revokes })
    };
    table.refused(&mut fixture, "too many revocations", revoke(0, REVOKES_MAX + 1));

    let (mut fixture, _) = two();
    table.refused(&mut fixture, "a revocation in an epoch that has not begun", revoke(0, 1));
    table.check(expect![[r#"
        a deterministic job
            claiming groups requires mode="dynamic", but job `train` is deterministic
        samples begun before the first claim
            rank 0 of job `train` in epoch 0 began groups that it was not granted
        an epoch without groups
            an epoch of 0 groups and 40 samples cannot have 4 reported sizes from group 0 on
        more than was granted
            rank 0 of job `train` in epoch 0 began 21 samples, but was granted 10
        a step after the granted ones
            rank 0 of job `train` in epoch 0 was not granted the batches before step 6
        begun samples, returned
            rank 0 of job `train` in epoch 0 returns samples from 7 on, but began 8 of 10
        an epoch of another size
            an epoch of 4 groups and 41 samples does not fit the one that was begun, of 4 groups and 40 samples
        a step that is consumed
            rank 0 of job `train` in epoch 0 claims at step 1, but has consumed everything before 2
        too many revocations
            65 revocations in one command; at most 64
        a revocation in an epoch that has not begun
            generation 0 of job `train` shares nothing out in epoch 0
    "#]]);
}

#[test]
fn every_refusal_to_go_on_with_a_dynamic_epoch_says_what_is_not_kept() {
    let (mut fixture, start) = two();
    let mut table = Table::default();
    taken(&mut fixture, 0, 0, 10);
    taken(&mut fixture, 1, 0, 10);
    let of_run = |run: &str, rank: u64, intent: Intent| {
        let (run, trainer) = (Some(run.to_owned()), format!("{run}-{rank}"));
        Change::StartRank(StartRank { run, rank, trainer, intent, ..start.clone() })
    };
    let nameless = Intent::Start {
        state_generation: None,
        epoch: 0,
        segments: vec![segment(2)],
        is_reshard: false,
    };
    let four = Segment { lanes: 4, global_batch: 8, steps: Steps::All(2) };
    let recut = Intent::Start {
        state_generation: Some(0),
        epoch: 0,
        segments: vec![four],
        is_reshard: false,
    };
    let larger =
        StartRank { run: Some("r2".into()), world_size: 4, intent: recut, ..start.clone() };
    let wrong = [
        ("a state that names no generation", of_run("r2", 0, nameless)),
        ("a state of another cluster", of_run("r2", 0, from(7, 0, 2))),
        ("a state of an epoch that has not begun", of_run("r2", 0, from(0, 2, 3))),
        ("a state of more than was granted", of_run("r2", 0, from(0, 0, 9))),
        ("more ranks, by other batches than those that were granted", Change::StartRank(larger)),
    ];
    for (what, change) in wrong {
        table.refused(&mut fixture, what, change);
    }
    fixture.apply(of_run("r2", 0, from(0, 0, 2))).unwrap();
    let wrong = [
        ("another rank with a state of another generation", of_run("r2", 1, from(7, 0, 2))),
        ("another rank without any", {
            let segments = vec![segment(2)];
            of_run(
                "r2",
                1,
                Intent::Start { state_generation: None, epoch: 0, segments, is_reshard: false },
            )
        }),
    ];
    for (what, change) in wrong {
        table.refused(&mut fixture, what, change);
    }
    table.check(expect![[r#"
        a state that names no generation
            job `train` cannot continue at epoch 0 step 2: it names no generation that made it; a dynamic epoch continues only from a state of the last generations and epochs of the same cluster: start from a later state, or restart the epoch with set_epoch(0)
        a state of another cluster
            job `train` cannot continue at epoch 0 step 2: generation 7 is not kept here; a dynamic epoch continues only from a state of the last generations and epochs of the same cluster: start from a later state, or restart the epoch with set_epoch(0)
        a state of an epoch that has not begun
            job `train` cannot continue at epoch 2 step 3: generation 0 keeps no lists of epoch 2; a dynamic epoch continues only from a state of the last generations and epochs of the same cluster: start from a later state, or restart the epoch with set_epoch(2)
        a state of more than was granted
            job `train` cannot continue at epoch 0 step 9: generation 0 did not grant that to rank 0; a dynamic epoch continues only from a state of the last generations and epochs of the same cluster: start from a later state, or restart the epoch with set_epoch(0)
        more ranks, by other batches than those that were granted
            job `train` cannot continue at epoch 0 step 2: it does not say the position of each rank of generation 0; a dynamic epoch continues only from a state of the last generations and epochs of the same cluster: start from a later state, or restart the epoch with set_epoch(0)
        another rank with a state of another generation
            rank 1 of job `train` brings a state of generation 7, the others one of generation 0; restart all ranks from one checkpoint
        another rank without any
            rank 1 of job `train` brings a state of no generation, the others one of generation 0; restart all ranks from one checkpoint
    "#]]);
}

#[test]
fn what_is_no_snapshot_is_refused() {
    let mut table = Table::default();
    let (fixture, _) = Fixture::with_job(Tail::Drop);
    let whole = String::from_utf8(fixture.state.snapshot()).unwrap();
    let later = whole.replacen("\"shardfeed_state\":1", "\"shardfeed_state\":99", 1);
    let broken = whole.replacen("\"attempt\":1", "\"attempt\":0", 1);
    for (what, text) in [
        ("nothing", ""),
        ("something else", "{}"),
        ("a half", &whole[..20]),
        ("one of a later release", &later),
        ("one that was edited", &broken),
    ] {
        table.add(what, State::from_snapshot(text.as_bytes()).expect_err(what));
    }
    table.check(expect![[r#"
        nothing
            this is not a whole snapshot: EOF while parsing a value at line 1 column 0
        something else
            this is not a whole snapshot: missing field `shardfeed_state` at line 1 column 2
        a half
            this is not a whole snapshot: EOF while parsing an object at line 1 column 20
        one of a later release
            the snapshot has format 99, this shardfeed knows up to 1; upgrade shardfeed to the version that wrote it
        one that was edited
            the snapshot contradicts itself: images: not true that attempts count from 1
    "#]]);
}
