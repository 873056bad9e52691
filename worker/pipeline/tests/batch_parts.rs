//! Number of parts of a batch: distributing a part costs more than processing a small record.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{key, stored};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{Assembler, Begun, Schema, Stage, Watch};

/// Counts parts.
#[derive(Debug, Default)]
struct Parts(AtomicUsize);

impl Watch for Parts {
    fn begin(&self) -> Begun {
        Begun { cpu_ns: 0, wall_ns: 0 }
    }

    fn end(&self, stage: Stage, _: Begun) {
        self.0.fetch_add(usize::from(stage == Stage::Parse), Ordering::Relaxed);
    }

    fn suspect_images(&self, _: u64) {}
}

#[test]
fn small_records_without_operators_are_one_part() {
    let schema = Arc::new(Schema::raw());
    // As a planner does, with the operators' part of its budget: 0, as there are no operators.
    schema.bound_made(schema.made_bytes(64 << 20));
    for (bytes, parts) in [(100, 1..=1), (128 << 10, 2..=64)] {
        let watch = Arc::new(Parts::default());
        let assembler =
            Assembler::new(Arc::clone(&schema), SlotPool::new(1)).watched(watch.clone());
        let records = vec![vec![7; bytes]; 64];
        assembler.assemble(&stored(records).rows(), &key()).unwrap();
        let found = watch.0.load(Ordering::Relaxed);
        assert!(parts.contains(&found), "{found} parts of 64 records of {bytes} bytes");
    }
}
