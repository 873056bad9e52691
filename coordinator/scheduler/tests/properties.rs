//! Any sequence of commands keeps the invariants, and can be replayed from any point with the same
//! result.
#![allow(clippy::unwrap_used)]

mod actions;

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;
use shardfeed_plan::Tail;
use shardfeed_scheduler::{Answer, Applied, Change, Command, Generation, Phase, State, Tally};

use actions::{Action, steps};

/// The state without the clock, the log index and the kept answers.
fn contents(state: &State) -> Value {
    let mut whole: Value = serde_json::from_slice(&state.snapshot()).unwrap();
    let fields = whole.as_object_mut().unwrap();
    for passing in ["applied", "clock_ms", "dedupe"] {
        fields.remove(passing).unwrap();
    }
    whole
}

/// A log: the index, command and result of each entry.
type Log = Vec<(u64, Command, Applied)>;

/// Applies actions, each built for the current state.
fn run(steps: &[(Action, u64, u64, u64)], mut each: impl FnMut(&State, &State, &Applied)) -> Log {
    let mut state = State::new();
    let mut log = vec![];
    for (action, gap, now_ms, request) in steps {
        let request_id = if *request < 12 { format!("q{request}") } else { String::new() };
        let (principal, change) = ("p".to_owned(), action.change(&state));
        let command = Command { request_id, principal, scope: vec![], now_ms: *now_ms, change };
        let before = state.clone();
        let index = state.applied() + 1 + gap;
        let applied = state.apply(index, &command);
        leaves(&before, &command, &applied);
        each(&before, &state, &applied);
        log.push((index, command, applied));
    }
    log
}

fn replay(mut state: State, log: &[(u64, Command, Applied)]) -> State {
    for (index, command, applied) in log {
        assert_eq!(state.apply(*index, command), *applied);
    }
    state
}

/// Checks that a rank that reshards does not stay in the generation that it left.
fn leaves(before: &State, command: &Command, applied: &Applied) {
    let (Change::StartRank(start), Ok(Answer::Started(started))) =
        (&command.change, &applied.answer)
    else {
        return;
    };
    let job = before.job(&start.job).filter(|job| !job.identity.is_dynamic());
    let left = job.and_then(|job| job.generations.get(&started.generation));
    let was_in = left.is_some_and(|left| left.ranks.values().any(|r| r.trainer == start.trainer));
    assert!(applied.repeated || !was_in || !start.intent.is_reshard_of(started.generation));
}

/// Checks the values that never go back.
fn goes_on(before: &State, after: &State) {
    assert!(before.clock_ms() <= after.clock_ms());
    for dataset in before.datasets() {
        let Some(again) = after.dataset(&dataset.name) else {
            assert!(before.jobs().all(|job| job.dataset != dataset.name), "it was in use");
            continue;
        };
        assert!(dataset.attempt <= again.attempt);
        if let Phase::Ready(_) = &dataset.phase {
            assert_eq!(dataset, again, "a ready dataset never changes");
        }
    }
    for job in before.jobs() {
        let Some(again) = after.job(&job.name) else {
            let served = |generation: &Generation| generation.ranks_served();
            let mut usable = job.generations.values().filter(|known| known.superseded_by.is_none());
            assert!(usable.all(|known| served(known) == 0), "a rank was served");
            continue;
        };
        assert_eq!((&job.identity, &job.dataset), (&again.identity, &again.dataset));
        let is_even = again.identity.tail != Tail::Uneven;
        for Generation { left_out, origin, .. } in again.generations.values() {
            assert!(left_out.is_empty() || is_even && left_out.fits(origin.step()));
        }
        assert!(job.opened <= again.opened && job.stale_reports <= again.stale_reports);
        let number = |current: Option<&Generation>| current.map(|current| current.number);
        assert!(number(job.current()) <= number(again.current()));
        for generation in job.generations.values() {
            if let Some(again) = again.generations.get(&generation.number) {
                generation_goes_on(generation, again, after.applied());
            }
        }
    }
}

fn generation_goes_on(before: &Generation, after: &Generation, applied: u64) {
    assert_eq!((&before.origin, &before.run), (&after.origin, &after.run));
    assert_eq!(before.left_out, after.left_out);
    let is_over = before.superseded_by.is_some();
    assert!(!is_over || before.superseded_by == after.superseded_by);
    assert!(
        !is_over || before.ranks.len() == after.ranks.len(),
        "no rank joins a superseded generation"
    );
    for (number, rank) in &before.ranks {
        let again = &after.ranks[number];
        assert_eq!(rank.start, again.start);
        assert!(rank.cursor <= again.cursor);
        assert!(
            !is_over || rank.cursor == again.cursor,
            "a superseded generation does not advance"
        );
        let fencing = |lease: &Option<_>| lease.as_ref().map(fencing_of);
        if fencing(&rank.lease) != fencing(&again.lease) {
            // The lease has ended, or was just granted.
            assert!(fencing(&again.lease).is_none_or(|fencing| fencing == applied && !is_over));
        }
    }
}

fn fencing_of(lease: &shardfeed_scheduler::RankLease) -> u64 {
    lease.fencing
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_commands_keep_the_invariants_and_a_refused_one_changes_nothing(steps in steps(100)) {
        let mut first: BTreeMap<String, Applied> = BTreeMap::new();
        let log = run(&steps, |before, after, applied| {
            assert_eq!(after.check(), Ok(()));
            if applied.answer.is_err() || applied.repeated {
                assert_eq!(contents(before), contents(after));
            }
            goes_on(before, after);
        });
        for (_, command, applied) in log {
            if applied.repeated {
                assert_eq!(applied.answer, first[&command.request_id].answer);
            } else {
                first.insert(command.request_id, applied);
            }
        }
    }

    #[test]
    fn the_same_commands_give_the_same_state_from_any_snapshot(
        steps in steps(80),
        cut in 0usize..80,
    ) {
        let mut whole = State::new();
        let log = run(&steps, |_, after, _| whole = after.clone());
        let (earlier, later) = log.split_at(cut.min(log.len()));
        let first = replay(State::new(), earlier);
        let restored = State::from_snapshot(&first.snapshot()).unwrap();
        prop_assert_eq!(&restored, &first);
        let (second, third) = (replay(first, later), replay(restored, later));
        prop_assert_eq!(whole.snapshot(), second.snapshot());
        prop_assert_eq!(whole.snapshot(), third.snapshot());
    }

    #[test]
    fn every_request_may_be_repeated_at_once(steps in steps(80)) {
        let mut state = State::new();
        for (number, (action, _, now_ms, _)) in steps.iter().enumerate() {
            let (request_id, principal) = (format!("q{number}"), "p".to_owned());
            let change = action.change(&state);
            let command = Command { request_id, principal, scope: vec![], now_ms: *now_ms, change };
            let first = state.apply(state.applied() + 1, &command);
            let before = contents(&state);
            let again = state.apply(state.applied() + 1, &command);
            prop_assert_eq!(again, Applied { repeated: true, ..first });
            prop_assert_eq!(contents(&state), before);
        }
    }

    #[test]
    fn commands_read_back_as_they_were_written(steps in steps(30)) {
        for (_, command, applied) in run(&steps, |_, _, _| {}) {
            let json = serde_json::to_string(&command).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Command>(&json).unwrap(), &command);
            prop_assert_eq!(Command::from_bytes(&command.to_bytes()).unwrap(), command);
            let json = serde_json::to_string(&applied).unwrap();
            prop_assert_eq!(serde_json::from_str::<Applied>(&json).unwrap(), applied);
        }
    }
}

/// Checks the harness: the actions reach the states that they are meant to reach.
#[test]
fn the_actions_reach_what_they_are_for() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for _ in 0..700 {
        let steps = steps(100).new_tree(&mut runner).unwrap().current();
        run(&steps, |before, after, applied| {
            *seen.entry(if applied.answer.is_ok() { "ok" } else { "refused" }).or_default() += 1;
            for job in after.jobs() {
                let (Some(known), Some(current)) = (before.job(&job.name), job.current()) else {
                    continue;
                };
                let opened = known.opened < job.opened;
                let pools = |job: &shardfeed_scheduler::Job| {
                    let pools = job.generations.values().flat_map(|known| known.pools.values());
                    let all: Vec<_> = pools.map(|pool| (pool.next > 0, pool.tally())).collect();
                    let any = |is: &dyn Fn(&Tally) -> bool| all.iter().any(|(_, tally)| is(tally));
                    [
                        all.iter().any(|(is_granted, _)| *is_granted),
                        any(&|tally| tally.free > 0),
                        any(&|tally| tally.in_doubt > 0),
                        any(&|tally| tally.redelivered > 0),
                    ]
                };
                let (was, is) = (pools(known), pools(job));
                let came = |index: usize| !was[index] && is[index];
                let marks = [
                    ("opened", opened),
                    ("moved", opened && current.by_move),
                    ("complete", opened && known.current().is_some_and(Generation::is_complete)),
                    ("sealed", known.sealed != job.sealed),
                    ("stale", known.stale_reports < job.stale_reports),
                    ("implicit", opened && current.implicit),
                    ("granted", came(0)),
                    ("returned", came(1)),
                    ("in doubt", came(2)),
                    ("redelivered", came(3)),
                ];
                for (mark, _) in marks.into_iter().filter(|(_, reached)| *reached) {
                    *seen.entry(mark).or_default() += 1;
                }
            }
        });
    }
    for mark in ["ok", "refused", "opened", "moved", "complete", "sealed", "stale", "implicit"] {
        assert!(seen.get(mark).is_some_and(|times| *times > 25), "{mark}: {seen:?}");
    }
    for mark in ["granted", "returned", "in doubt", "redelivered"] {
        assert!(seen.get(mark).is_some_and(|times| *times > 2), "{mark}: {seen:?}");
    }
}
