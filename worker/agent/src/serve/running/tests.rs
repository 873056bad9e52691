//! A rank that is served over a real socket, whose trainer or control misbehaves.

use std::sync::{Condvar, PoisonError};

use shardfeed_pipeline::Schema;
use shardfeed_plan::{
    Corrupt, DECODER_NONE, JobIdentity, LoaderState, Mode, ORDER_VERSION, Segment, Shuffle, Steps,
    Tail,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::{
    Assignment, Control, ControlError, EncodedSpec, JobSpec, LeaseRequest, Plans, Prefetch,
    PrefetchOptions, RankLease, Waiting,
};
use shardfeed_socket::{Connection, Peer};
use shardfeed_source::{CacheChoice, Dataset, FileRules};
use shardfeed_tfrecord::{Compression, CompressionChoice, create};

use super::*;
use crate::serve::budget::Budget;
use crate::serve::flight::Named;

/// More time than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// More batches than a socket holds frames.
const BATCHES: u64 = 400;

type Trainer = Connection<wire::ToWorker, wire::ToTrainer>;

/// Failure of a control that is asked before each batch whether the lease is valid.
enum Fault {
    None,
    Panics,
    /// It returns an error that is larger than a frame.
    Talks,
    /// It answers once it is released.
    Hangs(Arc<(Lock<bool>, Condvar)>),
}

struct Faulty(Fault);

impl Control for Faulty {
    fn register(&self, _: &JobSpec, _: Waiting<'_>) -> Result<(), ControlError> {
        Ok(())
    }

    fn lease(&self, _: &LeaseRequest, _: Waiting<'_>) -> Result<Lease, ControlError> {
        Ok(lease())
    }

    fn check(&self, _: &Lease) -> Result<(), ControlError> {
        match &self.0 {
            Fault::None => Ok(()),
            Fault::Panics => panic!("a control that panics"),
            Fault::Talks => Err(WireError::new(ErrorKind::Invalid, "x".repeat(5 << 20))),
            Fault::Hangs(gate) => {
                let open = gate.1.wait_while(gate.0.lock(), |open| !*open);
                drop(open.unwrap_or_else(PoisonError::into_inner));
                Ok(())
            }
        }
    }

    fn report(&self, _: &Lease, _: u64, _: u64) -> Result<(), ControlError> {
        Ok(())
    }

    fn release(&self, _: &Lease, _: bool) {}

    fn latest(&self, _: &str, _: Waiting<'_>) -> Result<Option<LoaderState>, ControlError> {
        Ok(None)
    }
}

fn lease() -> Lease {
    let segments = vec![Segment { lanes: 1, global_batch: 1, steps: Steps::All(0) }];
    Lease {
        job: "job".into(),
        generation: 0,
        rank: 0,
        fencing: 1,
        serial: 1,
        mixture: None,
        epoch: 0,
        segments,
    }
}

/// Serves a rank whose batches are single records; returns its trainer's end of the connection.
fn serve(fault: Fault) -> (Running, Trainer, tempfile::TempDir) {
    serve_ahead(fault, BATCHES as usize, 1 << 30)
}

/// - `prefetch`: batches ahead.
fn serve_ahead(
    fault: Fault,
    prefetch: usize,
    budget_bytes: u64,
) -> (Running, Trainer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.tfrecord");
    let mut writer = create(&path, Compression::None).unwrap();
    (0..BATCHES).for_each(|ordinal| writer.write(&ordinal.to_le_bytes()).unwrap());
    writer.finish().unwrap();
    let compression = CompressionChoice::Fixed(Compression::None);
    let none = FileRules { compression, ..FileRules::default() };
    let patterns = [path.display().to_string()];
    let dataset =
        Dataset::open(&patterns, none, None, &CacheChoice::Off.into(), &mut |_| true).unwrap();
    let content = dataset.manifest().digest();
    let shuffle = Shuffle {
        digest: content,
        seed: 0,
        enabled: false,
        window: 1,
        interleave: 1,
        block_length: 1,
    };
    let identity = JobIdentity {
        order: ORDER_VERSION,
        content,
        shuffle,
        lanes: 1,
        tail: Tail::Drop,
        mode: Mode::Deterministic,
        records: EncodedSpec::raw().records(),
        decoder: DECODER_NONE.to_owned(),
    };
    let plans = Plans::new(dataset.manifest().counts(), (Tail::Drop, None));
    let flight = Flight::new(8, Named::default());
    let control = Arc::new(Faulty(Fault::None));
    let rank = RankLease { control, lease: lease() };
    let assignment = Assignment { rank, plans: Arc::new(plans), identity, world_size: 1 };
    let options = PrefetchOptions {
        dataset: Arc::new(dataset),
        schemas: Arc::new(Schema::raw()).into(),
        corrupt: Corrupt::Error,
        slots: flight.pool.clone(),
        rank: 0,
        epoch: 0,
        step: 0,
        prefetch: Some(prefetch),
        budget_bytes,
        took_over: false,
    };
    let (worker, trainer) = Connection::pair().unwrap();
    let (sender, _) = worker.split();
    let peer = Peer { pid: None, uid: 0, gid: 0 };
    let rank = LeaseGuard::new(Arc::new(Faulty(fault)), lease());
    let prefetch = Prefetch::start(assignment, options).unwrap();
    let ready = ReadyRank {
        start: 1,
        reader: RankReader::new(rank.clone(), prefetch),
        rank,
        hub_stop: Arc::default(),
        flight,
        sender,
        share: Budget::new(2 << 30).share(&peer, Some(1 << 30), 1, 0).unwrap(),
    };
    let (running, _) = Running::begin(ready).unwrap();
    (running, trainer, folder)
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_trainer_that_does_not_read_gets_every_batch_once_it_does() {
    let (running, mut trainer, _folder) = serve(Fault::None);
    // Its socket is full when nothing more is sent.
    let mut sent = 0;
    until("the socket is full", || {
        let before = std::mem::replace(&mut sent, running.flight.ahead());
        std::thread::sleep(LOOK_EVERY);
        sent > 0 && sent == before
    });
    assert!(sent < BATCHES as usize, "a socket holds {sent} batches");
    assert_eq!(running.lost(), None);
    let mut step = 0;
    while step < BATCHES {
        let (message, _) = trainer.recv(PATIENCE).unwrap().unwrap();
        if let Some(Message::Batch(batch)) = message.message {
            assert_eq!(batch.step, step);
            step += 1;
        }
    }
}

/// A new slot for each batch would cost more than assembling a small one.
#[test]
fn slots_of_small_batches_are_used_again() {
    let (running, mut trainer, _folder) = serve_ahead(Fault::None, 4, 2 << 20);
    let mut step = 0;
    while step < BATCHES {
        let (message, _) = trainer.recv(PATIENCE).unwrap().unwrap();
        if let Some(Message::Batch(batch)) = message.message {
            step += 1;
            running.flight.free(&[batch.region]);
            running.took(&wire::Took { start: 1, batches: 1, step, ..wire::Took::default() });
        }
    }
    let slots = running.flight.pool.stats();
    assert!(slots.mapped_total <= 8, "{slots:?}");
}

#[test]
fn a_sending_thread_that_ends_or_hangs_is_known_to_the_thread_that_answers() {
    for (fault, expected) in
        [(Fault::Panics, "its sending thread panicked"), (Fault::Talks, "a message of 5242")]
    {
        let (running, _trainer, _folder) = serve(fault);
        until("it is known", || running.lost().is_some());
        let reason = running.lost().unwrap();
        assert!(reason.starts_with(expected), "{reason}");
    }
    let gate = Arc::new((Lock::new(false), Condvar::new()));
    let (mut running, _trainer, _folder) = serve(Fault::Hangs(Arc::clone(&gate)));
    assert_eq!(running.lost(), None);
    running.pulse =
        Arc::new(Pulse::silent_since(Instant::now().checked_sub(2 * STUCK_AFTER).unwrap()));
    assert_eq!(running.lost(), None, "the whole process may have been stopped");
    *running.suspected.lock() = Instant::now().checked_sub(STUCK_SURE_AFTER);
    assert_eq!(running.lost().unwrap(), "its sending thread has not run for 30 s");
    // Dropping the rank does not wait for a hung thread.
    drop(running);
    *gate.0.lock() = true;
    gate.1.notify_all();
}

#[test]
fn a_sending_thread_that_told_why_it_ends_or_was_stopped_is_not_lost() {
    let (running, trainer, _folder) = serve(Fault::None);
    running.stop.store(true, Ordering::Relaxed);
    until("it has ended", || running.thread.as_ref().unwrap().is_finished());
    assert_eq!(running.lost(), None);
    drop((running, trainer));
    let (running, trainer, _folder) = serve(Fault::None);
    drop(trainer);
    until("it has ended", || running.thread.as_ref().unwrap().is_finished());
    assert_eq!(running.lost(), None, "the receiving side says that the trainer is gone");
}
