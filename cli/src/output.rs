//! Output of all commands: that of the dataset tools, and lists and words of a cluster.

pub(crate) mod words;

pub(crate) use shardfeed_dataset_tools::listing;
pub(crate) use shardfeed_dataset_tools::output::{
    Format, Grid, ROWS_LISTED, Report, StdoutError, bytes, count, counted, facts, has_headers,
    line, printable, size, without_headers, write_facts,
};
