use expect_test::expect;
use shardfeed_plan::{EPOCHS, Intent, Segment, Steps, Tail};

use crate::fixture::{Fixture, JOB, first_of_two, fresh, from, segment};
use crate::{Change, RankCursor, StartRank};

fn two(tail: Tail) -> (Fixture, StartRank) {
    let (fixture, session) = Fixture::with_job(tail);
    (fixture, first_of_two(session))
}

/// Both ranks run in generation 0.
fn running() -> (Fixture, StartRank) {
    let (mut fixture, start) = two(Tail::Drop);
    fixture.start_all(&start);
    (fixture, start)
}

fn rank(start: &StartRank, rank: u64, trainer: &str, intent: Intent) -> StartRank {
    StartRank { rank, trainer: trainer.to_owned(), intent, ..start.clone() }
}

fn of_run(run: &str, start: StartRank) -> StartRank {
    StartRank { run: Some(run.to_owned()), ..start }
}

fn reconnect(generation: u64, epoch: u64, step: u64) -> Intent {
    Intent::Reconnect { generation, epoch, step }
}

fn move_to(from: u64, epoch: u64) -> Intent {
    Intent::Move { from, epoch, segments: vec![segment(0)] }
}

fn cursor(epoch: u64, step: u64) -> RankCursor {
    RankCursor { epoch, step }
}

mod first {
    use super::*;

    #[test]
    fn the_first_start_with_a_token_opens_the_generation_after_it() {
        let (mut fixture, start) = two(Tail::Drop);
        let started = fixture.start(rank(&start, 1, "t", from(6, 3, 5)));
        assert_eq!((started.generation, started.epoch), (7, 3));
        assert_eq!(started.segments, [segment(5)]);
        let current = fixture.current();
        assert_eq!((current.parent, current.opened_by), (None, 1));
    }

    #[test]
    fn a_run_without_a_name_goes_by_its_generation() {
        let (mut fixture, start) = two(Tail::Drop);
        let nameless = StartRank { run: None, ..rank(&start, 0, "t", from(6, 3, 5)) };
        assert_eq!(fixture.start(nameless).run, "implicit-7");
    }

    #[test]
    fn a_start_needs_a_session_a_job_and_sound_numbers() {
        let (mut fixture, start) = two(Tail::Drop);
        let mut refused = |start: StartRank, says| fixture.refused(Change::StartRank(start), says);
        refused(
            StartRank { session: 99, ..start.clone() },
            expect![[r#"
            session 99 is no longer valid: it ended long ago, or never
            was; join again"#]],
        );
        refused(
            StartRank { job: "other".into(), ..start.clone() },
            expect!["there is no job `other`"],
        );
        refused(
            StartRank { rank: 2, ..start.clone() },
            expect!["rank=2 is not in 0..2: ranks count from 0 to world_size - 1"],
        );
        refused(
            StartRank { world_size: 0, ..start.clone() },
            expect!["world_size=0 is not in 1..=1048576"],
        );
        refused(
            StartRank { world_size: 3, ..start.clone() },
            expect!["world_size=3 does not divide the global batch of 8"],
        );
        refused(
            StartRank { world_size: 1 << 40, ..start.clone() },
            expect!["world_size=1099511627776 is not in 1..=1048576"],
        );
        refused(
            StartRank { trainer: String::new(), ..start.clone() },
            expect!["the trainer's id is empty"],
        );
        refused(
            of_run("a\nb", start),
            expect![[r#"the run "a\nb" has characters that cannot be printed"#]],
        );
    }

    #[test]
    fn the_last_epoch_is_one_to_start_in() {
        let (mut fixture, start) = two(Tail::Drop);
        let (epoch, segments) = (EPOCHS - 1, vec![segment(0)]);
        let intent = Intent::Start { state_generation: None, epoch, segments, is_reshard: false };
        assert_eq!(fixture.start(StartRank { intent, ..start }).epoch, EPOCHS - 1);
    }

    #[test]
    fn a_start_needs_a_sound_position() {
        let (mut fixture, start) = two(Tail::Drop);
        let mut refused = |start: StartRank, says| fixture.refused(Change::StartRank(start), says);
        let with = |segments: Vec<Segment>, epoch| StartRank {
            intent: Intent::Start { state_generation: None, epoch, segments, is_reshard: false },
            ..start.clone()
        };
        refused(with(vec![], 0), expect!["a start has at least one segment"]);
        refused(
            with(vec![segment(0)], u64::MAX),
            expect![[r#"
            epoch must be at least 0 and below 2**48, not
            18446744073709551615"#]],
        );
        refused(
            with(vec![segment(0)], EPOCHS),
            expect!["epoch must be at least 0 and below 2**48, not 281474976710656"],
        );
        refused(
            with(vec![segment(1); 17], 0),
            expect![[r#"
            lanes or the global batch changed more than 16 times in this
            epoch; keep the global batch, or start the next epoch with
            set_epoch()"#]],
        );
        refused(
            with(vec![segment(u64::MAX); 2], 0),
            expect!["more than 4611686018427387904 steps of an epoch were taken"],
        );
        let odd = Segment { lanes: 3, ..segment(0) };
        refused(
            with(vec![odd], 0),
            expect![[r#"
            lanes=3 does not divide the global batch of 8 (batch_size 4 x
            world_size 2); use batch_size=3 or 6, or one of lanes=1, 2,
            4, 8"#]],
        );
        let ranks = Segment { steps: Steps::PerRank(vec![1, 2]), ..segment(0) };
        refused(
            with(vec![ranks, segment(0)], 0),
            expect![[r#"only tail="uneven" lets ranks stop at different steps"#]],
        );
        refused(
            rank(&start, 0, "t", from(u64::MAX, 0, 0)),
            expect!["generation 18446744073709551615 is beyond every generation"],
        );
    }

    #[test]
    fn only_closed_segments_of_uneven_jobs_have_steps_by_rank() {
        let (mut fixture, start) = two(Tail::Uneven);
        let ranks = Segment { steps: Steps::PerRank(vec![1, 2]), ..segment(0) };
        let with = |segments: Vec<Segment>| StartRank {
            intent: Intent::Start {
                state_generation: Some(0),
                epoch: 0,
                segments,
                is_reshard: false,
            },
            ..start.clone()
        };
        fixture.refused(
            Change::StartRank(with(vec![ranks.clone()])),
            expect![[r#"only tail="uneven" lets ranks stop at different steps"#]],
        );
        fixture.start(with(vec![ranks, segment(0)]));
        assert_eq!(fixture.cursor(0), cursor(0, 2));
    }
}

mod together {
    use super::*;

    #[test]
    fn ranks_of_an_uneven_job_join_with_their_own_steps() {
        let (mut fixture, start) = two(Tail::Uneven);
        fixture.start(rank(&start, 0, "t0", from(0, 1, 7)));
        let started = fixture.start(rank(&start, 1, "t1", from(0, 1, 4)));
        assert_eq!((started.generation, started.segments), (1, vec![segment(4)]));
        assert_eq!((fixture.cursor(0), fixture.cursor(1)), (cursor(1, 7), cursor(1, 4)));
        let elsewhere = of_run("r2", rank(&start, 0, "t0", from(1, 1, 7)));
        fixture.start(elsewhere);
        let epoch = of_run("r2", rank(&start, 1, "t1", from(1, 2, 0)));
        fixture.refused(
            Change::StartRank(epoch),
            expect![[r#"
            rank 1 of job `train` starts at epoch 2 step 0, but run `r2`
            was started by rank 0 at epoch 1 step 7; load the same state
            on every rank"#]],
        );
    }

    #[test]
    fn a_misfit_opens_a_generation_once_nobody_is_served_any_more() {
        for misfit in [from(0, 5, 1), fresh()] {
            let (mut fixture, start) = two(Tail::Drop);
            fixture.start(rank(&start, 0, "t0", from(0, 2, 40)));
            fixture.done(Change::EndRank {
                lease: fixture.lease(0),
                is_told: true,
                failure: None,
                position: None,
            });
            let started = fixture.start(rank(&start, 1, "t1", misfit));
            assert_eq!((started.generation, started.run.as_str()), (2, "r1"));
        }
        let (mut fixture, start) = two(Tail::Drop);
        fixture.start(start.clone());
        fixture.done(Change::ExpireSessions { sessions: vec![start.session] });
        let session = fixture.join("v");
        let larger = StartRank { world_size: 4, session, ..rank(&start, 1, "t1", fresh()) };
        assert_eq!(fixture.start(larger).generation, 1);
    }
}

mod again {
    use super::*;

    #[test]
    fn runs_with_and_without_a_name_are_different_runs() {
        let (mut fixture, start) = running();
        let nameless = fixture.start(StartRank { run: None, ..start.clone() });
        assert_eq!((nameless.generation, nameless.run.as_str()), (1, "implicit-1"));
        let named = fixture.start(of_run("implicit-1", start));
        assert_eq!((named.generation, named.run.as_str()), (2, "implicit-1"));
        assert!(!fixture.current().implicit);
    }

    #[test]
    fn numbers_grow_past_the_token_and_the_last_generation() {
        let (mut fixture, start) = running();
        let from_later = of_run("r2", rank(&start, 0, "u", from(40, 0, 5)));
        assert_eq!(fixture.start(from_later).generation, 41);
        assert_eq!(fixture.current().parent, None);
        let from_earlier = of_run("r3", rank(&start, 0, "v", from(0, 0, 5)));
        assert_eq!(fixture.start(from_earlier).generation, 42);
        assert_eq!(fixture.current().parent, Some(0));
    }

    #[test]
    fn another_trainer_where_the_last_one_ended_in_a_later_epoch_goes_on_too() {
        let (mut fixture, start) = running();
        fixture.report(1, 3, 2);
        fixture.done(Change::EndRank {
            lease: fixture.lease(1),
            is_told: true,
            failure: None,
            position: None,
        });
        let started = fixture.start(rank(&start, 1, "again", from(0, 3, 2)));
        assert_eq!((started.generation, started.epoch), (0, 3));
        assert_eq!(started.segments, [segment(0)]);
    }

    #[test]
    fn the_same_step_with_another_history_is_not_the_live_cursor() {
        let (mut fixture, start) = running();
        fixture.report(1, 0, 12);
        let segments = vec![segment(10), segment(2)];
        let other =
            Intent::Start { state_generation: Some(0), epoch: 0, segments, is_reshard: false };
        assert_eq!(fixture.start(rank(&start, 1, "again", other)).generation, 1);
    }

    #[test]
    fn a_rank_that_comes_back_with_other_numbers_opens_a_generation() {
        let (mut fixture, start) = running();
        let larger = StartRank { world_size: 4, ..rank(&start, 1, "again", from(0, 0, 0)) };
        assert_eq!(fixture.start(larger).generation, 1);
        assert_eq!(fixture.current().world_size, 4);
    }

    #[test]
    fn a_loader_that_loads_its_own_position_stays_and_any_other_opens_a_generation() {
        let (mut fixture, start) = running();
        fixture.report(1, 0, 12);
        let load = |steps| rank(&start, 1, "t-1", from(0, 0, steps));
        assert_eq!(fixture.start(load(12)).generation, 0);
        assert_eq!(fixture.start(load(11)).generation, 1);
        let first = rank(&start, 0, "t-0", from(0, 0, 11));
        assert_eq!(fixture.start(first).generation, 1);
    }
}

mod nameless {
    use super::*;

    fn nameless() -> (Fixture, StartRank) {
        let (fixture, start) = two(Tail::Drop);
        (fixture, StartRank { run: None, ..start })
    }

    #[test]
    fn an_open_run_conflicts_as_a_named_one() {
        let (mut fixture, start) = nameless();
        fixture.start(start.clone());
        let elsewhere = rank(&start, 1, "t1", from(0, 0, 1));
        fixture.refused(
            Change::StartRank(elsewhere),
            expect![[r#"
            rank 1 of job `train` starts at epoch 0 step 1, but run
            `implicit-0` was started by rank 0 at epoch 0 step 0; load
            the same state on every rank"#]],
        );
    }

    #[test]
    fn a_rank_that_starts_again_after_all_joined_comes_back() {
        let (mut fixture, start) = nameless();
        fixture.start_all(&start);
        fixture.report(1, 0, 3);
        fixture.done(Change::EndRank {
            lease: fixture.lease(1),
            is_told: true,
            failure: None,
            position: None,
        });
        let again = |trainer, steps| rank(&start, 1, trainer, from(0, 0, steps));
        assert_eq!(fixture.start(again("u", 3)).generation, 0);
        let opened = fixture.start(again("v", 2));
        assert_eq!((opened.generation, opened.run.as_str()), (1, "implicit-0"));
        assert_eq!(fixture.start(rank(&start, 0, "v", from(0, 0, 2))).generation, 1);
    }

    #[test]
    fn a_rank_beyond_a_closed_run_opens_another() {
        let (mut fixture, start) = nameless();
        fixture.start_all(&start);
        let beyond = StartRank { world_size: 4, ..rank(&start, 3, "u", from(0, 0, 2)) };
        let opened = fixture.start(beyond);
        assert_eq!((opened.generation, opened.run.as_str()), (1, "implicit-1"));
    }
}

mod reconnecting {
    use super::*;

    fn back(start: &StartRank, generation: u64, epoch: u64, step: u64) -> StartRank {
        rank(start, 1, "t-1", reconnect(generation, epoch, step))
    }

    #[test]
    fn in_the_first_epoch_the_segments_are_those_of_the_start() {
        let (mut fixture, start) = two(Tail::Drop);
        fixture.start_all(&StartRank { intent: from(0, 2, 40), ..start.clone() });
        let started = fixture.start(back(&start, 1, 2, 45));
        assert_eq!((started.epoch, started.segments), (2, vec![segment(40)]));
    }

    #[test]
    fn a_position_before_the_known_one_is_refused() {
        let (mut fixture, start) = running();
        fixture.report(1, 1, 12);
        fixture.refused(
            Change::StartRank(back(&start, 0, 1, 11)),
            expect![[r#"
            rank 1 of job `train` asks for epoch 1 step 11, but it has
            already consumed everything before epoch 1 step 12"#]],
        );
        fixture.refused(
            Change::StartRank(back(&start, 0, u64::MAX, 0)),
            expect![[r#"
            epoch must be at least 0 and below 2**48, not
            18446744073709551615"#]],
        );
    }

    #[test]
    fn what_is_not_known_is_over_if_something_later_is() {
        let (mut fixture, start) = running();
        fixture.refused(
            Change::StartRank(back(&start, 9, 0, 12)),
            expect!["job `train` has no generation 9; start from a state"],
        );
        let another = rank(&start, 1, "u", reconnect(0, 0, 12));
        fixture.refused(
            Change::StartRank(another),
            expect![[r#"
            rank 1 of job `train` was started again in generation 0; this
            loader no longer speaks for it"#]],
        );
        fixture.start(of_run("r2", rank(&start, 0, "u", from(20, 0, 9))));
        fixture.refused(
            Change::StartRank(back(&start, 9, 0, 12)),
            expect![[r#"
            generation 9 of job `train` ended: rank 0 started again at
            epoch 0 step 9 as generation 21; restart this rank from the
            same state"#]],
        );
        let missing = rank(&start, 1, "u", reconnect(21, 0, 12));
        fixture.refused(
            Change::StartRank(missing),
            expect![[r#"
            rank 1 of job `train` has not joined generation 21; start
            from a state"#]],
        );
    }

    #[test]
    fn a_reconnect_with_another_world_size_disagrees() {
        let (mut fixture, start) = running();
        let larger = StartRank { world_size: 4, ..back(&start, 0, 0, 12) };
        fixture.refused(
            Change::StartRank(larger),
            expect![[r#"
            rank 1 of job `train` has world_size=4, but run `r1` was
            started with world_size=2; start every rank with the same
            value"#]],
        );
    }

    #[test]
    fn a_rank_that_ended_may_come_back() {
        let (mut fixture, start) = running();
        fixture.done(Change::EndRank {
            lease: fixture.lease(1),
            is_told: true,
            failure: None,
            position: None,
        });
        assert!(fixture.current().ranks[&1].ended);
        fixture.start(back(&start, 0, 0, 4));
        assert!(!fixture.current().ranks[&1].ended);
    }
}

mod moving {
    use super::*;

    #[test]
    fn a_move_elsewhere_or_another_time_opens_another_generation() {
        let (mut fixture, start) = running();
        assert_eq!(fixture.start(rank(&start, 0, "t-0", move_to(0, 0))).generation, 1);
        assert_eq!(fixture.start(rank(&start, 0, "t-0", move_to(1, 0))).generation, 2);
        assert_eq!(fixture.start(rank(&start, 1, "t-1", move_to(0, 3))).generation, 3);
    }

    #[test]
    fn a_move_whose_answer_was_lost_leads_to_the_same_generation() {
        let (mut fixture, start) = running();
        let move_on = rank(&start, 0, "t-0", move_to(0, 0));
        let first = fixture.start(move_on.clone());
        let second = fixture.start(move_on.clone());
        assert_eq!((first.generation, second.generation), (1, 1));
        assert!(second.fencing > first.fencing);
        fixture.report(0, 0, 1);
        assert_eq!(fixture.start(move_on).generation, 2);
    }

    #[test]
    fn only_the_trainer_that_holds_the_rank_moves_it() {
        let (mut fixture, start) = running();
        fixture.refused(
            Change::StartRank(rank(&start, 0, "u", move_to(0, 0))),
            expect![[r#"
            rank 0 of job `train` was started again in generation 0; this
            loader no longer speaks for it"#]],
        );
        fixture.refused(
            Change::StartRank(rank(&start, 0, "t-0", move_to(7, 0))),
            expect!["job `train` has no generation 7; start from a state"],
        );
    }

    #[test]
    fn a_move_from_a_superseded_generation_is_superseded() {
        let (mut fixture, start) = running();
        fixture.start(rank(&start, 0, "t-0", move_to(0, 0)));
        fixture.start(of_run("r2", rank(&start, 0, "u", fresh())));
        for from in [0, 1] {
            let trainer = format!("t-{}", 1 - from);
            let late = rank(&start, 1 - from, &trainer, move_to(from, 0));
            let refusal = fixture.apply(Change::StartRank(late)).unwrap_err();
            assert!(refusal.to_string().contains("as generation 2"), "{refusal}");
        }
    }

    #[test]
    fn a_rank_that_starts_after_others_moved_starts_with_them() {
        let (mut fixture, start) = running();
        fixture.start(rank(&start, 0, "t-0", move_to(0, 0)));
        let elsewhere = rank(&start, 1, "u", from(0, 0, 9));
        fixture.refused(
            Change::StartRank(elsewhere),
            expect![[r#"
            rank 1 of job `train` starts at epoch 0 step 9, but run `r1`
            was started by rank 0 at epoch 0 step 0; load the same state
            on every rank"#]],
        );
        assert_eq!(fixture.start(rank(&start, 1, "u", fresh())).generation, 1);
    }
}

mod kept {
    use super::*;
    use crate::{GENERATIONS_KEPT, RANKS_KEPT, RUNS_KEPT};

    #[test]
    fn the_last_generations_are_kept_and_the_others_are_told_to_start_again() {
        let (mut fixture, start) = running();
        for run in 2..100 {
            fixture.start(of_run(&format!("r{run}"), start.clone()));
        }
        let job = fixture.state.job(JOB).unwrap();
        assert_eq!(job.generations.len(), 1 + GENERATIONS_KEPT);
        assert_eq!(job.opened, 99);
        let forgotten = rank(&start, 1, "t-1", reconnect(0, 0, 12));
        fixture.refused(
            Change::StartRank(forgotten),
            expect![[r#"
            generation 0 of job `train` ended: rank 0 started again at
            epoch 0 step 0 as generation 98; restart this rank from the
            same state"#]],
        );
    }

    #[test]
    fn generations_that_all_ranks_moved_from_are_forgotten_too() {
        let (mut fixture, start) = running();
        fixture.start(rank(&start, 0, "t-0", move_to(0, 0)));
        fixture.start(rank(&start, 1, "t-1", move_to(0, 0)));
        for from in 1..100 {
            fixture.start(rank(&start, 0, "t-0", move_to(from, 0)));
        }
        let job = fixture.state.job(JOB).unwrap();
        // Rank 1 is in generation 1 still.
        assert_eq!((job.generations.len(), job.opened), (2 + GENERATIONS_KEPT, 101));
        assert!(!job.generations.contains_key(&0));
        let again = rank(&start, 1, "t-1", move_to(0, 0));
        fixture.refused(
            Change::StartRank(again),
            expect![[r#"
            generation 0 of job `train` ended: rank 0 started again at
            epoch 0 step 0 as generation 100; restart this rank from the
            same state"#]],
        );
    }

    #[test]
    fn a_generation_is_kept_until_its_last_rank_moves_on() {
        let (mut fixture, start) = running();
        let lease = fixture.lease(1);
        for from in 0..100 {
            fixture.start(rank(&start, 0, "t-0", move_to(from, 0)));
        }
        assert_eq!(fixture.state.verdict(&lease), Ok(()));
        assert_eq!(fixture.state.session(start.session).unwrap().leases.len(), 2);
        // Neither does it lose its generation while no worker serves it.
        fixture.done(Change::ExpireSessions { sessions: vec![start.session] });
        let session = fixture.join("w");
        let start = StartRank { session, ..start };
        fixture.start(rank(&start, 0, "t-0", move_to(100, 0)));
        let back = fixture.start(rank(&start, 1, "t-1", reconnect(0, 0, 0)));
        assert_eq!(back.generation, 0);
        let last = fixture.start(rank(&start, 1, "t-1", move_to(0, 0))).generation;
        assert_eq!(last, 1 + 101);
    }

    #[test]
    fn large_generations_are_kept_only_while_their_ranks_move() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let world_size = 1 + RANKS_KEPT;
        let global_batch = 2 * world_size;
        let segments = vec![Segment { lanes: 2, global_batch, steps: Steps::All(0) }];
        let intent = Intent::Start {
            state_generation: None,
            epoch: 0,
            segments: segments.clone(),
            is_reshard: false,
        };
        let start = StartRank { world_size, intent, ..first_of_two(session) };
        for rank in 0..world_size {
            let command = fixture.command(Change::StartRank(StartRank { rank, ..start.clone() }));
            fixture.state.apply(fixture.state.applied() + 1, &command).answer.unwrap();
        }
        let kept = |fixture: &Fixture| -> Vec<u64> {
            fixture.state.job(JOB).unwrap().generations.keys().copied().collect()
        };
        fixture.start(StartRank {
            intent: Intent::Move { from: 0, epoch: 0, segments },
            ..start.clone()
        });
        assert_eq!(kept(&fixture), [0, 1]);
        fixture.start(of_run("r2", start));
        assert_eq!(kept(&fixture), [1, 2]);
        assert_eq!(fixture.state.session(session).unwrap().leases.len(), 2);
    }

    #[test]
    fn runs_are_remembered_up_to_a_bound() {
        let (mut fixture, start) = two(Tail::Drop);
        for run in 0..=RUNS_KEPT {
            fixture.start(of_run(&format!("r{run}"), start.clone()));
        }
        let job = fixture.state.job(JOB).unwrap();
        assert_eq!((job.seen("r0"), job.seen("r1")), (None, Some(1)));
    }
}

mod resharding;
