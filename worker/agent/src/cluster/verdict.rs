//! Decisions about leases in a heartbeat's response, passed on to the ranks' servers.

use std::sync::Arc;

use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_reader::LeaseUpdate;

use crate::cluster::served::Served;

/// Passes a verdict on to the server of that lease.
pub(super) fn judge(ranks: &[Arc<Served>], verdict: &wire::heartbeat_response::Verdict) {
    let Some(lease) = &verdict.lease else {
        return;
    };
    for served in ranks {
        if served.lease() == *lease {
            let error = WireError::from_message(verdict.error.clone());
            tracing::warn!(job = lease.job, rank = lease.rank, %error, "a lease ended");
            served.lock().verdict = Some(error);
            served.ring(LeaseUpdate::Ended);
        }
    }
}

/// Pauses the ranks of paused jobs and resumes the others.
pub(super) fn pause(ranks: &[Arc<Served>], pauses: &[wire::heartbeat_response::Pause]) {
    for served in ranks {
        let lease = served.lease();
        let paused = pauses.iter().find(|pause| pause.lease.as_ref() == Some(&lease));
        let note = paused.map(|pause| pause.note.clone());
        let mut state = served.lock();
        if state.paused == note {
            continue;
        }
        match &note {
            Some(note) => tracing::warn!(job = lease.job, rank = lease.rank, "{note}"),
            None => tracing::info!(job = lease.job, rank = lease.rank, "a paused job continues"),
        }
        state.paused = note;
    }
}

/// Notifies a rank that samples granted to it are revoked; the rank then requests the details.
pub(super) fn ask_back(ranks: &[Arc<Served>], revocation: &wire::Revocation) {
    let asked = |served: &&Arc<Served>| revocation.lease == Some(served.lease());
    ranks.iter().filter(asked).for_each(|served| served.ring(LeaseUpdate::Revoked));
}
