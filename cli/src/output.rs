//! Output of all commands: that of the dataset tools, and lists and words of a cluster.

pub(crate) mod words;

pub(crate) use shardfeed_dataset_tools::listing;
pub(crate) use shardfeed_dataset_tools::output::{
    Format, Grid, ROWS_LISTED, Report, StdoutError, bytes, count, counted, facts, has_headers,
    line, printable, size, without_headers, write_facts,
};

/// Declares the report of a list: its rows, and the field of a row with its name.
/// - `$things`: noun for the rows, in the plural.
macro_rules! list_report {
    (
        $report:ident { $rows:ident: $row:ty } $(of $field:ident: $type:ty)?,
        $name:literal,
        $things:literal
    ) => {
        #[derive(Debug, Serialize)]
        struct $report {
            $($field: $type,)?
            $rows: Vec<$row>,
            /// True for all rows, not only the first ones.
            #[serde(skip)]
            all: bool,
        }

        impl Report for $report {
            const LISTS: Option<(&'static str, &'static str)> = Some((stringify!($rows), $name));

            fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
                let shown = Shown { is_wide, all: self.all };
                listing::write(out, $things, &self.$rows, &columns(), shown)
            }
        }
    };
}
pub(crate) use list_report;
