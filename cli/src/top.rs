//! `shardfeed top`: the current state of the cluster on one screen.

mod draw;
mod gather;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::{Client, ClusterArgs};
use crate::duration;
use crate::error::Problem;
use crate::output::StdoutError;
use crate::process::runtime;
use draw::{DisplayOptions, draw};
use gather::{Scene, gather};

const EXAMPLES: &str = "\
Keys: up and down choose a job, p holds the picture, q ends.

Examples:
  shardfeed top --job resnet
  shardfeed top --once > now.txt";

/// Timeout of one wait for a key.
const KEYS_EVERY: Duration = Duration::from_millis(100);

/// Default size of the screen, if it is unknown.
const SIZE: (u16, u16) = (80, 24);

/// Maximum size of a side: the size may come from a variable with any value.
const SIDE_MAX: u16 = 1_000;

/// Show the cluster live, on one screen
///
/// The screen shows jobs and their epochs, and of one job the shards, ranks, workers, events, and
/// what limits it. Shards are cells of a map, in manifest order: each represents as many of them as
/// necessary. Ranks are columns of two strips: how far each is behind the first, and how much of
/// its trainer's time is spent waiting, with a letter for the cause. Without a terminal, and for
/// logs: --once. NO_COLOR is heeded; nothing is said by colour alone.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Job to show [default: the first running job]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Print one screen and exit
    #[arg(long)]
    once: bool,
    /// Time between two refreshes
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    every: Duration,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    if args.once {
        return once(args, &client);
    }
    if !io::stdout().is_terminal() {
        return Err(Problem::usage("stdout is no terminal")
            .hint("--once prints one screen; `shardfeed status -w` needs none")
            .into());
    }
    // Errors of the first request are reported before the screen is switched.
    let first = gather(&client, args.job.as_deref())?;
    let runtime = runtime(Some(1))?;
    let asked = runtime.block_on(async { ends() })?;
    let mut screen = ratatui::init();
    let ended = live(args, &client, first, &mut screen, &asked);
    // If the terminal is gone, it cannot be restored, and the error cannot be reported.
    let _ = ratatui::try_restore();
    match asked.load(Ordering::Relaxed) {
        0 => ended,
        // The exit code of a shell for a command that a signal ended.
        number => std::process::exit(128 + number),
    }
}

/// Handles the signals that end `top`. Returns the number of the first one, 0 if none has arrived.
///
/// Must be called within a runtime.
fn ends() -> io::Result<Arc<AtomicI32>> {
    let first = Arc::new(AtomicI32::new(0));
    for kind in [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()] {
        let (mut signals, first) = (signal(kind)?, Arc::clone(&first));
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                let number = kind.as_raw_value();
                // Only the first signal counts.
                let _ = first.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
            }
        });
    }
    Ok(first)
}

fn once(args: &TopArgs, client: &Client) -> anyhow::Result<()> {
    let scene = gather(client, args.job.as_deref())?;
    let asked = |name: &str| std::env::var(name).ok()?.parse().ok();
    let (columns, lines) = terminal::size()
        .ok()
        .filter(|_| io::stdout().is_terminal())
        .unwrap_or((asked("COLUMNS").unwrap_or(SIZE.0), asked("LINES").unwrap_or(SIZE.1)));
    let text = picture(&scene, (columns.clamp(40, SIDE_MAX), lines.clamp(10, SIDE_MAX)));
    io::stdout().write_all(text.as_bytes()).map_err(StdoutError::Write)?;
    Ok(())
}

fn picture(scene: &Scene, (columns, lines): (u16, u16)) -> String {
    let Ok(mut screen) = Terminal::new(TestBackend::new(columns, lines));
    let look = DisplayOptions { has_colours: false, is_held: false, has_keys: false, error: None };
    let Ok(_) = screen.draw(|frame| draw(frame, scene, &look));
    let buffer = screen.backend().buffer();
    let rows = (0..lines).map(|y| {
        let row: String = (0..columns).map(|x| buffer[(x, y)].symbol()).collect();
        row.trim_end().to_owned() + "\n"
    });
    let text: String = rows.collect();
    text.trim_end().to_owned() + "\n"
}

fn live(
    args: &TopArgs,
    client: &Client,
    first: Scene,
    screen: &mut ratatui::DefaultTerminal,
    ends: &AtomicI32,
) -> anyhow::Result<()> {
    let (ask, asked) = mpsc::channel::<Option<String>>();
    let (tell, told) = mpsc::channel();
    let behind = client.clone();
    // Requests may hang if coordinators are gone; the keys must still work.
    std::thread::Builder::new().name("shardfeed-top".into()).spawn(move || {
        while let Ok(job) = asked.recv() {
            if tell.send(gather(&behind, job.as_deref())).is_err() {
                return;
            }
        }
    })?;
    let mut scene = first;
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut look = DisplayOptions { has_colours, is_held: false, has_keys: true, error: None };
    let (mut asked_at, mut is_asked, mut chosen) = (Instant::now(), false, args.job.clone());
    while ends.load(Ordering::Relaxed) == 0 {
        screen.draw(|frame| draw(frame, &scene, &look))?;
        if event::poll(KEYS_EVERY)?
            && let Event::Key(key) = event::read()?
        {
            match step(key) {
                Step::End => return Ok(()),
                Step::Hold => look.is_held = !look.is_held,
                Step::Choose(by) => {
                    chosen = scene.next_job(by);
                    scene.choose(chosen.as_deref());
                    asked_at = Instant::now().checked_sub(args.every).unwrap_or(asked_at);
                }
                Step::None => {}
            }
        }
        if !is_asked && !look.is_held && asked_at.elapsed() >= args.every {
            ask.send(chosen.clone())?;
            (asked_at, is_asked) = (Instant::now(), true);
        }
        match told.recv_timeout(Duration::ZERO) {
            Ok(Ok(found)) => {
                (look.error, is_asked) = (None, false);
                if !look.is_held && (chosen.is_none() || found.chosen() == chosen.as_deref()) {
                    scene = found;
                }
            }
            Ok(Err(error)) => {
                // The last picture stays and shows its age.
                (look.error, is_asked) = (Some(format!("{error:#}")), false);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the thread that asks has ended"),
        }
    }
    Ok(())
}

enum Step {
    End,
    Hold,
    /// Selects the job this many lines below.
    Choose(isize),
    None,
}

fn step(key: KeyEvent) -> Step {
    if key.kind != KeyEventKind::Press {
        return Step::None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Step::End,
        KeyCode::Char('q') | KeyCode::Esc => Step::End,
        KeyCode::Char('p') => Step::Hold,
        KeyCode::Up | KeyCode::Char('k') => Step::Choose(-1),
        KeyCode::Down | KeyCode::Char('j') => Step::Choose(1),
        _ => Step::None,
    }
}
