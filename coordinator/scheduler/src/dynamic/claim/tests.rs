use expect_test::expect;
use shardfeed_plan::dynamic::GroupRange;
use shardfeed_plan::{Intent, Segment, Steps};

use crate::fixture::{
    Fixture, JOB, dynamic_job, facts, first_of_two, from, segment, take_of, taken, takes, wrapped,
};
use crate::{
    Answer, Change, Claim, EPOCHS_KEPT, PoolFacts, RankCursor, RankRevoke, Refusal, Revoke, Speeds,
    StartRank,
};

/// Two ranks of batch size 4, with a session each.
fn two() -> (Fixture, StartRank) {
    let (mut fixture, session) = dynamic_job();
    let start = first_of_two(session);
    fixture.start(StartRank { trainer: "t-0".into(), ..start.clone() });
    let other = fixture.join("v");
    fixture.start(StartRank { rank: 1, session: other, trainer: "t-1".into(), ..start.clone() });
    (fixture, start)
}

fn piece(group: u64, from: u64, to: u64) -> GroupRange {
    GroupRange { group, from, to }
}

fn session_of(fixture: &Fixture, rank: u64) -> u64 {
    fixture.current().ranks[&rank].lease.as_ref().unwrap().session
}

fn told(refusal: &Refusal) -> String {
    wrapped(&refusal.to_string())
}

fn refused(fixture: &mut Fixture, take: Claim) -> String {
    let before = fixture.contents();
    let refusal = takes(fixture, vec![take]).remove(0).unwrap_err();
    assert_eq!(fixture.contents(), before);
    told(&refusal)
}

#[test]
fn takes_of_one_command_are_answered_one_by_one() {
    let (mut fixture, _) = two();
    let stale = Claim {
        lease: crate::LeaseRef { fencing: 1, ..fixture.lease(1) },
        ..take_of(&fixture, 1, 5)
    };
    let few = PoolFacts { next: vec![10], ..facts() };
    let good = Claim { facts: few, ..take_of(&fixture, 0, 15) };
    let answers = takes(&mut fixture, vec![good.clone(), stale]);
    // The sizes in one claim serve all of them.
    assert_eq!(answers[0].as_ref().unwrap().pieces.len(), 2);
    assert!(matches!(answers[1], Err(Refusal::Fenced { .. })));
    fixture.refused(
        Change::ClaimGroups { takes: vec![good.clone(), good] },
        expect![[r#"
            two claims of one rank in one command; combine claims of
            different ranks"#]],
    );
    fixture.refused(
        Change::ClaimGroups { takes: vec![] },
        expect!["0 claims in one command; 1 to 256 are allowed"],
    );
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let (mut fixture, _) = two();
    taken(&mut fixture, 0, 0, 15);
    let good = Claim { known: 2, ..take_of(&fixture, 0, 15) };
    let ahead = refused(&mut fixture, Claim { started: 21, ..good.clone() });
    expect!["rank 0 of job `train` in epoch 0 began 21 samples, but was granted 20"]
        .assert_eq(&ahead.replace('\n', " "));
    let beyond = refused(&mut fixture, Claim { step: 6, ..good.clone() });
    expect!["rank 0 of job `train` in epoch 0 was not granted the batches before step 6"]
        .assert_eq(&beyond.replace('\n', " "));
    let back = refused(&mut fixture, Claim { started: 8, released: Some(7), ..good.clone() });
    expect!["rank 0 of job `train` in epoch 0 returns samples from 7 on, but began 8 of 20"]
        .assert_eq(&back.replace('\n', " "));
    let odd = PoolFacts { samples: 41, ..facts() };
    assert!(refused(&mut fixture, Claim { facts: odd, ..good.clone() }).contains("does not fit"));
    let odd = PoolFacts { next: vec![10, 10, 10, 9], ..facts() };
    assert!(refused(&mut fixture, Claim { facts: odd, ..good.clone() }).contains("does not fit"));
    let odd = PoolFacts { next: vec![0], ..facts() };
    assert!(refused(&mut fixture, Claim { facts: odd, ..good }).contains("cannot have"));
}

#[test]
fn an_exhausted_list_is_closed_and_later_grants_begin_a_run() {
    let (mut fixture, _) = two();
    assert_eq!(taken(&mut fixture, 0, 0, 10).pieces.len(), 1);
    assert_eq!(taken(&mut fixture, 1, 0, 30).pieces.len(), 3);
    // A batch that the worker has not begun is left.
    assert!(taken(&mut fixture, 0, 4, 4).closed.is_empty());
    assert_eq!(taken(&mut fixture, 0, 8, 4).closed, [10]);
    let session = session_of(&fixture, 1);
    fixture.done(Change::ExpireSessions { sessions: vec![session] });
    let more = taken(&mut fixture, 0, 10, 4);
    assert_eq!((more.pieces, more.closed), (vec![piece(1, 4, 10)], vec![10]));
    fixture.report(0, 0, 3);
    assert_eq!(fixture.current().pools[&0].delivered(), 10);
}

#[test]
fn parts_of_a_group_go_to_a_rank_that_has_a_part_of_it() {
    let (mut fixture, _) = two();
    taken(&mut fixture, 0, 0, 10);
    taken(&mut fixture, 1, 0, 30);
    let gives = Claim { started: 24, known: 3, released: Some(25), ..take_of(&fixture, 1, 4) };
    assert_eq!(takes(&mut fixture, vec![gives])[0].as_ref().unwrap().truncated, Some(25));
    let session = session_of(&fixture, 0);
    fixture.done(Change::ExpireSessions { sessions: vec![session] });
    let free: Vec<GroupRange> = fixture.current().pools[&0].returned.iter().collect();
    assert_eq!(free, [piece(0, 4, 10), piece(3, 5, 10)]);
    assert_eq!(taken(&mut fixture, 1, 24, 4).pieces.last(), Some(&piece(3, 5, 10)));
    assert_eq!(taken(&mut fixture, 1, 30, 4).pieces, [piece(0, 4, 10)]);
}

#[test]
fn what_lies_beyond_the_horizon_is_free_at_once_and_the_rest_stays_for_its_trainer() {
    for comes_back in [true, false] {
        let (mut fixture, start) = two();
        let first = taken(&mut fixture, 0, 0, 10);
        assert_eq!((first.horizon, first.version), (4, 0), "a batch");
        let opened = Claim { ahead: 7, known: 1, ..take_of(&fixture, 0, 10) };
        assert_eq!(takes(&mut fixture, vec![opened])[0].as_ref().unwrap().horizon, 7);
        taken(&mut fixture, 1, 0, 30);
        let worker = fixture.state.session(session_of(&fixture, 0)).unwrap().join.clone();
        let again = crate::JoinSession { incarnation: "again".into(), ..worker };
        let Answer::Joined { session } = fixture.apply(Change::JoinSession(again)).unwrap() else {
            panic!("it joins");
        };
        let pool = &fixture.current().pools[&0];
        assert_eq!((pool.tally().in_doubt, pool.returned.samples()), (7, 3));
        assert_eq!(taken(&mut fixture, 1, 30, 4).pieces, [piece(0, 7, 10)]);
        if comes_back {
            // It has consumed a step that was never reported.
            let intent = Intent::Reconnect { generation: 0, epoch: 0, step: 1 };
            fixture.start(StartRank { session, trainer: "t-0".into(), intent, ..start });
        }
        let pool = &fixture.current().pools[&0];
        assert_eq!(
            (pool.delivered(), pool.tally().in_doubt),
            if comes_back { (4, 0) } else { (0, 7) }
        );
        assert_eq!(pool.returned.samples(), 0, "the rest of its samples is still reserved for it");
    }
}

#[test]
fn the_end_of_a_rank_reports_its_position_and_frees_the_rest() {
    // Nothing is in doubt after a reported position; one outside of the list is unknown.
    for (step, delivered, in_doubt) in [(2, 8, 0), (0, 0, 0), (3, 0, 8)] {
        let (mut fixture, _) = two();
        taken(&mut fixture, 0, 0, 10);
        let opened = Claim { ahead: 8, known: 1, ..take_of(&fixture, 0, 10) };
        takes(&mut fixture, vec![opened]);
        let position = Some(RankCursor { epoch: 0, step });
        let lease = fixture.lease(0);
        fixture.done(Change::EndRank { lease, is_told: true, failure: None, position });
        let pool = &fixture.current().pools[&0];
        assert_eq!((pool.delivered(), pool.tally().in_doubt), (delivered, in_doubt), "{step}");
        assert_eq!(pool.returned.samples(), 10 - delivered - in_doubt, "{step}");
    }
}

#[test]
fn a_horizon_ends_at_every_cut_of_its_list() {
    let (mut fixture, _) = two();
    taken(&mut fixture, 0, 0, 40);
    let far = Claim { ahead: 30, known: 4, ..take_of(&fixture, 0, 40) };
    assert_eq!(takes(&mut fixture, vec![far.clone()])[0].as_ref().unwrap().horizon, 30);
    let gives =
        Claim { ahead: 30, started: 8, known: 2, released: Some(12), ..take_of(&fixture, 0, 0) };
    let cut = takes(&mut fixture, vec![gives]).remove(0).unwrap();
    assert_eq!((cut.horizon, cut.version), (12, 1));
    // A late request opens the samples in the list, and its answer has the new version.
    let late = takes(&mut fixture, vec![Claim { wants: 0, ..far }]).remove(0).unwrap();
    assert_eq!((late.horizon, late.version), (12, 1));
}

#[test]
fn what_others_finished_is_not_granted_again_to_a_rank_that_joins_late() {
    let (mut fixture, session) = dynamic_job();
    let start = first_of_two(session);
    fixture.start(StartRank { trainer: "t-0".into(), ..start.clone() });
    let epochs = EPOCHS_KEPT as u64 + 2;
    for epoch in 0..epochs {
        let take = Claim { epoch, ..take_of(&fixture, 0, 40) };
        assert_eq!(takes(&mut fixture, vec![take])[0].as_ref().unwrap().pieces.len(), 4);
        fixture.report(0, epoch, 10);
        fixture.report(0, epoch + 1, 0);
    }
    let other = fixture.join("v");
    fixture.start(StartRank { rank: 1, session: other, trainer: "t-1".into(), ..start });
    for epoch in 0..epochs {
        let take = Claim { epoch, ..take_of(&fixture, 1, 40) };
        let taken = takes(&mut fixture, vec![take]).remove(0).unwrap();
        assert_eq!((taken.ended, taken.pieces), (true, vec![]), "epoch {epoch}");
        fixture.report(1, epoch + 1, 0);
    }
    // The counts are kept until the epochs are sealed.
    let sealed = &fixture.state.job(JOB).unwrap().sealed;
    let delivered = sealed.iter().map(|sealed| sealed.tally.unwrap().delivered);
    assert_eq!(delivered.collect::<Vec<_>>(), vec![40; epochs as usize]);
}

#[test]
fn a_rank_with_a_state_of_another_generation_is_refused() {
    let (mut fixture, start) = two();
    taken(&mut fixture, 0, 0, 20);
    taken(&mut fixture, 1, 0, 20);
    fixture.report(0, 0, 2);
    fixture.report(1, 0, 2);
    let again = |run: &str, rank: u64, generation: u64| {
        let (run, trainer) = (Some(run.to_owned()), format!("{run}-{rank}"));
        let intent = from(generation, 0, 2);
        StartRank { run, rank, trainer, intent, ..start.clone() }
    };
    let one = fixture.start(again("r2", 0, 0)).generation;
    let two = fixture.start(again("r3", 0, 0)).generation;
    assert!(two > one);
    let refusal = fixture.apply(Change::StartRank(again("r3", 1, one))).unwrap_err();
    assert!(told(&refusal).replace('\n', " ").contains("a state of generation"), "{refusal}");
    assert_eq!(fixture.start(again("r3", 1, 0)).generation, two);
}

/// Rank 0 dies with 8 unreported samples before its horizon; an operator declares it gone.
fn with_a_rank_gone() -> (Fixture, StartRank, crate::LeaseRef) {
    let (mut fixture, start) = two();
    taken(&mut fixture, 0, 0, 10);
    let opened = Claim { ahead: 8, known: 1, ..take_of(&fixture, 0, 10) };
    takes(&mut fixture, vec![opened]);
    let (session, lease) = (session_of(&fixture, 0), fixture.lease(0));
    fixture.done(Change::ExpireSessions { sessions: vec![session] });
    fixture.apply(Change::DeclareGone { job: JOB.to_owned(), rank: 0 }).unwrap();
    (fixture, start, lease)
}

#[test]
fn a_trainer_that_returns_late_gets_back_what_is_free_of_what_it_consumed() {
    let (mut fixture, start, _) = with_a_rank_gone();
    assert_eq!(fixture.current().pools[&0].returned.samples(), 10);
    let session = fixture.join("w2");
    let back = |step| {
        let intent = Intent::Reconnect { generation: 0, epoch: 0, step };
        StartRank { session, trainer: "t-0".into(), intent, ..start.clone() }
    };
    fixture.refused(
        Change::StartRank(back(3)),
        expect![[r#"
            job `train` cannot continue at epoch 0 step 3: rank 0 was not
            granted the batches before it; a dynamic epoch continues only
            from a state of the last generations and epochs of the same
            cluster: start from a later state, or restart the epoch with
            set_epoch(0)"#]],
    );
    fixture.start(back(1));
    let pool = &fixture.current().pools[&0];
    assert_eq!(pool.shares[&0].list.pieces(), [piece(0, 0, 4)]);
    assert_eq!((pool.returned.samples(), pool.delivered(), pool.duplicated), (6, 4, 0));
    assert_eq!(pool.tally().redelivered, 0);
}

#[test]
fn a_restart_at_another_world_size_counts_samples_that_two_states_hold() {
    for (steps, duplicated, free) in [(vec![1, 1], 4, 6), (vec![1, 0], 0, 6), (vec![0, 1], 0, 6)] {
        let (mut fixture, start, _) = with_a_rank_gone();
        // Rank 1 gets what rank 0 was about to consume.
        assert_eq!(taken(&mut fixture, 1, 0, 10).pieces, [piece(0, 0, 10)]);
        let segments = vec![Segment { steps: Steps::PerRank(steps), ..segment(0) }, segment(0)];
        let intent =
            Intent::Start { state_generation: Some(0), epoch: 0, segments, is_reshard: false };
        let (session, run) = (fixture.join("w2"), Some("r2".to_owned()));
        fixture.start(StartRank { run, world_size: 1, session, intent, ..start });
        let pool = &fixture.current().pools[&0];
        assert_eq!((pool.duplicated, pool.returned.samples()), (duplicated, free));
    }
}

#[test]
fn a_starved_rank_gets_half_of_what_the_slowest_has_left() {
    let (mut fixture, _) = two();
    taken(&mut fixture, 0, 0, 40);
    taken(&mut fixture, 1, 0, 4);
    let revokes = |fixture: &Fixture, speeds: [u64; 2]| -> Vec<(u64, u64)> {
        let speeds: Speeds = (0..).zip(speeds).collect();
        let all = fixture.state.balance(JOB, &speeds);
        all.iter().flat_map(|one| &one.revokes).map(|one| (one.rank, one.from)).collect()
    };
    assert_eq!(revokes(&fixture, [1, 1]), [(0, 20)]);
    assert_eq!(revokes(&fixture, [1, 3]), [(0, 12)]);
    assert_eq!(revokes(&fixture, [100, 1]), []);
    let revoke = |from| {
        let revokes = vec![RankRevoke { rank: 0, from }];
        Change::Revoke(Revoke { job: JOB.to_owned(), generation: 0, epoch: 0, revokes })
    };
    fixture.done(revoke(20));
    assert_eq!(revokes(&fixture, [1, 1]), []);
    let news = taken(&mut fixture, 0, 12, 4);
    assert_eq!((news.revoke_from, news.pieces.len()), (Some(20), 0));
    // The rank continued meanwhile, up to 24.
    let release = Claim { started: 24, released: Some(24), known: 3, ..take_of(&fixture, 0, 40) };
    let released = takes(&mut fixture, vec![release]).remove(0).unwrap();
    assert_eq!((released.truncated, released.revoke_from), (Some(24), None));
    assert_eq!(fixture.current().pools[&0].returned.samples(), 16);
    let given = taken(&mut fixture, 1, 0, 40);
    assert_eq!(given.pieces, [piece(2, 4, 10), piece(3, 0, 10)]);
}

#[test]
fn epochs_open_ahead_up_to_a_bound() {
    let (mut fixture, _) = two();
    for epoch in 0..EPOCHS_KEPT as u64 {
        let ahead = Claim { epoch, ..take_of(&fixture, 0, 20) };
        assert_eq!(takes(&mut fixture, vec![ahead]).remove(0).unwrap().pieces.len(), 2);
    }
    let too_far = Claim { epoch: EPOCHS_KEPT as u64, ..take_of(&fixture, 0, 20) };
    let waits = takes(&mut fixture, vec![too_far.clone()]).remove(0).unwrap();
    assert_eq!((waits.pieces.len(), waits.ended), (0, false));
    for rank in [0, 1] {
        fixture.report(rank, 1, 0);
    }
    assert_eq!(fixture.current().pools.len(), EPOCHS_KEPT);
    assert_eq!(takes(&mut fixture, vec![too_far]).remove(0).unwrap().pieces.len(), 2);
    let take = take_of(&fixture, 0, 20);
    let passed = takes(&mut fixture, vec![take]).remove(0).unwrap();
    assert!(passed.ended);
}

#[test]
fn a_token_that_is_not_kept_is_refused_beyond_the_beginning_of_its_epoch() {
    let (mut fixture, start) = two();
    let run = |intent| StartRank { run: Some("r2".into()), intent, ..start.clone() };
    for (intent, reason) in [
        (from(7, 0, 3), "generation 7 is not kept here"),
        (from(0, 2, 3), "generation 0 keeps no lists of epoch 2"),
    ] {
        let refusal = fixture.apply(Change::StartRank(run(intent))).unwrap_err();
        assert!(refusal.to_string().contains(reason), "{refusal}");
    }
    assert_eq!(fixture.start(run(from(7, 2, 0))).generation, 8);
}

#[test]
fn a_limit_or_lanes_mean_nothing() {
    let (mut fixture, session) = dynamic_job();
    fixture.refused(
        Change::StartRank(StartRank { limit: Some(3), ..first_of_two(session) }),
        expect![[r#"
            limit= cuts the plan of an epoch, and mode="dynamic" has
            none; leave it out"#]],
    );
}

#[test]
fn the_list_of_a_rank_that_does_not_join_again_is_free_once_it_is_declared_gone() {
    let (mut fixture, start) = two();
    taken(&mut fixture, 0, 0, 10);
    taken(&mut fixture, 1, 0, 30);
    let again = |rank: u64| {
        let (run, trainer) = (Some("r2".to_owned()), format!("r2-{rank}"));
        StartRank { run, rank, trainer, intent: from(0, 0, 1), ..start.clone() }
    };
    fixture.start(again(0));
    let pool = |fixture: &Fixture| fixture.current().pools[&0].clone();
    assert_eq!((pool(&fixture).free(), pool(&fixture).tally().granted), (0, 36));
    let gone = Change::DeclareGone { job: JOB.to_owned(), rank: 1 };
    // A batch lay before its horizon; the samples beyond were not delivered.
    assert_eq!(fixture.apply(gone).unwrap(), Answer::Decided { samples: 4 });
    assert_eq!((pool(&fixture).free(), pool(&fixture).tally().redelivered), (30, 4));
    // Its state says which of them it had consumed.
    fixture.start(again(1));
    assert_eq!((pool(&fixture).free(), pool(&fixture).delivered()), (26, 8));
}

#[test]
fn an_epoch_that_only_a_rank_without_a_worker_is_in_keeps_nobody_from_later_ones() {
    let (mut fixture, _) = two();
    taken(&mut fixture, 0, 0, 10);
    let session = session_of(&fixture, 0);
    let take = |fixture: &mut Fixture, epoch| {
        let take = Claim { epoch, ..take_of(fixture, 1, 20) };
        takes(fixture, vec![take]).remove(0).unwrap().pieces.len()
    };
    let kept = EPOCHS_KEPT as u64;
    for epoch in 0..kept {
        assert_eq!(take(&mut fixture, epoch), 2);
        // It leaves each epoch early.
        fixture.report(1, epoch + 1, 0);
    }
    for _ in 0..2 {
        assert_eq!(take(&mut fixture, kept), 0, "rank 0 is served in the first epoch");
    }
    fixture.done(Change::ExpireSessions { sessions: vec![session] });
    assert_eq!(take(&mut fixture, kept), 0);
    assert_eq!(take(&mut fixture, kept), 2);
    assert_eq!(fixture.state.job(JOB).unwrap().sealed.len(), 1);
}
