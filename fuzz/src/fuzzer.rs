//! Changes known inputs, and keeps those whose like was not seen.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Target;
use crate::dice::{Dice, disturb};

/// Inputs that are kept of a target at most, beside those that it began with.
const KEPT_MAX: usize = 4096;

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processor time of this process.
    pub cpu: Duration,
    /// Inputs at most.
    pub inputs: u64,
    /// Bytes of an input at most.
    pub bytes: usize,
    /// What chance begins with.
    pub seed: u64,
}

/// How far it went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Inputs that were tried.
    pub inputs: u64,
    /// Processor time that it took.
    pub cpu: Duration,
    /// Different things that became of them.
    pub outcomes: usize,
    /// Inputs whose like was not in the corpus, the shortest of each outcome.
    pub found: Vec<Vec<u8>>,
    /// An input that broke a promise, and what the panic said. It ends the run.
    pub broken: Option<(Vec<u8>, String)>,
}

/// Processor time of this process.
pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// Runs `target` on `corpus` and what is made of it.
/// - `progress`: is told how far it is, now and then.
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
        // What was found lately is changed more often.
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

/// Makes `input` shorter while it still becomes what it does.
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

/// The inputs of a target in `corpus`, its seeds first.
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
