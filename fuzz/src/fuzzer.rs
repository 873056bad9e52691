//! Mutates known inputs and keeps those with a new outcome.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Target;
use crate::dice::{Dice, disturb};

/// Maximum number of inputs that are kept per target, in addition to the initial ones.
const KEPT_MAX: usize = 4096;

/// Limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processor time of this process.
    pub cpu: Duration,
    /// Maximum number of inputs.
    pub inputs: u64,
    /// Maximum size of an input in bytes.
    pub bytes: usize,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of inputs that were tried.
    pub inputs: u64,
    /// Processor time used.
    pub cpu: Duration,
    /// Number of different outcomes.
    pub outcomes: usize,
    /// Inputs with outcomes that are not in the corpus, the shortest of each outcome.
    pub found: Vec<Vec<u8>>,
    /// Input that violated a promise, and the panic message. It ends the run.
    pub broken: Option<(Vec<u8>, String)>,
}

/// Returns the processor time of this process.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// Runs `target` on `corpus` and on mutations of it.
/// - `progress`: called from time to time with the report so far.
pub fn fuzz(
    target: &Target,
    corpus: Vec<Vec<u8>>,
    limits: Limits,
    progress: &mut dyn FnMut(&Report),
) -> Report {
    let begun = cpu_time();
    let mut report = Report::default();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut inputs = corpus;
    if inputs.is_empty() {
        inputs.push(vec![]);
    }
    for input in &inputs {
        match tried(target, input) {
            Ok(outcome) => seen.insert(outcome),
            Err(said) => {
                report.broken = Some((input.clone(), said));
                return report;
            }
        };
    }
    let known = inputs.len();
    let mut dice = Dice(limits.seed);
    while report.inputs < limits.inputs {
        if report.inputs.is_multiple_of(64) {
            report.cpu = cpu_time().saturating_sub(begun);
            report.outcomes = seen.len();
            if report.cpu >= limits.cpu {
                break;
            }
            progress(&report);
        }
        report.inputs += 1;
        // Recently found inputs are mutated more often.
        let last = inputs.len() - 1 - dice.roll(inputs.len().min(32));
        let which = if dice.roll(2) == 0 { last } else { dice.roll(inputs.len()) };
        let mut input = inputs[which].clone();
        disturb(&mut input, &inputs, &mut dice, limits.bytes);
        match tried(target, &input) {
            Ok(outcome) => {
                if seen.insert(outcome) && inputs.len() < known + KEPT_MAX {
                    inputs.push(input);
                }
            }
            Err(said) => {
                report.broken = Some((input, said));
                break;
            }
        }
    }
    report.cpu = cpu_time().saturating_sub(begun);
    report.outcomes = seen.len();
    report.found = inputs.split_off(known);
    report
}

fn tried(target: &Target, input: &[u8]) -> Result<String, String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_else(|| "a panic without words".to_owned())
    })
}

/// Shortens `input` as long as its outcome stays the same.
pub fn shortened(target: &Target, input: &[u8]) -> Vec<u8> {
    let wanted = tried(target, input);
    let is_same = |other: &[u8]| match (&wanted, tried(target, other)) {
        (Ok(wanted), Ok(other)) => *wanted == other,
        (Err(_), Err(_)) => true,
        _ => false,
    };
    let mut shortest = input.to_vec();
    let mut piece = shortest.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < shortest.len() {
            let end = (at + piece).min(shortest.len());
            let mut shorter = shortest.clone();
            shorter.drain(at..end);
            match is_same(&shorter) {
                true => shortest = shorter,
                false => at += piece,
            }
        }
        piece /= 2;
    }
    shortest
}

/// Returns the inputs of a target in `corpus`, its seeds first.
///
/// # Errors  The folder cannot be read.
pub fn corpus_of(target: &Target, corpus: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut inputs = (target.seeds)();
    let folder = corpus.join(target.name);
    if !folder.is_dir() {
        return Ok(inputs);
    }
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        inputs.push(fs::read(path)?);
    }
    Ok(inputs)
}
