//! Local `Control`: the scheduler in this process, without a log.

use std::sync::{Mutex, MutexGuard, PoisonError};

use shardfeed_plan::LoaderState;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::{Control, ControlError, JobSpec, Lease, LeaseRequest, Waiting};
use shardfeed_scheduler::{
    Answer, Change, Command, CursorReport, DoubtPolicy, JoinSession, LeaseRef, Refusal,
    RegisterJob, SessionId, StartRank, State, Verdict,
};

/// Scheduler of one process. A later start under the same rank fences the earlier one.
#[derive(Debug)]
pub struct LocalControl {
    shared: Mutex<Local>,
}

#[derive(Debug)]
struct Local {
    state: State,
    index: u64,
    session: SessionId,
}

impl Default for LocalControl {
    fn default() -> Self {
        let mut local = Local { state: State::new(), index: 0, session: 0 };
        let join = JoinSession {
            worker: "local".into(),
            host: "local".into(),
            incarnation: "local".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            in_process: true,
            endpoint: String::new(),
            decoders: vec![],
            proved: false,
            data_roots: vec![],
            ttl_ms: u64::from(u32::MAX),
        };
        if let Ok(Answer::Joined { session }) = local.apply(Change::JoinSession(join)) {
            local.session = session;
        }
        Self { shared: Mutex::new(local) }
    }
}

impl Local {
    /// Applies a change. Leases do not expire here, so the time is always 0.
    fn apply(&mut self, change: Change) -> Result<Answer, ControlError> {
        self.index += 1;
        let (request_id, principal) = (String::new(), "local".to_owned());
        let command = Command { request_id, principal, scope: vec![], now_ms: 0, change };
        self.state.apply(self.index, &command).answer.map_err(|refusal| refused(&refusal))
    }

    fn check(&self, lease: &LeaseRef) -> Result<(), ControlError> {
        match self.state.verdict(lease) {
            Verdict::Live => Ok(()),
            Verdict::Superseded { refusal } | Verdict::Fenced { refusal } => Err(refused(&refusal)),
        }
    }
}

impl LocalControl {
    fn lock(&self) -> MutexGuard<'_, Local> {
        // Every change of the state is complete when the lock is released, even after a panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control for LocalControl {
    fn register(&self, job: &JobSpec, _waiting: Waiting<'_>) -> Result<(), ControlError> {
        let JobSpec { name, dataset, identity, .. } = job.clone();
        if identity.is_dynamic() {
            let message = format!(
                "job `{name}` has mode=\"dynamic\", whose samples a coordinator hands out; pass \
                 coordinator=\"host:port\", or use mode=\"deterministic\""
            );
            return Err(WireError::new(ErrorKind::Invalid, message));
        }
        let record_spec_chunks = vec![];
        // In one process the sources have no datasets, and one loader has its job alone.
        let mixture = None;
        let register = RegisterJob { name, identity, dataset, mixture, record_spec_chunks };
        self.lock().apply(Change::RegisterJob(register)).map(drop)
    }

    fn lease(&self, request: &LeaseRequest, _waiting: Waiting<'_>) -> Result<Lease, ControlError> {
        let mut local = self.lock();
        let start = StartRank {
            job: request.job.clone(),
            run: request.run.clone(),
            rank: request.rank,
            world_size: request.world_size,
            limit: request.limit,
            session: local.session,
            trainer: request.trainer.clone(),
            peer: None,
            intent: request.at.intent.clone(),
            left: None,
            left_out: request.at.left_out.clone(),
            mixture: None,
            // The local control grants no samples.
            doubt: DoubtPolicy::default(),
            replaces: None,
        };
        match local.apply(Change::StartRank(start))? {
            Answer::Started(started) => Ok(Lease {
                job: request.job.as_str().into(),
                generation: started.generation,
                rank: request.rank,
                fencing: started.fencing,
                serial: started.fencing,
                mixture: None,
                epoch: started.epoch,
                segments: started.segments,
            }),
            other => Err(WireError::new(ErrorKind::Unspecified, format!("{other:?}"))),
        }
    }

    fn check(&self, lease: &Lease) -> Result<(), ControlError> {
        self.lock().check(&reference(lease))
    }

    fn report(&self, lease: &Lease, epoch: u64, step: u64) -> Result<(), ControlError> {
        let mut local = self.lock();
        let lease = reference(lease);
        local.check(&lease)?;
        let cursors = vec![CursorReport { lease, epoch, step }];
        local.apply(Change::Report { cursors }).map(drop)
    }

    fn release(&self, lease: &Lease, is_told: bool) {
        // A stale lease has nothing to release.
        let _ = self.lock().apply(Change::EndRank {
            lease: reference(lease),
            is_told,
            failure: None,
            position: None,
        });
    }

    fn latest(
        &self,
        job: &str,
        _waiting: Waiting<'_>,
    ) -> Result<Option<LoaderState>, ControlError> {
        self.lock().state.latest_state(job).map_err(|refusal| refused(&refusal))
    }
}

fn reference(lease: &Lease) -> LeaseRef {
    let Lease { job, generation, rank, fencing, .. } = lease;
    LeaseRef { job: job.to_string(), generation: *generation, rank: *rank, fencing: *fencing }
}

fn refused(refusal: &Refusal) -> ControlError {
    let kind = match refusal {
        Refusal::NotFound { .. } => ErrorKind::NotFound,
        Refusal::OtherIdentity { .. } | Refusal::OtherDataset { .. } => ErrorKind::Identity,
        Refusal::Conflict { .. } | Refusal::Disagree { .. } => ErrorKind::Conflict,
        Refusal::Superseded { .. } => ErrorKind::Superseded,
        Refusal::Fenced { .. } => ErrorKind::Fenced,
        Refusal::Replaced { .. } => ErrorKind::Replaced,
        _ => ErrorKind::Invalid,
    };
    WireError::new(kind, refusal.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use shardfeed_pipeline::Schema;
    use shardfeed_plan::{
        Digest, Intent, JobIdentity, Mode, ORDER_VERSION, Segment, Shuffle, Steps, Tail,
    };
    use shardfeed_reader::{Claim, EncodedSpec, StartPosition};

    use super::*;

    fn job(seed: u64) -> JobSpec {
        let content = Digest::from_bytes([0; 32]);
        let shuffle = Shuffle {
            digest: content,
            seed,
            enabled: true,
            window: 1,
            interleave: 1,
            block_length: 1,
        };
        let record_spec = Arc::new(EncodedSpec::raw());
        let (records, decoder) = (record_spec.records(), "none".to_owned());
        let (tail, mode) = (Tail::Drop, Mode::Deterministic);
        let identity = JobIdentity {
            order: ORDER_VERSION,
            content,
            shuffle,
            lanes: 1,
            tail,
            mode,
            records,
            decoder,
        };
        let dataset = String::new();
        let schemas = Arc::new(Schema::raw()).into();
        JobSpec { name: "train".into(), dataset, mixture: None, identity, record_spec, schemas }
    }

    fn request(steps: u64) -> LeaseRequest {
        let segments = vec![Segment { lanes: 1, global_batch: 4, steps: Steps::All(steps) }];
        LeaseRequest {
            job: "train".into(),
            run: None,
            trainer: "one".into(),
            rank: 0,
            world_size: 1,
            limit: None,
            mode: Mode::Deterministic,
            mixture: None,
            at: StartPosition {
                intent: Intent::Start {
                    state_generation: Some(4),
                    epoch: 2,
                    segments: segments.clone(),
                    is_reshard: false,
                },
                left: None,
                left_out: shardfeed_plan::LeftOut::default(),
                epoch: 2,
                segments,
                step: 0,
            },
            doubt: shardfeed_reader::DoubtPolicy::default(),
            peer: None,
        }
    }

    fn always(_: &str) -> bool {
        true
    }

    #[test]
    fn a_later_lease_fences_the_earlier_one() {
        let control = LocalControl::default();
        let error = control.lease(&request(0), &mut always).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        control.register(&job(1), &mut always).unwrap();
        let first = control.lease(&request(3), &mut always).unwrap();
        assert_eq!(first.generation, 5);
        assert_eq!(first.lanes(2), request(3).at.segments);
        assert_eq!(first.lanes(3), request(0).at.segments);
        control.report(&first, 2, 4).unwrap();
        let mut again = request(3);
        again.at.intent = Intent::Reconnect { generation: 5, epoch: 2, step: 4 };
        let second = control.lease(&again, &mut always).unwrap();
        assert!(second.fencing > first.fencing);
        assert_eq!(control.report(&first, 2, 5).unwrap_err().kind, ErrorKind::Fenced);
        assert_eq!(control.check(&first).unwrap_err().kind, ErrorKind::Fenced);
        control.report(&second, 2, 5).unwrap();
    }

    #[test]
    fn another_identity_under_the_same_name_lists_the_fields() {
        let control = LocalControl::default();
        control.register(&job(1), &mut always).unwrap();
        control.register(&job(1), &mut always).unwrap();
        let error = control.register(&job(2), &mut always).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Identity);
        assert!(error.message.contains("seed is 1 there and 2 here"), "{error}");
    }

    #[test]
    fn a_dynamic_job_needs_a_coordinator() {
        let control = LocalControl::default();
        let mut dynamic = job(1);
        dynamic.identity.mode = Mode::Dynamic;
        let error = control.register(&dynamic, &mut always).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert_eq!(
            error.message,
            "job `train` has mode=\"dynamic\", whose samples a coordinator hands out; pass \
             coordinator=\"host:port\", or use mode=\"deterministic\""
        );
        // A control without dynamic mode reports this even for a leased rank.
        control.register(&job(1), &mut always).unwrap();
        let lease = control.lease(&request(0), &mut always).unwrap();
        let wait = Duration::ZERO;
        let take =
            Claim { epoch: 0, started: 0, known: 0, wants: 1, ahead: 0, released: None, wait };
        assert_eq!(control.take(&lease, &take, &mut always).unwrap_err().message, error.message);
    }
}
