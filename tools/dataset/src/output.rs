//! Results on stdout: tables for people, JSON for programs.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{DecimalBytes, HumanCount};
use serde::Serialize;
use serde_json::Value;

/// Number of rows that a table shows without `--all`; the rest is only counted.
pub const ROWS_LISTED: usize = 20;

/// Spaces between two columns.
const GAP: u16 = 2;

/// Output format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "clap would add them to the help")]
pub enum Format {
    // For people
    #[default]
    Table,
    // For people, with more columns if there are any
    Wide,
    // One JSON document
    Json,
    // One line of JSON for each listed item
    Jsonl,
    // One name per line
    Name,
}

/// True if tables have a header line.
static HAS_HEADERS: AtomicBool = AtomicBool::new(true);

/// Omits the header line of all later tables.
pub fn without_headers() {
    HAS_HEADERS.store(false, Ordering::Relaxed);
}

pub fn has_headers() -> bool {
    HAS_HEADERS.load(Ordering::Relaxed)
}

/// A result: its fields form the JSON, and it can write itself as text for people.
pub trait Report: Serialize {
    /// For lists: the field with the items, and the field of each item with its name.
    const LISTS: Option<(&'static str, &'static str)> = None;

    /// Writes the text for people.
    /// - `is_wide`: with more columns, if there are any.
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()>;
}

/// A result of a few fields, with its text for people.
#[derive(Serialize)]
#[serde(transparent)]
struct Brief {
    fields: Value,
    #[serde(skip)]
    text: String,
}

impl Report for Brief {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        out.write_all(self.text.as_bytes())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StdoutError {
    #[error("cannot write to standard output: {0}")]
    Write(#[from] io::Error),
    /// `-o name` for a command whose result has no names.
    #[error("this command lists nothing that has names")]
    NoNames,
}

impl StdoutError {
    /// True if the reader closed the stream, as `head` does.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl Format {
    pub fn print<R: Report>(self, report: &R) -> Result<(), StdoutError> {
        let mut out = BufWriter::new(io::stdout().lock());
        match self {
            Self::Table | Self::Wide => report.write(&mut out, self == Self::Wide)?,
            Self::Json => {
                serde_json::to_writer_pretty(&mut out, report).map_err(io::Error::from)?;
                out.write_all(b"\n")?;
            }
            Self::Jsonl => {
                let whole = serde_json::to_value(report).map_err(io::Error::from)?;
                match R::LISTS.and_then(|(field, _)| whole.get(field)?.as_array()) {
                    Some(things) => things.iter().try_for_each(|thing| writeln!(out, "{thing}"))?,
                    None => writeln!(out, "{whole}")?,
                }
            }
            Self::Name => {
                let (field, name) = R::LISTS.ok_or(StdoutError::NoNames)?;
                let whole = serde_json::to_value(report).map_err(io::Error::from)?;
                for thing in whole.get(field).and_then(Value::as_array).into_iter().flatten() {
                    match thing.get(name) {
                        Some(Value::String(text)) => writeln!(out, "{}", printable(text))?,
                        Some(other) => writeln!(out, "{other}")?,
                        None => return Err(StdoutError::NoNames),
                    }
                }
            }
        }
        Ok(out.flush()?)
    }

    /// Prints a result of a few fields.
    /// - `text`: the text for people, with its ends of lines.
    pub fn print_brief(self, fields: Value, text: String) -> Result<(), StdoutError> {
        self.print(&Brief { fields, text })
    }
}

pub fn line(text: &str) -> Result<(), StdoutError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// A table without borders, so that other tools can cut it.
pub struct Grid(Table);

impl Grid {
    /// Creates a table with these columns; those with `>` hold numbers and are right-aligned.
    pub fn new(columns: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let headings = columns.iter().map(|name| name.trim_start_matches('>'));
        table.set_header(headings);
        for (name, column) in columns.iter().zip(table.column_iter_mut()) {
            column.set_padding((0, GAP));
            if name.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter().map(|cell| printable(&cell).into_owned()));
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.trim_fmt();
        // The header is removed at the end: the columns get their alignment from it.
        match text.split_once('\n') {
            Some((_, rows)) if !has_headers() => writeln!(f, "{rows}"),
            None if !has_headers() => Ok(()),
            _ => writeln!(f, "{text}"),
        }
    }
}

pub fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:width$}  {}\n", printable(value));
    facts.iter().map(line).collect()
}

pub fn write_facts(out: &mut dyn Write, facts: &[(&str, String)]) -> io::Result<()> {
    out.write_all(self::facts(facts).as_bytes())
}

/// Writes how many rows were left out, if any.
pub fn write_rest(out: &mut dyn Write, rest: usize, what: &str) -> io::Result<()> {
    match rest {
        0 => Ok(()),
        rest => writeln!(out, "… and {rest} more {what} (--all shows them)"),
    }
}

/// Formats a size: in bytes, and in a larger unit.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        _ => format!("{} bytes ({})", count(bytes), DecimalBytes(bytes)),
    }
}

/// Formats a size in a suitable unit, for columns.
pub fn size(bytes: u64) -> String {
    DecimalBytes(bytes).to_string()
}

/// Formats a number with thousands separators.
pub fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Formats a number with its noun.
pub fn counted(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// Escapes control characters, which could command a terminal: names come from files.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().map(|character| {
        if character.is_control() {
            character.escape_default().to_string()
        } else {
            character.to_string()
        }
    });
    Cow::Owned(escaped.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_command_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("größe"), "größe");
    }

    #[test]
    fn sizes_are_exact_and_readable() {
        assert_eq!(bytes(999), "999 bytes");
        assert_eq!(bytes(1_500_000), "1,500,000 bytes (1.50 MB)");
    }
}
