//! Assignment of a loader without a cluster: no other process reads its rank, so no lease ends.

use shardfeed_plan::{Intent, LoaderState};
use shardfeed_reader::{Control, ControlError, JobSpec, Lease, LeaseRequest, Waiting};

/// Control of a single loader, which grants each request at the requested position.
pub(crate) struct Alone;

impl Control for Alone {
    fn register(&self, _job: &JobSpec, _waiting: Waiting<'_>) -> Result<(), ControlError> {
        Ok(())
    }

    fn lease(&self, request: &LeaseRequest, _waiting: Waiting<'_>) -> Result<Lease, ControlError> {
        let after = |generation: u64| generation.saturating_add(1);
        let generation = match request.at.intent {
            Intent::Start { state_generation, .. } => state_generation.map_or(0, after),
            Intent::Move { from, .. } => after(from),
            Intent::Reconnect { generation, .. } => generation,
        };
        Ok(Lease {
            job: request.job.as_str().into(),
            generation,
            rank: request.rank,
            fencing: 1,
            serial: 1,
            mixture: None,
            epoch: request.at.epoch,
            segments: request.at.segments.clone(),
        })
    }

    fn check(&self, _lease: &Lease) -> Result<(), ControlError> {
        Ok(())
    }

    fn report(&self, _lease: &Lease, _epoch: u64, _step: u64) -> Result<(), ControlError> {
        Ok(())
    }

    fn release(&self, _lease: &Lease, _is_told: bool) {}

    fn latest(
        &self,
        _job: &str,
        _waiting: Waiting<'_>,
    ) -> Result<Option<LoaderState>, ControlError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shardfeed_plan::{LeftOut, Mode, Segment, Steps};
    use shardfeed_proto::ErrorKind;
    use shardfeed_reader::{Claim, DoubtPolicy, StartPosition};

    use super::*;

    fn lease(intent: Intent) -> Lease {
        let segments = vec![Segment { lanes: 1, global_batch: 4, steps: Steps::All(3) }];
        let at = StartPosition {
            intent,
            left: None,
            left_out: LeftOut::default(),
            epoch: 2,
            segments,
            step: 3,
        };
        let request = LeaseRequest {
            job: "train".into(),
            run: None,
            trainer: "one".into(),
            rank: 0,
            world_size: 1,
            limit: None,
            mode: Mode::Deterministic,
            mixture: None,
            at,
            doubt: DoubtPolicy::default(),
            peer: None,
        };
        Alone.lease(&request, &mut |_| true).unwrap()
    }

    fn start(state_generation: Option<u64>, is_reshard: bool) -> Intent {
        Intent::Start { state_generation, epoch: 2, segments: vec![], is_reshard }
    }

    #[test]
    fn each_start_and_each_move_is_a_generation() {
        let moved = Intent::Move { from: 5, epoch: 2, segments: vec![] };
        let again = Intent::Reconnect { generation: 5, epoch: 2, step: 3 };
        let intents = [start(None, false), start(Some(4), false), start(Some(4), true)];
        let generations = intents.into_iter().chain([moved, again]);
        let generations: Vec<_> = generations.map(|intent| lease(intent).generation).collect();
        assert_eq!(generations, [0, 5, 5, 6, 5]);
        let first = lease(start(None, false));
        let open = |steps| vec![Segment { lanes: 1, global_batch: 4, steps: Steps::All(steps) }];
        assert_eq!((first.lanes(2), first.lanes(3)), (open(3), open(0)));
    }

    #[test]
    fn samples_of_a_dynamic_job_need_a_coordinator() {
        let wait = Duration::ZERO;
        let take = Claim {
            epoch: 0,
            started: 0,
            known: 0,
            wants: 1,
            ahead: 0,
            released: None,
            version: 0,
            wait,
        };
        let error = Alone.take(&lease(start(None, false)), &take, &mut |_| true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert_eq!(
            error.message,
            "job `train` has mode=\"dynamic\", whose samples a coordinator hands out; pass \
             coordinator=\"host:port\", or use mode=\"deterministic\""
        );
    }
}
