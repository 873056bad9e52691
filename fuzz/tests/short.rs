//! Runs every target on its corpus and on a few thousand mutations. `make fuzz` runs longer.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::path::Path;
use std::time::Duration;

use shardfeed_fuzz::fuzzer::corpus_of;
use shardfeed_fuzz::{Limits, TARGETS, fuzz};

/// Maximum size of the corpus in bytes.
const CORPUS_BYTES_MAX: usize = 1 << 20;

fn short(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let inputs = corpus_of(target, &corpus).unwrap();
    assert!(inputs.len() > (target.seeds)().len(), "{name} has no corpus; `make fuzz` makes one");
    assert!(inputs.iter().map(Vec::len).sum::<usize>() < CORPUS_BYTES_MAX / 4);
    let (cpu, seed) = (Duration::from_millis(1500), 7);
    let report =
        fuzz(target, inputs, Limits { cpu, inputs: 3000, bytes: 32 << 10, seed }, &mut |_| ());
    if let Some((input, said)) = report.broken {
        panic!("{name}: {said}\nby these {} bytes: {}", input.len(), input.escape_ascii());
    }
    assert!(report.outcomes > 1, "{name}: everything is {} thing", report.outcomes);
}

macro_rules! short {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            short(stringify!($name));
        }
    )*

        #[test]
        fn all_targets_are_here() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

short! { framing compressed example sequence image index_cache state job socket table sample_map measured }
