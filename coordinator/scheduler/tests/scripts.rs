//! Goldenscripts of the protocol: each file of `tests/scripts` has commands and their effects.
//!
//! `UPDATE_GOLDENFILES=1` writes the effects again. A command whose line begins with `!` is refused.
#![allow(clippy::unwrap_used)]

mod golden;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

/// Declares one test for each script.
macro_rules! scripts {
    ($($name:ident)*) => {
        const SCRIPTS: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() {
            let script = folder().join(stringify!($name));
            goldenscript::run(&mut golden::Script::default(), script).unwrap();
        })*
    };
}

scripts! {
    access_tokens
    cordon_and_drain
    dataset_failure
    dataset_lost_scan
    dataset_program
    dataset_scan
    dynamic_balance
    dynamic_claim
    dynamic_drain
    dynamic_drop
    dynamic_end_of_epoch
    dynamic_grant_order
    dynamic_in_doubt
    dynamic_late_release
    dynamic_late_report
    dynamic_leave_early
    dynamic_lost_rank_ahead
    dynamic_other_world_size
    dynamic_rank_gone
    dynamic_redeliver
    dynamic_restart
    end_of_ranks
    fencing
    job_identity
    job_mixture
    left_out_steps
    limit_and_tails
    pause_and_cancel
    ranks_that_disagree
    reconnect
    request_ids
    reshard
    resume_from_state
    scopes_and_owners
    seal_of_an_epoch
    sessions
    set_epoch
    skipped_records
    start_of_ranks
    supersede
}

#[test]
fn every_script_is_a_test() {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let names: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(names, SCRIPTS.iter().map(|name| (*name).to_owned()).collect());
}
