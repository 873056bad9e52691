//! Output of all commands: that of the dataset tools, and lists and words of a cluster.

pub(crate) mod listing;
pub(crate) mod words;

pub(crate) use shardfeed_dataset_tools::output::{
    Format, Grid, ROWS_LISTED, Report, StdoutError, bytes, count, counted, has_headers, line,
    printable, size, without_headers, write_facts, write_rest,
};
