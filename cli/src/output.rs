//! Results on stdout: tables for people, JSON for programs.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufWriter, Write};

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{DecimalBytes, HumanCount};
use serde::Serialize;

/// Rows that a table shows before it says how many more there are, unless `--all` is given.
pub(crate) const ROWS_LISTED: usize = 20;

/// Columns between two columns.
const GAP: u16 = 2;

/// How results are printed; `Wide` is a table with more columns, where there are more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Wide,
    Json,
}

/// A result: its fields are the JSON, and it can write itself for people.
pub(crate) trait Report: Serialize {
    /// Writes what people want to see.
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Writes more of it; the same where there is no more.
    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_table(out)
    }
}

/// stdout does not take what is written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct StdoutError(io::Error);

impl StdoutError {
    /// Whether the reader went away, as `head` does.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl Format {
    /// Prints a result.
    pub(crate) fn print(self, report: &impl Report) -> Result<(), StdoutError> {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = match self {
            Self::Table => report.write_table(&mut out),
            Self::Wide => report.write_wide(&mut out),
            Self::Json => serde_json::to_writer_pretty(&mut out, report)
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n")),
        };
        written.and_then(|()| out.flush()).map_err(StdoutError)
    }
}

/// Prints a line, at once.
pub(crate) fn line(text: &str) -> Result<(), StdoutError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(StdoutError)
}

/// A table in the making: no borders, so that other tools can cut it.
pub(crate) struct Grid(Table);

impl Grid {
    /// A table with these columns; those that start with `>` hold numbers and stand to the right.
    pub(crate) fn new(columns: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(|name| name.trim_start_matches('>')));
        for (name, column) in columns.iter().zip(table.column_iter_mut()) {
            column.set_padding((0, GAP));
            if name.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter().map(|cell| printable(&cell).into_owned()));
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

/// Writes names with their values, one below the other.
pub(crate) fn write_facts(out: &mut dyn Write, facts: &[(&str, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        writeln!(out, "{name:width$}  {}", printable(value))?;
    }
    Ok(())
}

/// Says how many rows were left out, if any.
pub(crate) fn write_rest(out: &mut dyn Write, rest: usize, what: &str) -> io::Result<()> {
    match rest {
        0 => Ok(()),
        rest => writeln!(out, "… and {rest} more {what} (--all shows them)"),
    }
}

/// A size: in bytes, and as people say it.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        _ => format!("{} bytes ({})", count(bytes), DecimalBytes(bytes)),
    }
}

/// A size as people say it, for columns.
pub(crate) fn size(bytes: u64) -> String {
    DecimalBytes(bytes).to_string()
}

/// A number with its thousands set apart.
pub(crate) fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A number of things, in words.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// The text without anything that could command a terminal: names come from files.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
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
