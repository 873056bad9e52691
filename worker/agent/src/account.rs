//! Conversions between time breakdowns and their messages.

use shardfeed_pipeline::{Account, Reason, Reasons, Setup, Spent};
use shardfeed_proto::common::v1 as wire;

/// Converts a time breakdown to its message.
pub fn account_to(account: &Account) -> wire::Account {
    let Account { setup, recent, in_epoch, since_start, .. } = account;
    wire::Account {
        setup: Some(setup_to(setup)),
        epoch: account.epoch,
        is_first: account.is_first,
        recent: Some(spent_to(recent)),
        in_epoch: Some(spent_to(in_epoch)),
        since_start: Some(spent_to(since_start)),
        idle_us: account.idle_us,
        waiting_us: account.waiting_us,
        age_us: account.age_us,
    }
}

/// Converts a message to a time breakdown; any numbers are valid.
pub fn account_from(message: &wire::Account) -> Account {
    let wire::Account { setup, recent, in_epoch, since_start, .. } = message;
    let spent = |spent: &Option<wire::Spent>| spent.as_ref().map(spent_from).unwrap_or_default();
    Account {
        setup: setup.as_ref().map(setup_from).unwrap_or_default(),
        epoch: message.epoch,
        is_first: message.is_first,
        idle_us: message.idle_us,
        waiting_us: message.waiting_us,
        age_us: message.age_us,
        recent: spent(recent),
        in_epoch: spent(in_epoch),
        since_start: spent(since_start),
    }
}

/// Generates both conversions from the field names, which are the same on both sides.
macro_rules! alike {
    ($to:ident, $from:ident, $ours:ident { $($field:ident),* $(,)? }) => {
        fn $to(ours: &$ours) -> wire::$ours {
            let $ours { $($field),* } = *ours;
            wire::$ours { $($field),* }
        }

        fn $from(message: &wire::$ours) -> $ours {
            let wire::$ours { $($field),* } = *message;
            $ours { $($field),* }
        }
    };
}

fn setup_to(setup: &Setup) -> wire::Setup {
    let Setup { reasons, .. } = setup;
    wire::Setup {
        cores: setup.cores,
        computing_threads: setup.computing_threads,
        reading_threads: setup.reading_threads,
        prefetch: setup.prefetch,
        prefetch_asked: setup.prefetch_asked,
        budget_bytes: setup.budget_bytes,
        by_place: setup.by_place,
        compressed: setup.compressed,
        remote: setup.remote,
        cached: setup.cached,
        took_over: setup.took_over,
        hold_bytes: setup.hold_bytes,
        prefetch_reason: reason_to(reasons.prefetch).into(),
        reading_reason: reason_to(reasons.reading).into(),
        computing_reason: reason_to(reasons.computing).into(),
    }
}

fn setup_from(message: &wire::Setup) -> Setup {
    Setup {
        cores: message.cores,
        computing_threads: message.computing_threads,
        reading_threads: message.reading_threads,
        prefetch: message.prefetch,
        prefetch_asked: message.prefetch_asked,
        budget_bytes: message.budget_bytes,
        by_place: message.by_place,
        compressed: message.compressed,
        remote: message.remote,
        cached: message.cached,
        took_over: message.took_over,
        hold_bytes: message.hold_bytes,
        reasons: Reasons {
            prefetch: reason_from(message.prefetch_reason()),
            reading: reason_from(message.reading_reason()),
            computing: reason_from(message.computing_reason()),
        },
    }
}

fn reason_to(reason: Reason) -> wire::Reason {
    match reason {
        Reason::Start => wire::Reason::Start,
        Reason::Asked => wire::Reason::Asked,
        Reason::KeptWaiting => wire::Reason::KeptWaiting,
        Reason::LeftToTrainer => wire::Reason::LeftToTrainer,
        Reason::AtMost => wire::Reason::AtMost,
    }
}

fn reason_from(reason: wire::Reason) -> Reason {
    match reason {
        wire::Reason::Start | wire::Reason::Unspecified => Reason::Start,
        wire::Reason::Asked => Reason::Asked,
        wire::Reason::KeptWaiting => Reason::KeptWaiting,
        wire::Reason::LeftToTrainer => Reason::LeftToTrainer,
        wire::Reason::AtMost => Reason::AtMost,
    }
}

alike!(
    spent_to,
    spent_from,
    Spent {
        wall_us,
        batches,
        samples,
        batch_bytes,
        stored_bytes,
        device_bytes,
        fill_us,
        read_wait_us,
        gather_us,
        grant_us,
        room_us,
        confirm_us,
        storage_us,
        inflate_us,
        parse_us,
        write_us,
        compute_us,
        wait_us,
        work_us,
        copied,
        copy_us,
        store_requests,
        store_retries,
        store_bytes,
        cached_bytes,
        suspect_images,
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was() {
        let recent = Spent { wall_us: 1, batches: 2, copy_us: 3, ..Spent::default() };
        let in_epoch = Spent { fill_us: 4, device_bytes: 5, ..Spent::default() };
        let reasons = Reasons {
            prefetch: Reason::AtMost,
            reading: Reason::Asked,
            computing: Reason::LeftToTrainer,
        };
        let setup = Setup {
            cores: 6,
            by_place: true,
            hold_bytes: 13,
            took_over: true,
            reasons,
            ..Setup::default()
        };
        let since_start = Spent { store_requests: 8, cached_bytes: 9, ..Spent::default() };
        let account = Account {
            setup,
            epoch: 7,
            is_first: true,
            idle_us: 10,
            waiting_us: Some(11),
            age_us: 12,
            recent,
            in_epoch,
            since_start,
        };
        assert_eq!(account_from(&account_to(&account)), account);
        assert_eq!(account_from(&wire::Account::default()), Account::default());
    }
}
