//! The local `Control`: one job, one rank, in this process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use shardfeed_agent::{Control, ControlError, JobSpec, Lease, LeaseRequest};
use shardfeed_plan::{Segment, Steps, differences};

/// Grants leases to the loaders of one process; a later grant fences the earlier ones.
#[derive(Debug, Default)]
pub struct LocalControl {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    job: Option<JobSpec>,
    granted: u64,
    lease: Option<(Lease, LeaseRequest)>,
    /// The first step not consumed, as reported.
    cursor: Option<(u64, u64)>,
}

impl LocalControl {
    /// The first (epoch, step) that the current lease's rank has not consumed.
    pub fn cursor(&self) -> Option<(u64, u64)> {
        self.lock().cursor
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn current(&self, lease: &Lease) -> Result<&LeaseRequest, ControlError> {
        match &self.lease {
            Some((current, request)) if current == lease => Ok(request),
            _ => Err(ControlError::Fenced { rank: lease.rank }),
        }
    }
}

impl Control for LocalControl {
    fn register(&self, job: &JobSpec) -> Result<(), ControlError> {
        let mut state = self.lock();
        match &state.job {
            Some(known) if known.identity != job.identity => Err(ControlError::OtherIdentity {
                name: job.name.clone().unwrap_or_default(),
                differences: differences(&known.identity, &job.identity),
            }),
            Some(_) => Ok(()),
            None => {
                state.job = Some(job.clone());
                Ok(())
            }
        }
    }

    fn lease(&self, request: &LeaseRequest) -> Result<Lease, ControlError> {
        let mut state = self.lock();
        if state.job.is_none() {
            return Err(ControlError::NotRegistered);
        }
        state.granted += 1;
        let lease = Lease { fencing: state.granted, rank: request.rank };
        state.lease = Some((lease, request.clone()));
        state.cursor = None;
        Ok(lease)
    }

    fn lanes(&self, lease: &Lease, epoch: u64) -> Result<Vec<Segment>, ControlError> {
        let state = self.lock();
        let request = state.current(lease)?;
        if epoch == request.epoch {
            return Ok(request.segments.clone());
        }
        // A later epoch begins with the lanes and the batch that the last one ended with.
        let last = request.segments.last().cloned();
        Ok(last.into_iter().map(|open| Segment { steps: Steps::All(0), ..open }).collect())
    }

    fn report(&self, lease: &Lease, epoch: u64, step: u64) -> Result<(), ControlError> {
        let mut state = self.lock();
        state.current(lease)?;
        state.cursor = Some((epoch, step));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_plan::{Digest, JobIdentity, Shuffle, Tail};

    use super::*;

    fn job(seed: u64) -> JobSpec {
        let content = Digest::from_bytes([0; 32]);
        let shuffle =
            Shuffle { content, seed, enabled: true, window: 1, interleave: 1, block_length: 1 };
        let (operators, decoder) = ("raw/1".to_owned(), "none".to_owned());
        let identity = JobIdentity { shuffle, lanes: 1, tail: Tail::Drop, operators, decoder };
        JobSpec { name: Some("train".into()), identity }
    }

    fn request(steps: u64) -> LeaseRequest {
        let segments = vec![Segment { lanes: 1, global_batch: 4, steps: Steps::All(steps) }];
        LeaseRequest { rank: 0, world_size: 1, generation: 0, epoch: 2, segments }
    }

    #[test]
    fn a_later_lease_fences_the_earlier_one() {
        let control = LocalControl::default();
        assert_eq!(control.lease(&request(0)), Err(ControlError::NotRegistered));
        control.register(&job(1)).unwrap();
        let first = control.lease(&request(3)).unwrap();
        assert_eq!(control.lanes(&first, 2).unwrap(), request(3).segments);
        assert_eq!(control.lanes(&first, 3).unwrap(), request(0).segments);
        control.report(&first, 2, 4).unwrap();
        assert_eq!(control.cursor(), Some((2, 4)));
        let second = control.lease(&request(3)).unwrap();
        assert!(second.fencing > first.fencing);
        assert_eq!(control.report(&first, 2, 5), Err(ControlError::Fenced { rank: 0 }));
        assert_eq!(control.lanes(&first, 3), Err(ControlError::Fenced { rank: 0 }));
        control.report(&second, 2, 5).unwrap();
    }

    #[test]
    fn another_identity_under_the_same_name_lists_the_fields() {
        let control = LocalControl::default();
        control.register(&job(1)).unwrap();
        control.register(&job(1)).unwrap();
        let error = control.register(&job(2)).unwrap_err().to_string();
        assert!(error.contains("seed is 1 there and 2 here"), "{error}");
    }
}
