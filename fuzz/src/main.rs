//! `shardfeed-fuzz [--seconds N] [--seed N] [--corpus DIR] [TARGET ...]`: runs the targets one
//! after the other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use shardfeed_fuzz::fuzzer::{corpus_of, shortened};
use shardfeed_fuzz::{Limits, Report, TARGETS, Target, fuzz};

/// Interval between progress reports.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Maximum size of a kept input in bytes: longer ones add little.
const KEPT_BYTES_MAX: usize = 2048;

/// Maximum number of inputs that are kept per run of a target.
const KEPT_MAX: usize = 40;

struct Options {
    seconds: u64,
    seed: u64,
    corpus: PathBuf,
    targets: Vec<Target>,
}

fn options() -> Result<Options, String> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut options = Options { seconds: 600, seed: 1, corpus, targets: vec![] };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        match argument.as_str() {
            "--seconds" => options.seconds = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--corpus" => options.corpus = value()?.into(),
            name => match TARGETS.iter().find(|target| target.name == name) {
                Some(target) => options.targets.push(*target),
                None => {
                    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
                    return Err(format!("{name} is no target; there are {}", names.join(" ")));
                }
            },
        }
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.to_vec();
    }
    Ok(options)
}

/// Printing reports is the purpose of this program.
#[allow(clippy::print_stderr)]
fn tell(target: &Target, report: &Report) {
    let Report { inputs, cpu, outcomes, .. } = report;
    let seconds = cpu.as_secs_f64();
    eprintln!(
        "{:<11} {seconds:6.0} s of processor time  {inputs:>11} inputs  {outcomes:>5} outcomes",
        target.name
    );
}

/// Shortens new inputs and saves them as files named by their content.
fn keep(target: &Target, found: &[Vec<u8>], folder: &Path) -> std::io::Result<usize> {
    fs::create_dir_all(folder)?;
    // The latest inputs took the most steps to find.
    let latest = found.iter().rev().take(KEPT_MAX);
    let mut short: Vec<Vec<u8>> = latest.map(|input| shortened(target, input)).collect();
    short.retain(|input| input.len() <= KEPT_BYTES_MAX);
    for input in &short {
        fs::write(folder.join(name(input)), input)?;
    }
    Ok(short.len())
}

fn name(input: &[u8]) -> String {
    Sha256::digest(input)[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[allow(clippy::print_stderr)]
fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::from(2);
        }
    };
    let mut is_broken = false;
    for target in &options.targets {
        match one(target, &options) {
            Ok(fine) => is_broken |= !fine,
            Err(error) => {
                eprintln!("error: {}: {error}", options.corpus.display());
                return ExitCode::from(2);
            }
        }
    }
    if is_broken { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

#[allow(clippy::print_stderr)]
fn one(target: &Target, options: &Options) -> std::io::Result<bool> {
    let corpus = corpus_of(target, &options.corpus)?;
    let cpu = Duration::from_secs(options.seconds);
    let limits = Limits { cpu, inputs: u64::MAX, bytes: 64 << 10, seed: options.seed };
    let mut told = Instant::now();
    let report = fuzz(target, corpus, limits, &mut |report| {
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tell(target, report);
        }
    });
    tell(target, &report);
    let folder = options.corpus.join(target.name);
    if let Some((input, said)) = &report.broken {
        let short = shortened(target, input);
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("broken-{}", name(&short)));
        fs::write(&path, &short)?;
        eprintln!("{:<11} BROKEN by {}: {said}", target.name, path.display());
        return Ok(false);
    }
    let kept = keep(target, &report.found, &folder)?;
    eprintln!("{:<11} keeps {kept} new inputs in {}", target.name, folder.display());
    Ok(true)
}
