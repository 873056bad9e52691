//! Leases that a worker grants while no coordinator answers.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use shardfeed_agent::{Coordinator, Credentials, GrpcControl, Session, WorkerInfo};
use shardfeed_plan::{Intent, LeftOut, Mode, Segment, Steps};
use shardfeed_proto::ErrorKind;
use shardfeed_reader::{Control, DoubtPolicy, Lease, LeaseRequest, StartPosition};

/// A worker whose coordinator cannot be reached.
fn alone() -> GrpcControl {
    let (address, patience) = ("127.0.0.1:1", Duration::from_secs(30));
    let coordinator =
        Coordinator::new(address, "test", patience, None, Credentials::default()).unwrap();
    let info = WorkerInfo {
        name: "w".into(),
        host: "here".into(),
        in_process: false,
        endpoint: String::new(),
        data_roots: Default::default(),
    };
    GrpcControl::new(Arc::new(Session::start(coordinator, info)))
}

fn request(trainer: &str, intent: Intent) -> LeaseRequest {
    let segments = vec![Segment { lanes: 1, global_batch: 4, steps: Steps::All(0) }];
    LeaseRequest {
        job: "train".into(),
        run: None,
        trainer: trainer.into(),
        rank: 0,
        world_size: 1,
        limit: None,
        mode: Mode::Deterministic,
        mixture: None,
        at: StartPosition {
            intent,
            left: None,
            left_out: LeftOut::default(),
            epoch: 1,
            segments,
            step: 0,
        },
        doubt: DoubtPolicy::default(),
        peer: None,
    }
}

fn reconnect(generation: u64) -> Intent {
    Intent::Reconnect { generation, epoch: 1, step: 0 }
}

fn move_from(from: u64) -> Intent {
    let segments = vec![Segment { lanes: 1, global_batch: 4, steps: Steps::All(0) }];
    Intent::Move { from, epoch: 0, segments }
}

/// Requests a lease; `None` if only a coordinator may grant it.
fn granted(control: &GrpcControl, trainer: &str, intent: Intent) -> Option<Lease> {
    control.lease(&request(trainer, intent), &mut |_| false).ok()
}

#[test]
fn a_loader_continues_and_moves_without_a_coordinator() {
    let control = alone();
    let first = granted(&control, "one", reconnect(3)).unwrap();
    assert_eq!(first.generation, 3);
    let moved = granted(&control, "one", move_from(3)).unwrap();
    assert_eq!(moved.generation, 4);
    assert_eq!(control.check(&first).unwrap_err().kind, ErrorKind::Replaced);
}

#[test]
fn a_loader_does_not_replace_a_newer_one_of_its_rank() {
    let control = alone();
    let newer = granted(&control, "newer", reconnect(3)).unwrap();
    for intent in [reconnect(3), reconnect(2), move_from(3), move_from(2)] {
        assert!(granted(&control, "older", intent).is_none());
    }
    control.check(&newer).unwrap();
    // A loader of a later generation is newer than both.
    assert_eq!(granted(&control, "newest", reconnect(4)).unwrap().generation, 4);
    assert_eq!(control.check(&newer).unwrap_err().kind, ErrorKind::Replaced);
}
