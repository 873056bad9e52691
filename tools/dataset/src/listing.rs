//! Lists for people: selected columns, more for wide lists, and a bounded number of rows.

use std::borrow::Borrow;
use std::io::{self, Write};

use crate::output::{self, Grid, ROWS_LISTED};

/// A column of a list of `T`.
pub struct Column<T> {
    heading: &'static str,
    is_wide: bool,
    cell: fn(&T) -> String,
}

/// Creates a column of every list; `>` before the heading marks numbers.
pub fn column<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, is_wide: false, cell }
}

/// Creates a column of wide lists only.
pub fn wide<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, is_wide: true, cell }
}

#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// True for all columns.
    pub is_wide: bool,
    /// True for all rows, not only the first ones.
    pub all: bool,
}

/// Writes a list.
/// - `things`: noun for the rows, in the plural.
pub fn write<T, R: Borrow<T>>(
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
