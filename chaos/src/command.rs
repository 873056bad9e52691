//! The command line. Each seed runs in its own process, so no state leaks from one run into the
//! next.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardfeed_chaos::breach::Breach;
use shardfeed_chaos::nemesis::{HOLDS, KINDS, LOSSES};
use shardfeed_chaos::simulation::{self, COVERED};

/// Time limit for a seed; it takes about a second, and one that exceeds the limit has hung.
const SEED_TIME_MAX: Duration = Duration::from_secs(180);

/// Minimum number of seeds at which every kind of fault must have occurred.
const SEEDS_FOR_ALL_KINDS: u64 = 100;

const USAGE: &str = "usage: shardfeed-chaos seed N [--show] | run [--seeds N] [--start N] [--jobs N] [--twice] [--until-breach]";

/// Options of a run.
#[derive(Debug)]
struct Asked {
    seeds: u64,
    start: u64,
    jobs: usize,
    /// Run each seed twice and require identical results.
    twice: bool,
    /// Stop at the first breach and print the number of seeds that it took.
    until_breach: bool,
}

/// Result of a seed's process.
#[derive(Debug)]
struct Said {
    seed: u64,
    hash: String,
    breach: Option<String>,
    totals: BTreeMap<String, u64>,
    cpu_ms: u64,
}

pub(crate) fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["seed", seed] => seed.parse().ok().map(|seed| run_seed(seed, false)),
        ["seed", seed, "--show"] => seed.parse().ok().map(|seed| run_seed(seed, true)),
        ["run", options @ ..] => asked(options).map(|asked| run(&asked)),
        _ => None,
    };
    match done {
        Some(Ok(code)) => code,
        Some(Err(error)) => {
            say(&mut io::stderr(), &format!("error: {error}"));
            ExitCode::FAILURE
        }
        None => {
            say(&mut io::stderr(), USAGE);
            ExitCode::from(2)
        }
    }
}

fn asked(options: &[&str]) -> Option<Asked> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut asked = Asked { seeds: 100, start: 0, jobs, twice: false, until_breach: false };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match *option {
            "--seeds" => asked.seeds = options.next()?.parse().ok()?,
            "--start" => asked.start = options.next()?.parse().ok()?,
            "--jobs" => asked.jobs = options.next()?.parse().ok().filter(|jobs| *jobs > 0)?,
            "--twice" => asked.twice = true,
            "--until-breach" => asked.until_breach = true,
            _ => return None,
        }
    }
    Some(asked)
}

fn say(to: &mut impl Write, line: &str) {
    // Ignore errors: the reader may have exited.
    let _ = to.write_all(format!("{line}\n").as_bytes());
}

/// Runs one seed in this process and prints the result as a line of JSON.
fn run_seed(seed: u64, is_shown: bool) -> io::Result<ExitCode> {
    if is_shown {
        // On its own thread: this one's hash maps draw their keys from the seed.
        let init = std::thread::spawn(|| shardfeed_telemetry::init("off"));
        init.join().expect("it does not panic").map_err(io::Error::other)?;
    }
    shardfeed_chaos::end_on_panic(move |panic| {
        let breach = Breach { id: "S1", what: panic.to_owned() };
        let (hash, totals) = ("none".into(), BTreeMap::new());
        say_outcome(seed, simulation::Outcome { hash, breach: Some(breach), totals });
    });
    Ok(say_outcome(seed, simulation::run(seed, is_shown)))
}

/// Prints the outcome of a seed.
fn say_outcome(seed: u64, outcome: simulation::Outcome) -> ExitCode {
    let simulation::Outcome { hash, breach, totals } = outcome;
    let is_fine = breach.is_none();
    let breach = breach.map(|breach| breach.to_string());
    let said = json!({ "seed": seed, "hash": hash, "breach": breach, "totals": totals });
    say(&mut io::stdout(), &said.to_string());
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs many seeds, each in its own process.
fn run(asked: &Asked) -> io::Result<ExitCode> {
    let begun = Instant::now();
    let mut waiting: Vec<u64> = (asked.start..asked.start + asked.seeds).rev().collect();
    let mut running: Vec<(u64, Instant, Child)> = vec![];
    let mut said: Vec<Said> = vec![];
    loop {
        while running.len() < asked.jobs
            && let Some(seed) = waiting.pop()
        {
            for _ in 0..1 + u64::from(asked.twice) {
                running.push((seed, Instant::now(), spawn(seed)?));
            }
        }
        if running.is_empty() {
            break;
        }
        let mut still = vec![];
        for (seed, since, mut child) in running {
            if child.try_wait()?.is_some() {
                said.push(hear(seed, child, since)?);
            } else if since.elapsed() > SEED_TIME_MAX {
                child.kill()?;
                let mut hung = hear(seed, child, since)?;
                hung.breach = Some(format!("I16: no end after {SEED_TIME_MAX:?}"));
                said.push(hung);
            } else {
                still.push((seed, since, child));
            }
        }
        running = still;
        if asked.until_breach && said.iter().any(|said| said.breach.is_some()) {
            waiting.clear();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    said.sort_by_key(|said| said.seed);
    Ok(report(asked, &said, begun.elapsed()))
}

fn spawn(seed: u64) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["seed", &seed.to_string()]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
}

fn hear(seed: u64, child: Child, since: Instant) -> io::Result<Said> {
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value: Value = serde_json::from_str(text.trim()).unwrap_or_default();
    let ended = || format!("S1: the process ended with {}", output.status);
    let totals = value["totals"].as_object().cloned().unwrap_or_default();
    let number = |(name, number): (String, Value)| (name, number.as_u64().unwrap_or(0));
    Ok(Said {
        seed,
        hash: value["hash"].as_str().unwrap_or("none").to_owned(),
        breach: match (&value["breach"], value.is_object()) {
            (Value::String(breach), _) => Some(breach.clone()),
            (_, true) => None,
            (_, false) => Some(ended()),
        },
        totals: totals.into_iter().map(number).collect(),
        cpu_ms: since.elapsed().as_millis() as u64,
    })
}

/// Returns the command that reproduces a breach.
///
/// `make chaos PATCH=` names the change that was built in.
fn reproduce(seed: u64, more: &str) -> String {
    let patch = std::env::var("SHARDFEED_CHAOS_PATCH");
    let patch = patch.map(|patch| format!(" PATCH={patch}")).unwrap_or_default();
    format!("REPRODUCE: make chaos SEEDS=1 START={seed}{more}{patch}")
}

fn report(asked: &Asked, said: &[Said], took: Duration) -> ExitCode {
    let mut out = io::stdout();
    let mut failed = false;
    for said in said.iter().filter(|said| said.breach.is_some()) {
        failed = true;
        say(&mut out, &format!("seed {}: {}", said.seed, said.breach.as_deref().unwrap_or("")));
        say(&mut out, &reproduce(said.seed, ""));
    }
    for pair in said.windows(2).filter(|pair| pair[0].seed == pair[1].seed) {
        if pair[0].hash != pair[1].hash {
            failed = true;
            say(&mut out, &format!("seed {}: I18: two runs differ", pair[0].seed));
            say(&mut out, &reproduce(pair[0].seed, " TWICE=1"));
        }
    }
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, number) in said.iter().flat_map(|said| &said.totals) {
        *totals.entry(name).or_default() += number;
    }
    for (name, number) in &totals {
        say(&mut out, &format!("{name:>28} {number}"));
    }
    let never = |kind: &&str| totals.get(format!("fault {kind}").as_str()).is_none_or(|n| *n == 0);
    let never: Vec<&str> =
        KINDS.iter().chain(&LOSSES).chain(&HOLDS).copied().filter(never).collect();
    let is_none = |name: &&str| totals.get(name).is_none_or(|n| *n == 0);
    let never: Vec<&str> = never.into_iter().chain(COVERED.into_iter().filter(is_none)).collect();
    if asked.seeds >= SEEDS_FOR_ALL_KINDS && !never.is_empty() && !asked.until_breach {
        failed = true;
        say(&mut out, &format!("these never came up: {}", never.join(", ")));
    }
    let each = said.iter().map(|said| said.cpu_ms).sum::<u64>() / said.len().max(1) as u64;
    let (runs, seconds) = (said.len(), took.as_secs_f64());
    let verdict = if failed { "FAILED" } else { "ok" };
    let hashes: Vec<&str> = said.iter().take(3).map(|said| said.hash.as_str()).collect();
    say(&mut out, &format!("{verdict}: {runs} runs in {seconds:.1} s, {each} ms each; {hashes:?}"));
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
