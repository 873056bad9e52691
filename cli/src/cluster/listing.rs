//! Lists for people: some columns, more of them if asked, and a bounded number of rows.

use std::borrow::Borrow;
use std::io::{self, Write};

use crate::output::{self, Grid, ROWS_LISTED};

/// A column of a list of `T`.
pub(super) struct Column<T> {
    heading: &'static str,
    is_wide: bool,
    cell: fn(&T) -> String,
}

/// A column that every list has; `>` before the heading: it holds numbers.
pub(super) fn column<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, is_wide: false, cell }
}

/// A column that only wide lists have.
pub(super) fn wide<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, is_wide: true, cell }
}

/// How much of a list is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) is_wide: bool,
    /// All rows, not only the first.
    pub(super) all: bool,
}

/// Writes a list.
/// - `things`: what its rows are, in the plural.
pub(super) fn write<T, R: Borrow<T>>(
    out: &mut dyn Write,
    things: &str,
    rows: &[R],
    columns: &[Column<T>],
    shown: Shown,
) -> io::Result<()> {
    if rows.is_empty() {
        if !output::has_headers() {
            return Ok(());
        }
        return writeln!(out, "no {things}");
    }
    let columns: Vec<_> = columns.iter().filter(|c| shown.is_wide || !c.is_wide).collect();
    let headings: Vec<_> = columns.iter().map(|column| column.heading).collect();
    let mut grid = Grid::new(&headings);
    let listed = if shown.all { rows.len() } else { ROWS_LISTED };
    for row in rows.iter().take(listed) {
        grid.row(columns.iter().map(|column| (column.cell)(row.borrow())));
    }
    write!(out, "{grid}")?;
    output::write_rest(out, rows.len().saturating_sub(listed), things)
}
