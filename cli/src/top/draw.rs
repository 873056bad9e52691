//! Draws one screen; 80 columns and 24 lines without colour are enough.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};
use shardfeed_embedded::{Finding, Limit, account_from, finding};
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;

use super::gather::{Job, Scene};
use crate::cluster::epoch::deliverable;
use crate::cluster::shard::added;
use crate::duration;
use crate::output;
use crate::output::words::clock;

#[derive(Clone, Debug)]
pub(super) struct DisplayOptions {
    pub(super) has_colours: bool,
    pub(super) is_held: bool,
    /// True if there is a keyboard.
    pub(super) has_keys: bool,
    pub(super) error: Option<String>,
}

/// Age from which on a picture is marked as old, s.
const OLD_SECONDS: u64 = 5;

/// Width of an epoch's bar, in cells.
const BAR: usize = 12;

/// Symbols for the height of a strip's columns, from none to the maximum.
const LEVELS: [char; 9] = ['.', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn draw(frame: &mut Frame<'_>, scene: &Scene, look: &DisplayOptions) {
    let jobs = (scene.jobs.len() as u16 + 1).clamp(2, 2.max(1 + frame.area().height / 5));
    let heights = [
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(jobs),
        Constraint::Min(3),
        Constraint::Length(6),
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(u16::from(look.has_keys)),
    ];
    let [head, verdict, epochs, map, middle, legend, events, foot] =
        Layout::vertical(heights).areas(frame.area());
    let pen = Pen { has_colours: look.has_colours };
    frame.render_widget(header(scene, look, pen), head);
    let said = look.error.as_ref().map_or_else(
        || Line::from(scene.verdict.clone()),
        |error| Line::styled(error.clone(), pen.bad()),
    );
    frame.render_widget(Paragraph::new(said).wrap(Wrap { trim: true }), verdict);
    frame.render_widget(Paragraph::new(job_lines(scene, epochs, pen)), epochs);
    frame.render_widget(Paragraph::new(map_lines(scene, map, pen)), map);
    let halves = [Constraint::Percentage(50), Constraint::Length(1), Constraint::Fill(1)];
    let [ranks, _, workers] = Layout::horizontal(halves).areas(middle);
    frame.render_widget(Paragraph::new(rank_lines(scene, ranks, pen)), ranks);
    frame.render_widget(Paragraph::new(worker_lines(scene, workers, pen)), workers);
    frame.render_widget(Paragraph::new(Line::styled(limits(), pen.quiet())), legend);
    frame.render_widget(Paragraph::new(event_lines(scene, events, pen)), events);
    let keys = if look.is_held { "HELD: p resumes" } else { "p holds" };
    let keys = format!("q ends   up, down: job   {keys}");
    frame.render_widget(Paragraph::new(Line::styled(keys, pen.quiet())), foot);
}

#[derive(Clone, Copy, Debug)]
struct Pen {
    has_colours: bool,
}

impl Pen {
    fn of(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn title(self) -> Style {
        if self.has_colours { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() }
    }

    fn quiet(self) -> Style {
        self.of(Color::DarkGray)
    }

    fn bad(self) -> Style {
        self.of(Color::Red)
    }
}

fn header(scene: &Scene, look: &DisplayOptions, pen: Pen) -> Paragraph<'static> {
    let status = &scene.status;
    let leader = status.leader.map_or("no leader".to_owned(), |node| format!("leader {node}"));
    let live = scene.workers.iter().filter(|worker| !worker.in_process).count() as u64;
    let inside = scene.workers.len() as u64 - live;
    let inside = if inside > 0 { format!(" + {inside} in trainers") } else { String::new() };
    let old = scene.taken.elapsed().as_secs();
    let old = match old > OLD_SECONDS && look.error.is_some() {
        true => format!("  {old} s OLD"),
        false => String::new(),
    };
    let text = format!(
        "shardfeed {}  {leader}  {}{inside}  {}  {}{old}",
        output::printable(&scene.address),
        output::counted(live, "worker"),
        output::counted(scene.jobs.len() as u64, "job"),
        clock(scene.clock_ms),
    );
    Paragraph::new(Line::styled(text, pen.title()))
}

/// Cuts or pads a name to `width` cells.
fn cut(text: &str, width: usize) -> String {
    let text = output::printable(text);
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => format!("{text:width$}"),
    }
}

fn job_lines(scene: &Scene, area: Rect, pen: Pen) -> Vec<Line<'static>> {
    let name = (area.width as usize).saturating_sub(68).clamp(8, 40);
    let title = format!(
        "  {} {:10} {:>5} {:BAR$}  {:>6} {:>10} {:>8}  SERVED",
        cut("JOB", name),
        "STATE",
        "EPOCH",
        "DELIVERED",
        "",
        "SAMPLES/S",
        "LEFT"
    );
    let mut lines = vec![Line::styled(title, pen.title())];
    if scene.jobs.is_empty() {
        lines.push(Line::from("  no jobs"));
    }
    // The selected job is always visible.
    let room = (area.height as usize).saturating_sub(1).max(1);
    let first = scene.at.map_or(0, |at| (at + 1).saturating_sub(room));
    for (at, job) in scene.jobs.iter().enumerate().skip(first).take(room) {
        lines.push(job_line(job, scene.at == Some(at), name, pen));
    }
    lines
}

fn job_line(job: &Job, is_chosen: bool, name: usize, pen: Pen) -> Line<'static> {
    let mark = if is_chosen { "> " } else { "  " };
    let phase = job.job.phase();
    let state = phase.word();
    let style = match phase {
        wire::JobPhase::Running => pen.of(Color::Green),
        wire::JobPhase::Waiting | wire::JobPhase::Paused => pen.of(Color::Yellow),
        wire::JobPhase::Cancelled | wire::JobPhase::Failed => pen.bad(),
        wire::JobPhase::Finished | wire::JobPhase::Unspecified => pen.quiet(),
    };
    let mut spans = vec![
        Span::raw(mark),
        Span::raw(cut(&job.job.name, name)),
        Span::raw(" "),
        Span::styled(cut(&state, 10), style),
    ];
    if let Some(epoch) = &job.epoch {
        let total = deliverable(epoch).max(1);
        let part = epoch.delivered.min(total);
        let filled = usize::try_from(part * BAR as u64 / total).unwrap_or(BAR);
        let bar = "#".repeat(filled) + &"-".repeat(BAR - filled);
        let percent = part as f64 * 100.0 / total as f64;
        let rate = match epoch.samples_per_second {
            rate if rate > 0.0 => output::count(rate as u64),
            _ => "-".to_owned(),
        };
        let left = epoch.eta_ms.map_or("-".to_owned(), duration::text);
        spans.push(Span::raw(format!(" {:>5} ", epoch.epoch)));
        spans.push(Span::styled(bar, pen.of(Color::Green)));
        spans.push(Span::raw(format!("  {percent:>5.1}% {rate:>10} {left:>8}")));
    }
    if let Some(now) = &job.job.generation {
        spans.push(Span::raw(format!("  {} of {}", now.ranks_served, now.world_size)));
    }
    Line::from(spans)
}

/// Sign and style of a cell of the map.
///
/// The least advanced shard decides, but one that is being read comes before those that wait. A
/// digit shows the tenths that are done, if some shards are done and others are not.
fn sign(cell: &wire::get_epoch_map_response::Cell, pen: Pen) -> (char, Style) {
    let wire::get_epoch_map_response::Cell { pending, leased, reading, done, skipped } = *cell;
    let (sign, style) = match () {
        () if reading > 0 => ('o', pen.of(Color::Cyan)),
        () if pending > 0 => ('.', pen.quiet()),
        () if leased > 0 => ('-', pen.of(Color::Blue)),
        () if skipped > 0 && done == 0 => ('x', pen.bad()),
        () => ('#', pen.of(Color::Green)),
    };
    let all = pending + leased + reading + done;
    let tenths = (done * 10 / all.max(1)).clamp(1, 9);
    match done > 0 && done < all {
        true => (char::from_digit(tenths as u32, 10).unwrap_or(sign), style),
        false => (sign, style),
    }
}

fn meanings(cells: &[wire::get_epoch_map_response::Cell]) -> String {
    let pen = Pen { has_colours: false };
    let signs: Vec<char> = cells.iter().map(|cell| sign(cell, pen).0).collect();
    let meanings = [
        ('#', "# done"),
        ('5', "1-9 tenths done"),
        ('o', "o read"),
        ('-', "- leased"),
        ('.', ". pending"),
        ('x', "x out"),
    ];
    let is_seen = |meant: char| match meant {
        '5' => signs.iter().any(char::is_ascii_digit),
        meant => signs.contains(&meant),
    };
    let seen = meanings.iter().filter(|(meant, _)| is_seen(*meant));
    seen.map(|(_, meaning)| format!("  {meaning}")).collect()
}

fn map_lines(scene: &Scene, area: Rect, pen: Pen) -> Vec<Line<'static>> {
    let Some(map) = &scene.map else {
        return vec![Line::styled("SHARDS", pen.title()), Line::from("  nothing is known yet")];
    };
    let (width, height) = (area.width as usize, (area.height as usize).saturating_sub(1));
    let room = (width * height).max(1);
    let per_cell = map.cells.len().div_ceil(room).max(1);
    let cells: Vec<_> = map.cells.chunks(per_cell).map(joined).collect();
    let each = map.shards.div_ceil((map.cells.len() as u64).max(1)) * per_cell as u64;
    let title = format!(
        "SHARDS of epoch {}: {}{}{}",
        map.epoch,
        output::count(map.shards),
        if each > 1 { format!(", {} a cell", output::count(each)) } else { String::new() },
        meanings(&cells),
    );
    let mut lines = vec![Line::styled(title, pen.title())];
    for row in cells.chunks(width.max(1)) {
        let signs = row.iter().map(|cell| {
            let (sign, style) = sign(cell, pen);
            Span::styled(sign.to_string(), style)
        });
        lines.push(Line::from(signs.collect::<Vec<_>>()));
    }
    lines
}

fn joined(cells: &[wire::get_epoch_map_response::Cell]) -> wire::get_epoch_map_response::Cell {
    cells.iter().fold(Default::default(), added)
}

/// A rank in a strip.
struct Stood {
    rank: u64,
    /// Steps behind the first rank; comparable, but no number of steps, if `epochs_behind` > 0.
    behind: u64,
    /// Epochs behind the first rank, if the steps of an epoch are not known.
    epochs_behind: u64,
    found: Option<Finding>,
}

fn stood(ranks: &[wire::Rank]) -> Vec<Stood> {
    let first = ranks.iter().map(|rank| (rank.epoch, rank.step)).max().unwrap_or_default();
    // Ranks of one job have the same number of steps in an epoch, or nearly so. That of a dynamic
    // job is not known: an epoch counts more than the steps of any rank.
    let known = ranks.iter().map(|rank| rank.steps).max().filter(|steps| *steps > 0);
    let most = ranks.iter().map(|rank| rank.step).max().unwrap_or(0);
    let per_epoch = known.unwrap_or(most.saturating_add(1));
    let stood = |rank: &wire::Rank| {
        let epochs = first.0 - rank.epoch;
        let steps = epochs.saturating_mul(per_epoch).saturating_add(first.1);
        Stood {
            rank: rank.rank,
            behind: steps.saturating_sub(rank.step),
            epochs_behind: if known.is_some() { 0 } else { epochs },
            found: rank.account.as_ref().map(|account| finding(&account_from(account))),
        }
    };
    ranks.iter().map(stood).collect()
}

fn limits() -> String {
    let words = Limit::ALL.iter().filter(|limit| **limit != Limit::Unknown);
    let mut words: Vec<_> = words.map(|limit| limit.word()).collect();
    words.sort_unstable();
    format!("for {}", words.join(" "))
}

fn rank_lines(scene: &Scene, area: Rect, pen: Pen) -> Vec<Line<'static>> {
    let ranks = stood(&scene.ranks);
    let title = format!("RANKS {}", output::count(ranks.len() as u64));
    let mut lines = vec![Line::styled(title, pen.title())];
    if ranks.is_empty() {
        return lines;
    }
    let width = (area.width as usize).saturating_sub(8).max(1);
    let per_cell = ranks.len().div_ceil(width);
    let most = ranks.iter().map(|rank| rank.behind).max().unwrap_or(0).max(1);
    let level = |part: u64, whole: u64| {
        let level = part.saturating_mul(8).div_ceil(whole.max(1));
        LEVELS[usize::try_from(level).unwrap_or(8).min(8)]
    };
    let waits = |rank: &Stood| rank.found.as_ref().map_or(0, |found| found.wait_percent);
    let (mut behind, mut wait, mut cause) = (String::new(), String::new(), String::new());
    for ranks in ranks.chunks(per_cell) {
        behind.push(level(ranks.iter().map(|rank| rank.behind).max().unwrap_or(0), most));
        let worst = ranks.iter().max_by_key(|rank| waits(rank));
        wait.push(level(worst.map_or(0, waits), 100));
        let found = worst.and_then(|rank| rank.found.as_ref());
        let letter = found.map(|found| found.limit.letter());
        cause.push(letter.filter(|_| worst.map_or(0, waits) > 0).unwrap_or(' '));
    }
    lines.push(Line::from(format!("behind  {behind}")));
    lines.push(Line::from(vec![Span::raw("waits   "), Span::styled(wait, pen.of(Color::Yellow))]));
    lines.push(Line::from(format!("for     {cause}")));
    let last = ranks.iter().max_by_key(|rank| rank.behind).filter(|rank| rank.behind > 0);
    if let Some(Stood { rank, behind, epochs_behind, .. }) = last {
        let by = match epochs_behind {
            0 => output::counted(*behind, "step"),
            epochs => output::counted(*epochs, "epoch"),
        };
        lines.push(Line::from(format!("rank {rank} is {by} behind")));
    }
    if let Some(rank) = ranks.iter().max_by_key(|rank| waits(rank)).filter(|rank| waits(rank) > 0) {
        let limit = rank.found.as_ref().map_or("", |found| found.limit.name());
        lines.push(Line::from(format!("rank {} waits {} %: {limit}", rank.rank, waits(rank))));
    }
    lines
}

fn worker_lines(scene: &Scene, area: Rect, pen: Pen) -> Vec<Line<'static>> {
    let name = (area.width as usize).saturating_sub(25).clamp(6, 40);
    let title =
        format!("{} {:>5} {:>5} {:>6} STATE", cut("WORKER", name), "RANKS", "WAITS", "SEEN");
    let mut lines = vec![Line::styled(title, pen.title())];
    let waits = |worker: &wire::Worker| {
        // An account without a setup: the rank has not reported.
        let accounts = worker.accounts.iter().filter(|account| account.setup.is_some());
        let found = accounts.map(|account| finding(&account_from(account)));
        found.map(|found| found.wait_percent).max()
    };
    let mut workers: Vec<_> = scene.workers.iter().map(|worker| (waits(worker), worker)).collect();
    // First the workers whose trainers wait most, then those with the most leases.
    workers.sort_by_key(|(waits, worker)| {
        (u64::MAX - waits.unwrap_or(0), u64::MAX - worker.leases, worker.name.clone())
    });
    let room = (area.height as usize).saturating_sub(1);
    let shown = if workers.len() > room { room.saturating_sub(1) } else { room };
    for (waits, worker) in workers.iter().take(shown) {
        let state = match worker.cordon() {
            wire::Cordon::Cordoned => "cordoned",
            wire::Cordon::Draining => "draining",
            _ if worker.in_process => "trainer",
            _ => "open",
        };
        let waits = waits.map_or("-".to_owned(), |part| format!("{part} %"));
        let seen = worker.seen_ms.map_or("-".to_owned(), duration::text);
        lines.push(Line::from(format!(
            "{} {:>5} {waits:>5} {seen:>6} {state}",
            cut(&worker.name, name),
            worker.leases
        )));
    }
    if workers.len() > shown {
        let more = (workers.len() - shown) as u64;
        lines.push(Line::styled(format!("and {} more", output::count(more)), pen.quiet()));
    }
    lines
}

fn event_lines(scene: &Scene, area: Rect, pen: Pen) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled("EVENTS", pen.title())];
    let room = (area.height as usize).saturating_sub(1);
    for event in scene.events.iter().rev().take(room) {
        let ago = duration::text(scene.clock_ms.saturating_sub(event.at_ms));
        let style = match event.kind.as_str() {
            "worker_ended" | "ranks_unserved" | "dataset_failed" | "records_skipped" => pen.bad(),
            _ => Style::new(),
        };
        let text = format!("{ago:>7} ago  {}", output::printable(&event.text));
        lines.push(Line::styled(text, style));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use expect_test::expect;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::Color;
    use shardfeed_proto::common::v1::{Account, Setup, Spent};
    use shardfeed_proto::coordinator::v1::get_epoch_map_response::Cell;

    use super::*;

    fn job(name: &str, epoch: Option<wire::Epoch>) -> Job {
        let generation = epoch.as_ref().map(|_| wire::Generation {
            world_size: 4,
            ranks_served: 4,
            ..wire::Generation::default()
        });
        let phase = match epoch {
            Some(_) => wire::JobPhase::Running.into(),
            None => wire::JobPhase::Waiting.into(),
        };
        Job {
            job: wire::Job { name: name.into(), generation, phase, ..wire::Job::default() },
            epoch,
        }
    }

    fn rank(rank: u64, step: u64, wait_us: u64) -> wire::Rank {
        let recent = Spent {
            wall_us: 1_000_000,
            wait_us,
            work_us: 1_000_000 - wait_us,
            batches: 10,
            read_wait_us: wait_us,
            storage_us: 2 * wait_us,
            ..Spent::default()
        };
        let account = Account { recent: Some(recent), ..Account::default() };
        wire::Rank { rank, step, steps: 400, account: Some(account), ..wire::Rank::default() }
    }

    fn scene() -> Scene {
        let epoch = wire::Epoch {
            epoch: 3,
            state: wire::EpochState::Running.into(),
            total: 1_281_167,
            delivered: 700_000,
            samples_per_second: 8_123.4,
            eta_ms: Some(71_000),
            ..wire::Epoch::default()
        };
        let worker = |name: &str, leases: u64| wire::Worker {
            name: name.into(),
            leases,
            seen_ms: Some(300),
            ..wire::Worker::default()
        };
        let cell = |done, reading, pending| Cell { done, reading, pending, ..Cell::default() };
        let mut cells = vec![cell(2, 0, 0); 300];
        cells.extend([cell(1, 1, 0), cell(0, 2, 0)]);
        cells.extend(vec![cell(0, 0, 2); 210]);
        let event =
            |at_ms, text: &str| wire::Event { at_ms, text: text.into(), ..wire::Event::default() };
        Scene {
            taken: Instant::now(),
            clock_ms: 1_790_000_000_000,
            address: "head-1:7070".into(),
            status: wire::GetStatusResponse { leader: Some(2), ..Default::default() },
            workers: vec![worker("node-1", 2), worker("node-2", 2)],
            jobs: vec![
                job("resnet", Some(epoch)),
                job("a job with a name that is far too long", None),
            ],
            at: Some(0),
            ranks: (0..4).map(|number| rank(number, 100 - 10 * number, 200_000 * number)).collect(),
            map: Some(wire::GetEpochMapResponse { epoch: 3, generation: 1, shards: 1024, cells }),
            events: vec![
                event(
                    1_789_999_000_000,
                    "worker node-1 on node-1 joined as session 4, version 0.1.0",
                ),
                event(1_789_999_999_000, "rank 3 of job resnet is served by worker node-2"),
            ],
            verdict: "job `resnet`, rank 3: storage limits this rank".into(),
        }
    }

    fn drawn(
        scene: &Scene,
        look: &DisplayOptions,
        (columns, lines): (u16, u16),
    ) -> (String, Vec<Color>) {
        let mut screen = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        screen.draw(|frame| draw(frame, scene, look)).unwrap();
        let buffer = screen.backend().buffer();
        let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let text = (0..lines).map(|y| row(y).trim_end().to_owned() + "\n").collect();
        (text, buffer.content().iter().map(|cell| cell.fg).collect())
    }

    const PLAIN: DisplayOptions =
        DisplayOptions { has_colours: false, is_held: false, has_keys: true, error: None };

    #[test]
    fn a_small_screen_without_colours_says_everything() {
        let (text, colours) = drawn(&scene(), &PLAIN, (80, 24));
        expect![[r#"
            shardfeed head-1:7070  leader 2  2 workers  2 jobs  2026-09-21T14:13:20Z
            job `resnet`, rank 3: storage limits this rank

              JOB          STATE      EPOCH DELIVERED             SAMPLES/S     LEFT  SERVED
            > resnet       running        3 ######------   54.6%      8,123     71 s  4 of 4
              a job with … waiting
            SHARDS of epoch 3: 1,024, 4 a cell  # done  1-9 tenths done  . pending
            ################################################################################
            ######################################################################2.........
            ................................................................................
            ................
            RANKS 4                                  WORKER         RANKS WAITS   SEEN STATE
            behind  .▃▆█                             node-1             2     - 300 ms open
            waits   .▂▄▅                             node-2             2     - 300 ms open
            for      sss
            rank 3 is 30 steps behind
            rank 3 waits 60 %: storage
            for ahead coordinator decode gather held inflate memory storage trainer window
            EVENTS
                1 s ago  rank 3 of job resnet is served by worker node-2
             16 min ago  worker node-1 on node-1 joined as session 4, version 0.1.0


            q ends   up, down: job   p holds
        "#]]
        .assert_eq(&text);
        assert!(colours.iter().all(|colour| *colour == Color::Reset));
        let (_, colours) =
            drawn(&scene(), &DisplayOptions { has_colours: true, ..PLAIN }, (80, 24));
        assert!(colours.contains(&Color::Green));
    }

    #[test]
    fn a_rank_in_an_earlier_epoch_is_behind() {
        let at = |number, epoch, step, steps| wire::Rank { epoch, steps, ..rank(number, step, 0) };
        let lines = |ranks: Vec<wire::Rank>| drawn(&Scene { ranks, ..scene() }, &PLAIN, (80, 24)).0;
        let dynamic = lines(vec![at(0, 2, 900, 0), at(1, 3, 10, 0), at(2, 3, 4, 0)]);
        assert!(dynamic.contains("rank 0 is 1 epoch behind"), "{dynamic}");
        let same = lines(vec![at(0, 3, 10, 0), at(1, 3, 4, 0)]);
        assert!(same.contains("rank 1 is 6 steps behind"), "{same}");
        let known = lines(vec![at(0, 2, 390, 400), at(1, 3, 5, 400)]);
        assert!(known.contains("rank 0 is 15 steps behind"), "{known}");
    }

    #[test]
    fn a_worker_whose_ranks_have_not_reported_has_no_wait() {
        let reported = |setup| Account { setup, ..Account::default() };
        let worker = |setup| wire::Worker {
            name: "node-9".into(),
            accounts: vec![reported(setup)],
            ..wire::Worker::default()
        };
        let line = |setup| {
            let scene = Scene { workers: vec![worker(setup)], ..scene() };
            let text = drawn(&scene, &PLAIN, (80, 24)).0;
            text.lines().find(|line| line.contains("node-9")).unwrap().to_owned()
        };
        assert!(!line(None).contains("0 %"), "{}", line(None));
        assert!(line(Some(Setup::default())).contains("0 %"));
    }

    #[test]
    fn letters_and_signs_are_explained_within_eighty_columns() {
        assert!(limits().len() <= 80, "{}", limits());
        for limit in Limit::ALL.into_iter().filter(|limit| *limit != Limit::Unknown) {
            assert!(limits().contains(&format!(" {}", limit.letter())), "{limit:?}");
        }
        let cell = |pending, leased, reading, done, skipped| Cell {
            pending,
            leased,
            reading,
            done,
            skipped,
        };
        let cells = [
            (cell(0, 0, 0, 3, 0), '#'),
            (cell(0, 0, 0, 3, 1), '#'),
            (cell(99, 0, 0, 1, 0), '1'),
            (cell(0, 1, 0, 1, 0), '5'),
            (cell(0, 0, 1, 99, 0), '9'),
            (cell(5, 0, 1, 0, 0), 'o'),
            (cell(1, 1, 0, 0, 0), '.'),
            (cell(0, 1, 0, 0, 1), '-'),
            (cell(0, 0, 0, 0, 1), 'x'),
        ];
        let pen = Pen { has_colours: false };
        for (cell, expected) in &cells {
            assert_eq!(sign(cell, pen).0, *expected, "{cell:?}");
        }
        let cells: Vec<_> = cells.iter().map(|(cell, _)| *cell).collect();
        expect!["  # done  1-9 tenths done  o read  - leased  . pending  x out"]
            .assert_eq(&meanings(&cells));
        expect!["  # done"].assert_eq(&meanings(&cells[..2]));
    }

    #[test]
    fn an_error_stands_where_the_verdict_was_and_the_picture_stays() {
        let look =
            DisplayOptions { error: Some("no coordinator answers".into()), is_held: true, ..PLAIN };
        let (text, _) = drawn(&scene(), &look, (80, 24));
        assert!(text.contains("no coordinator answers") && text.contains("resnet"), "{text}");
        assert!(text.contains("HELD"), "{text}");
    }

    #[test]
    fn any_size_and_an_empty_cluster_can_be_drawn() {
        let mut empty = scene();
        (empty.jobs, empty.at, empty.map) = (vec![], None, None);
        empty.ranks.clear();
        empty.events.clear();
        for size in [(1, 1), (20, 3), (80, 24), (300, 100)] {
            drawn(&empty, &PLAIN, size);
            drawn(&scene(), &PLAIN, size);
        }
        let (text, _) = drawn(&empty, &PLAIN, (80, 24));
        assert!(text.contains("no jobs") && text.contains("nothing is known yet"), "{text}");
    }
}
