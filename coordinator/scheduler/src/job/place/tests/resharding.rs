//! Survivors of a run continue in mid-epoch without the lost rank.

use super::*;
use crate::fixture::wrapped;

/// Four ranks of batch size 3 in generation 0, all at step 5.
fn four(run: Option<&str>) -> (Fixture, StartRank) {
    let (mut fixture, start) = two(Tail::Drop);
    let run = run.map(str::to_owned);
    let start = StartRank { run, world_size: 4, intent: at(None, 0), ..start };
    fixture.start_all(&start);
    for rank in 0..4 {
        fixture.report(rank, 0, 5);
    }
    (fixture, start)
}

fn at(state_generation: Option<u64>, steps: u64) -> Intent {
    let segments = vec![Segment { lanes: 2, global_batch: 12, steps: Steps::All(steps) }];
    Intent::Start { state_generation, epoch: 0, segments, is_reshard: false }
}

/// Start of the trainer that was `old` of four, as `new` of three from step `g`.
fn reshard(start: &StartRank, old: u64, new: u64, g: u64) -> StartRank {
    let trainer = format!("t-{old}");
    StartRank { world_size: 3, ..rank(start, new, &trainer, at(Some(0), g)) }
}

#[test]
fn the_first_survivor_opens_the_generation_and_the_others_join_it() {
    for run in [Some("r1"), None] {
        // Rank 1 is lost; the ranks after it move up, to numbers of other trainers.
        for order in [[(0, 0), (2, 1), (3, 2)], [(3, 2), (2, 1), (0, 0)]] {
            let (mut fixture, start) = four(run);
            for (old, new) in order {
                let started = fixture.start(reshard(&start, old, new, 5));
                assert_eq!(started.generation, 1);
                // The answer was lost, and the trainer retries.
                assert_eq!(fixture.start(reshard(&start, old, new, 5)).generation, 1);
            }
            let current = fixture.current();
            assert_eq!((current.number, current.ranks_served()), (1, 3));
            assert!(current.is_complete());
            let trainers = current.ranks.values().map(|rank| rank.trainer.as_str());
            assert_eq!(trainers.collect::<Vec<_>>(), ["t-0", "t-2", "t-3"]);
            let old = &fixture.state.job(JOB).unwrap().generations[&0];
            assert!(old.superseded_by.is_some());
        }
    }
}

#[test]
fn survivors_at_other_steps_conflict_and_both_are_named() {
    let (mut fixture, start) = four(Some("r1"));
    fixture.start(reshard(&start, 0, 0, 5));
    let refusal = fixture.apply(Change::StartRank(reshard(&start, 2, 1, 6))).unwrap_err();
    expect![[r#"
        rank 1 of job `train` starts at epoch 0 step 6, but run `r1`
        was started by rank 0 at epoch 0 step 5; load the same state
        on every rank"#]]
    .assert_eq(&wrapped(&refusal.to_string()));
    assert_eq!(fixture.start(reshard(&start, 2, 1, 5)).generation, 1);
}

#[test]
fn the_lost_rank_is_superseded_when_it_turns_up() {
    let (mut fixture, start) = four(Some("r1"));
    for (old, new) in [(0, 0), (2, 1), (3, 2)] {
        fixture.start(reshard(&start, old, new, 5));
    }
    let late = rank(&start, 1, "t-1", reconnect(0, 0, 5));
    let refusal = fixture.apply(Change::StartRank(late)).unwrap_err();
    assert!(matches!(refusal, crate::Refusal::Superseded { by: 1, .. }), "{refusal}");
}

/// Start of the trainer that is `rank` of four, with four ranks from step `g` on.
fn as_many(start: &StartRank, number: u64, g: u64) -> StartRank {
    let segments = vec![Segment { lanes: 2, global_batch: 12, steps: Steps::All(g) }];
    let state_generation = Some(0);
    let intent = Intent::Start { state_generation, epoch: 0, segments, is_reshard: true };
    rank(start, number, &format!("t-{number}"), intent)
}

#[test]
fn all_ranks_of_a_reshard_to_as_many_leave_wherever_they_are() {
    for run in [Some("r1"), None] {
        // Rank 2 is one step ahead; rank 3 is new, before or after the others.
        for order in [[0, 1, 2, 3], [2, 1, 0, 3], [3, 2, 1, 0], [0, 3, 2, 1]] {
            let (mut fixture, start) = four(run);
            fixture.report(2, 0, 6);
            for number in order {
                let trainer = as_many(&start, number, 5);
                let started = match number {
                    3 => fixture.start(StartRank {
                        trainer: "new".into(),
                        ..rank(&start, 3, "", at(Some(0), 5))
                    }),
                    _ => fixture.start(trainer.clone()),
                };
                assert_eq!(started.generation, 1, "{order:?}");
                if number != 3 {
                    assert_eq!(fixture.start(trainer).generation, 1);
                }
            }
            assert!(fixture.current().is_complete());
        }
    }
}

#[test]
fn ranks_that_were_called_twice_before_they_start_leave_once() {
    // Rank 0 has started in between, or none has.
    for has_started in [true, false] {
        let (mut fixture, start) = four(Some("r1"));
        if has_started {
            assert_eq!(fixture.start(as_many(&start, 0, 5)).generation, 1);
        }
        for number in [1, 0, 2, 3] {
            let mut twice = as_many(&start, number, 5);
            let Intent::Start { state_generation, .. } = &mut twice.intent else { unreachable!() };
            *state_generation = Some(1);
            assert_eq!(fixture.start(twice).generation, 2);
        }
        assert!(fixture.current().is_complete());
    }
}

#[test]
fn a_new_rank_of_more_may_be_the_first() {
    let (mut fixture, start) = four(Some("r1"));
    let of_six = |start: &StartRank, number: u64, trainer: &str, intent: Intent| StartRank {
        world_size: 6,
        ..rank(start, number, trainer, intent)
    };
    let started = fixture.start(of_six(&start, 5, "new", at(Some(1), 5)));
    assert_eq!(started.generation, 2);
    for number in 0..4 {
        let intent = as_many(&start, number, 5).intent;
        let old = of_six(&start, number, &format!("t-{number}"), intent);
        assert_eq!(fixture.start(old).generation, 2);
    }
}

#[test]
fn a_new_rank_with_the_survivors_state_does_not_come_back_to_the_generation_that_they_leave() {
    let (mut fixture, start) = four(Some("r1"));
    // Rank 3 was killed at the common step.
    let lease = fixture.lease(3);
    fixture.done(Change::EndRank { lease, is_told: false, failure: None, position: None });
    // A state that a survivor made after it called reshard() and before it started.
    let new = StartRank { trainer: "new".into(), ..rank(&start, 3, "", at(Some(1), 5)) };
    assert_eq!(fixture.start(new).generation, 2);
    for number in 0..3 {
        assert_eq!(fixture.start(as_many(&start, number, 5)).generation, 2);
    }
    assert!(fixture.current().is_complete());
}
