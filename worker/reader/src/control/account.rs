//! Conversions between time breakdowns and their messages.

use shardfeed_pipeline::{Account, Reason, Reasons, Setup, Spent};
use shardfeed_proto::common::v1 as wire;

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

/// Generates both conversions of the settings whose names are the same on both sides.
macro_rules! setup {
    ($($same:ident),+) => {
        fn setup_to(ours: &Setup) -> wire::Setup {
            let Setup { reasons, $($same),+ } = *ours;
            wire::Setup {
                prefetch_reason: reason_to(reasons.prefetch).into(),
                reading_reason: reason_to(reasons.reading).into(),
                computing_reason: reason_to(reasons.computing).into(),
                $($same),+
            }
        }

        fn setup_from(message: &wire::Setup) -> Setup {
            let reasons = Reasons {
                prefetch: reason_from(message.prefetch_reason()),
                reading: reason_from(message.reading_reason()),
                computing: reason_from(message.computing_reason()),
            };
            Setup { reasons, $($same: message.$same),+ }
        }
    };
}

setup!(
    cores,
    computing_threads,
    reading_threads,
    prefetch,
    prefetch_asked,
    budget_bytes,
    by_place,
    hold_bytes,
    compressed,
    remote,
    cached,
    took_over
);

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

/// Generates both conversions of the counters, whose names are the same on both sides.
macro_rules! spent {
    ($($counter:ident),+) => {
        fn spent_to(ours: &Spent) -> wire::Spent {
            let Spent { $($counter),+ } = *ours;
            wire::Spent { $($counter),+ }
        }

        fn spent_from(message: &wire::Spent) -> Spent {
            let wire::Spent { $($counter),+ } = *message;
            Spent { $($counter),+ }
        }
    };
}

shardfeed_pipeline::with_counters!(spent);

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
