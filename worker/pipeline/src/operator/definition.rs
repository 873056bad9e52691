//! The definition of an operator: its inputs, its output and its work.

use std::fmt;
use std::sync::Arc;

use shardfeed_tfrecord::example::DefaultValue;

use super::fault::Failed;
use super::form::{Form, Input};
use super::image::Chain;
use super::lookup::Finder;
use super::table::{Side, TableFault};

/// Names of the columns that an operator takes.
#[derive(Debug)]
pub(crate) enum Inputs {
    /// Columns of a fixed shape; or ragged ones, of which the operator gets each value as a row.
    Fixed(Vec<String>),
    /// A column of rows with a variable number of values.
    Rows(String),
    /// A column of a fixed shape or of rows with a variable number of values, or images.
    Any(String),
    /// Images, of one size or of different sizes, followed by columns of a fixed shape.
    Images(Vec<String>),
}

impl Inputs {
    pub(crate) fn names(&self) -> &[String] {
        match self {
            Self::Fixed(names) | Self::Images(names) => names,
            Self::Rows(name) | Self::Any(name) => std::slice::from_ref(name),
        }
    }
}

/// Inputs of an operator at its position in a job.
#[derive(Debug)]
pub(crate) struct Given<'a> {
    /// Forms of the input columns, in the order of [`Definition::inputs`]; without `images`.
    pub(crate) forms: &'a [Form],
    /// True if the input is rows with a variable number of values; its form is that of a value.
    pub(crate) is_rows: bool,
    /// The input, if it is images of different sizes.
    pub(crate) images: Option<Chain>,
    /// Index among the operators, from 0; keys the random draws.
    pub(crate) position: usize,
    /// The operator's lookup table, if it has one.
    pub(crate) side: Option<Arc<Side>>,
}

impl Given<'_> {
    /// Returns the input of an operator that takes images.
    pub(crate) fn images(&self) -> Result<Chain, String> {
        self.images.clone().map_or_else(|| Chain::of_numbers(&self.forms[0]), Ok)
    }
}

/// An operator; the crate's only list of them is [`Operation`](super::Operation).
pub(crate) trait Definition {
    /// Row of the table in docs/OPERATORS.md: operator, result, equivalent, comparison.
    fn row() -> &'static str
    where
        Self: Sized;

    /// Version of the behaviour; part of a job's identity.
    fn version(&self) -> u32 {
        1
    }

    fn inputs(&self) -> Result<Inputs, String>;

    /// Form of the output for an input of this form, if a device may run the operator.
    fn device_form(&self, _input: &Form) -> Option<Result<Form, String>> {
        None
    }

    /// Checks the operator, and prepares its work. Its cost is the form's [`Form::row_bytes`].
    ///
    /// # Errors  The reason why it cannot be applied.
    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String>;
}

#[derive(Debug)]
pub(crate) enum OperatorWork {
    Columns(ColumnOperator),
    /// Processes row by row, through all operators of an image.
    Images(Chain),
    Strings {
        from: Strings,
        shape: Vec<usize>,
    },
}

/// Source of an operator's strings.
#[derive(Debug)]
pub(crate) enum Strings {
    /// The same in every row.
    Constant(DefaultValue),
    /// A table, by the keys in the input.
    Table(Arc<Finder>),
}

impl OperatorWork {
    /// Creates the work of an operator on whole columns.
    /// - `form`: of the output. `run`: writes some output rows, from their inputs and number.
    pub(crate) fn columns(
        form: Form,
        run: impl Fn(&[Input<'_>], usize, &mut [u8]) -> Result<(), Failed> + Send + Sync + 'static,
    ) -> Self {
        Self::Columns(ColumnOperator { form, run: Box::new(run), open: None })
    }
}

type Run = dyn Fn(&[Input<'_>], usize, &mut [u8]) -> Result<(), Failed> + Send + Sync;

type OpenTables = dyn Fn() -> Result<(), TableFault> + Send + Sync;

/// An operator on whole columns, ready to run any number of times.
pub(crate) struct ColumnOperator {
    pub(crate) form: Form,
    pub(crate) run: Box<Run>,
    /// Opens the lookup table.
    pub(crate) open: Option<Box<OpenTables>>,
}

impl fmt::Debug for ColumnOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColumnOperator").field("form", &self.form).finish_non_exhaustive()
    }
}
