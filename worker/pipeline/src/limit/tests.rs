use proptest::prelude::*;

use super::*;
use crate::account::Reasons;

const SECOND: u64 = 1_000_000;

fn setup() -> Setup {
    Setup {
        cores: 4,
        computing_threads: 4,
        reading_threads: 8,
        prefetch: 4,
        prefetch_asked: 4,
        budget_bytes: 1 << 30,
        ..Setup::default()
    }
}

/// Ten seconds, of which the trainer waited the given percentage.
fn waiting(percent: u64) -> Spent {
    Spent {
        wall_us: 10 * SECOND,
        batches: 100,
        samples: 3_200,
        stored_bytes: 1 << 30,
        wait_us: percent * SECOND / 10,
        work_us: (100 - percent) * SECOND / 10,
        ..Spent::default()
    }
}

fn found(setup: Setup, spent: Spent) -> Finding {
    let later = Spent { wall_us: 100 * SECOND, ..spent };
    finding(&Account { setup, epoch: 1, recent: spent, in_epoch: later, ..Account::default() })
}

#[test]
fn each_limit_has_a_letter_of_its_own() {
    for (place, limit) in Limit::ALL.into_iter().enumerate() {
        // A new variant must be added to `ALL` at its index in this list.
        let listed = match limit {
            Limit::Unknown => 0,
            Limit::Trainer => 1,
            Limit::Storage => 2,
            Limit::Inflating => 3,
            Limit::Decoding => 4,
            Limit::Gathering => 5,
            Limit::WindowFill => 6,
            Limit::MemoryBudget => 7,
            Limit::Prefetch => 8,
            Limit::HeldBatches => 9,
            Limit::Coordinator => 10,
        };
        assert_eq!(listed, place);
    }
    let letters: std::collections::BTreeSet<_> =
        Limit::ALL.iter().map(|limit| limit.letter()).collect();
    assert_eq!(letters.len(), Limit::ALL.len(), "{letters:?}");
}

#[test]
fn a_trainer_that_does_not_wait_is_the_limit() {
    let spent = Spent { room_us: 9 * SECOND, read_wait_us: SECOND, ..waiting(2) };
    let found = found(setup(), spent);
    assert_eq!((found.limit, found.wait_percent), (Limit::Trainer, 2));
    assert_eq!(
        found.sentence(),
        "the trainer limits this rank: it works 98.0 ms on a batch and waits 2.0 ms (2 %) for the next, \
         which is made in 10.0 ms; make the training step faster; nothing in reading would help"
    );
}

#[test]
fn the_stage_that_planning_spends_its_time_on_is_the_limit() {
    let base = waiting(70);
    let ms = 1_000;
    for (spent, limit) in [
        (Spent { read_wait_us: 8 * SECOND, storage_us: 40 * SECOND, ..base }, Limit::Storage),
        (
            Spent { read_wait_us: 8 * SECOND, inflate_us: 9 * SECOND, storage_us: 5 * ms, ..base },
            Limit::Inflating,
        ),
        (Spent { gather_us: 9 * SECOND, ..base }, Limit::Gathering),
        (Spent { grant_us: 6 * SECOND, gather_us: SECOND, ..base }, Limit::Coordinator),
        (Spent { fill_us: 6 * SECOND, gather_us: SECOND, ..base }, Limit::WindowFill),
        (
            Spent { fill_us: 6 * SECOND, pass_us: 4 * SECOND, inflate_us: 5 * SECOND, ..base },
            Limit::Inflating,
        ),
        (
            Spent { room_us: 9 * SECOND, parse_us: 30 * SECOND, write_us: SECOND, ..base },
            Limit::Decoding,
        ),
        (Spent { room_us: 9 * SECOND, parse_us: 90 * ms, ..base }, Limit::Prefetch),
        (Spent { copied: 90, copy_us: 5 * SECOND, ..base }, Limit::HeldBatches),
    ] {
        assert_eq!(found(setup(), spent).limit, limit, "{spent:?}");
    }
    // Uncompressed shards get no advice to omit compression.
    let spent = Spent { read_wait_us: 8 * SECOND, inflate_us: 9 * SECOND, ..base };
    let advised = |compressed| found(Setup { compressed, ..setup() }, spent).change;
    assert!(advised(true).contains("without compression"));
    assert!(!advised(false).contains("compression"));
}

#[test]
fn a_number_of_batches_ahead_that_was_chosen_is_never_advised_to_be_lowered() {
    let spent = Spent { room_us: 9 * SECOND, parse_us: 90_000, ..waiting(70) };
    let advised = |prefetch, reason| {
        let reasons = Reasons { prefetch: reason, ..Reasons::default() };
        let found = found(Setup { prefetch, prefetch_asked: 0, reasons, ..setup() }, spent);
        assert_eq!(found.limit, Limit::Prefetch);
        found.change
    };
    assert_eq!(advised(2, Reason::Asked), "raise prefetch= above 2, or leave it out");
    assert_eq!(advised(16, Reason::Asked), "raise prefetch= above 16");
    assert_eq!(
        advised(16, Reason::AtMost),
        "set prefetch= to 32 or more, with a larger memory_budget= if it does not hold them, or use a larger \
         batch_size="
    );
    assert_eq!(
        advised(7, Reason::KeptWaiting),
        "ask again in a minute: more batches ahead than 7 are tried as it runs"
    );
    // The time goes to threads that wait for shared cores, not to too few batches.
    let busy = Spent { compute_us: 38 * SECOND, ..spent };
    assert_eq!(found(setup(), busy).limit, Limit::Decoding);
}

#[test]
fn a_budget_that_is_too_small_is_named() {
    let base = Spent { room_us: 9 * SECOND, ..waiting(70) };
    let by_place = Setup { by_place: true, ..setup() };
    let spent = Spent { storage_us: 20 * SECOND, parse_us: SECOND, ..base };
    let by_place = Setup { hold_bytes: 3 << 30, ..by_place };
    let short = found(by_place, spent);
    assert_eq!(short.limit, Limit::MemoryBudget);
    assert_eq!(
        short.change,
        "raise memory_budget= to 3222 MB or more, or use a smaller shuffle_window="
    );
    // The budget is mentioned also if something else is the bottleneck.
    let other = found(by_place, waiting(2));
    assert_eq!(other.limit, Limit::Trainer);
    assert!(other.because.ends_with("do not fit into 1073 MB, but into 3221 MB"), "{other:?}");
    let few = Setup { prefetch: 1, ..setup() };
    assert_eq!(found(few, base).limit, Limit::MemoryBudget);
}

#[test]
fn a_first_epoch_from_the_device_is_told_from_a_warm_one() {
    let recent = Spent {
        read_wait_us: 8 * SECOND,
        storage_us: 40 * SECOND,
        device_bytes: 1 << 30,
        ..waiting(70)
    };
    let account =
        Account { setup: setup(), is_first: true, recent, in_epoch: recent, ..Account::default() };
    let cold = finding(&account);
    assert!(cold.is_cold && cold.sentence().contains("the first epoch"), "{cold:?}");
    let warm = finding(&Account { recent: Spent { device_bytes: 0, ..recent }, ..account });
    assert!(!warm.is_cold && !warm.sentence().contains("first epoch"), "{warm:?}");
    // Storage that is slow in every epoch is not reported as cold.
    assert!(!finding(&Account { is_first: false, ..account }).is_cold);
}

#[test]
fn a_first_epoch_from_a_store_is_cold_and_one_from_the_cache_is_not() {
    let recent = Spent {
        read_wait_us: 8 * SECOND,
        storage_us: 40 * SECOND,
        store_bytes: 1 << 30,
        ..waiting(70)
    };
    let remote = Setup { remote: true, cached: true, ..setup() };
    let (setup, is_first) = (remote, true);
    let account = Account { setup, is_first, recent, in_epoch: recent, ..Account::default() };
    let cold = finding(&account);
    assert!(cold.is_cold && cold.sentence().contains("as far as this host keeps them"), "{cold:?}");
    let setup = Setup { cached: false, ..remote };
    assert!(finding(&Account { setup, ..account }).sentence().contains("cache_bytes= keeps them"));
    let kept = Spent { store_bytes: 0, cached_bytes: 1 << 30, ..recent };
    assert!(!finding(&Account { recent: kept, ..account }).is_cold);
}

/// No batch for 95 s, of which the trainer has waited 94 s for one.
fn stuck(spent: Spent) -> Account {
    let recent = Spent { wall_us: 95 * SECOND, wait_us: 94 * SECOND, work_us: 0, ..spent };
    let waiting_us = Some(94 * SECOND);
    Account { setup: setup(), recent, idle_us: 95 * SECOND, waiting_us, ..Account::default() }
}

#[test]
fn a_batch_that_does_not_come_is_told_by_what_it_lacks() {
    let none = Spent::default();
    for (spent, limit) in [
        (Spent { read_wait_us: 93 * SECOND, ..none }, Limit::Storage),
        (
            Spent { read_wait_us: 93 * SECOND, stored_bytes: 9, inflate_us: 5, ..none },
            Limit::Inflating,
        ),
        (Spent { fill_us: 93 * SECOND, ..none }, Limit::Storage),
        (Spent { fill_us: 93 * SECOND, stored_bytes: 9, ..none }, Limit::WindowFill),
        (
            Spent { fill_us: 93 * SECOND, pass_us: 50 * SECOND, stored_bytes: 9, ..none },
            Limit::Inflating,
        ),
        (Spent { grant_us: 93 * SECOND, ..none }, Limit::Coordinator),
        (Spent { room_us: 94 * SECOND, confirm_us: 93 * SECOND, ..none }, Limit::Coordinator),
        (Spent { room_us: 93 * SECOND, ..none }, Limit::Decoding),
    ] {
        let found = finding(&stuck(spent));
        assert_eq!((found.limit, found.wait_percent), (limit, 100), "{spent:?}");
        let known = found.because.starts_with("the trainer has waited 94.0 s for its next batch")
            || limit == Limit::WindowFill;
        assert!(known, "{found:?}");
    }
    let account = stuck(Spent { read_wait_us: 93 * SECOND, ..none });
    assert_eq!(
        finding(&account.aged(30 * SECOND)).sentence(),
        "storage limits this rank: the trainer has waited 94.0 s for its next batch, and 0 \
         bytes of shards came in that time; see whether the storage answers; requests that a \
         store refuses or leaves open are tried again for SHARDFEED_STORE_RETRY_SECONDS (that \
         was 30.0 s ago)"
    );
}

#[test]
fn a_trainer_that_does_not_ask_is_told_from_one_that_waits() {
    let account = |idle_us, waiting_us| {
        let recent = Spent { read_wait_us: 8 * SECOND, storage_us: 40 * SECOND, ..waiting(70) };
        Account { setup: setup(), recent, idle_us, waiting_us, ..Account::default() }
    };
    let found = finding(&account(95 * SECOND, Some(0)));
    assert_eq!(found.limit, Limit::Trainer);
    assert_eq!(found.because, "it took its last batch 95.0 s ago and has not asked for the next");
    // A shorter pause, or a trainer that does not report waits: diagnosed by its last batches.
    assert_eq!(finding(&account(9 * SECOND, Some(0))).limit, Limit::Storage);
    assert_eq!(finding(&account(95 * SECOND, None)).limit, Limit::Storage);
}

#[test]
fn before_the_first_batch_it_says_what_is_waited_for() {
    let filling = Spent { wall_us: SECOND, fill_us: SECOND, ..Spent::default() };
    let account = |recent| Account { recent, in_epoch: recent, ..Account::default() };
    assert_eq!(finding(&account(filling)).limit, Limit::WindowFill);
    let granting = Spent { wall_us: SECOND, grant_us: SECOND, ..Spent::default() };
    assert_eq!(finding(&account(granting)).limit, Limit::Coordinator);
    assert_eq!(finding(&account(Spent::default())).limit, Limit::Unknown);
}

proptest! {
    #[test]
    fn any_sums_have_a_finding(sums in prop::collection::vec(any::<u32>(), Spent::COUNTERS.len()), waits in any::<Option<u32>>(), first in any::<bool>()) {
        let text = serde_json::to_value(Spent::default()).unwrap();
        let names = text.as_object().unwrap().keys().cloned();
        let spent = names.zip(sums.into_iter().map(serde_json::Value::from)).collect();
        let spent: Spent = serde_json::from_value(serde_json::Value::Object(spent)).unwrap();
        let account = Account {
            setup: setup(), epoch: 3, is_first: first, recent: spent, in_epoch: spent, since_start: spent,
            idle_us: spent.wall_us, waiting_us: waits.map(u64::from), age_us: spent.wait_us,
        };
        let found = finding(&account);
        prop_assert!(found.wait_percent <= 100);
        prop_assert!(!found.sentence().contains('\n'));
    }
}
