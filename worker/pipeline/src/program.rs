//! The operators of a job, in the order in which they run for the rows of a part of a batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardfeed_tfrecord::example::{Feature, Parts};

use crate::column::{ColumnKind, Origin, Plan};
use crate::draw::DrawKey;
use crate::dtype::Dtype;
use crate::operator::{
    Chain, ColumnBuffer, ColumnMemory, Failed, Form, Given, Input, Inputs, Operator, OperatorError,
    OperatorWork, Side, TableFault, TableRef,
};
use crate::record::{Row, RowError, RowFault};
use crate::rows::Cells;

/// Source of an operator's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputSource {
    /// A parsed feature.
    Feature(usize),
    /// A parsed feature with a variable number of values.
    Rows(usize),
    /// An earlier operator.
    Step(usize),
}

#[derive(Debug)]
struct ProgramStep {
    output: String,
    inputs: Vec<InputSource>,
    form: Form,
    work: OperatorWork,
    /// Last step that uses the result.
    taken_by: Option<usize>,
}

/// Meaning of a name between operators.
#[derive(Clone, Debug)]
enum KnownName {
    Column(Plan),
    /// Images whose size differs from row to row: declared, and run by the step that makes sizes
    /// equal.
    Images {
        chain: Chain,
        inputs: Vec<InputSource>,
        position: usize,
        is_taken: bool,
    },
}

/// Meaning of each name, in the order in which the names appeared.
struct Names {
    known: Vec<(String, KnownName)>,
    places: BTreeMap<String, usize>,
}

impl Names {
    fn get_mut(&mut self, name: &str) -> Option<&mut KnownName> {
        self.places.get(name).map(|place| &mut self.known[*place].1)
    }

    fn set(&mut self, name: &str, known: KnownName) {
        if let Some(earlier) = self.get_mut(name) {
            *earlier = known;
            return;
        }
        self.places.insert(name.to_owned(), self.known.len());
        self.known.push((name.to_owned(), known));
    }

    fn listed(&self) -> String {
        let names: Vec<_> = self.known.iter().map(|(name, _)| name.as_str()).collect();
        names.join("`, `")
    }
}

/// All operators of a job, checked against each other.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// Features used as inputs, with their plans from parsing.
    features: Vec<Plan>,
    /// Features with a variable number of values.
    rows: Vec<Plan>,
    steps: Vec<ProgramStep>,
    /// Tables, each once.
    sides: Vec<Arc<Side>>,
    memory: ColumnMemory,
}

/// Columns and images after all operators, by name.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Parsed columns that were not replaced, and columns made by operators.
    pub(crate) columns: Vec<(String, Plan)>,
    /// Images of different sizes, which no batch contains.
    pub(crate) images: Vec<String>,
}

impl Program {
    /// Checks the operators and builds the program.
    /// - `plans`: all parsed columns.
    /// - Returns the program, and the columns after the last operator.
    pub(crate) fn new(
        plans: &[Plan],
        operators: &[Operator],
    ) -> Result<(Self, Made), OperatorError> {
        let mut known = Names { known: Vec::new(), places: BTreeMap::new() };
        for plan in plans {
            let name = plan.spec.as_ref().map_or("record", |spec| &spec.name);
            known.set(name, KnownName::Column(plan.clone()));
        }
        let mut program = Self::default();
        for (number, operator) in operators.iter().enumerate() {
            let made = program.add(&mut known, number, operator).map_err(|what| OperatorError {
                operator: number,
                output: operator.output.clone(),
                what,
            })?;
            known.set(&operator.output, made);
        }
        let mut made = Made::default();
        for (name, known) in known.known {
            match known {
                KnownName::Column(plan) => made.columns.push((name, plan)),
                KnownName::Images { is_taken: true, .. } => made.images.push(name),
                KnownName::Images { position, .. } => {
                    let what = "its images differ in size from row to row, and nothing makes them one size; \
                                resize or crop them"
                        .to_owned();
                    return Err(OperatorError { operator: position, output: name, what });
                }
            }
        }
        Ok((program, made))
    }

    /// Adds one operator.
    fn add(
        &mut self,
        known: &mut Names,
        position: usize,
        Operator { output, operation }: &Operator,
    ) -> Result<KnownName, String> {
        let definition = operation.definition();
        let (mut inputs, mut forms, mut images) = (vec![], vec![], None);
        let takes = definition.inputs()?;
        for input in takes.names() {
            let Some(of) = known.get_mut(input) else {
                let names = known.listed();
                return Err(format!("there is no column `{input}`; there are `{names}`"));
            };
            match of {
                KnownName::Column(plan) => {
                    let (source, form) = match takes {
                        Inputs::Rows(_) => self.rows(plan)?,
                        Inputs::Fixed(_) | Inputs::Images(_) => self.source(plan)?,
                    };
                    inputs.push(source);
                    forms.push(form);
                }
                KnownName::Images { chain, inputs: of, is_taken, .. } => {
                    if !matches!(takes, Inputs::Images(_)) {
                        return Err(format!(
                            "the images of `{input}` differ in size from row to row; resize or crop them first"
                        ));
                    }
                    *is_taken = true;
                    images = Some(chain.clone());
                    inputs.clone_from(of);
                }
            }
        }
        let side = operation.table().map(|table| self.side(table));
        let work = definition.prepare(Given { forms: &forms, images, position, side })?;
        let form = match &work {
            OperatorWork::Columns(ready) => ready.form.clone(),
            OperatorWork::Images(chain) => match chain.form() {
                Some(form) => form?,
                None => {
                    let chain = chain.clone();
                    return Ok(KnownName::Images { chain, inputs, position, is_taken: false });
                }
            },
        };
        let Form { dtype, shape } = form.clone();
        for input in &inputs {
            if let InputSource::Step(step) = input {
                self.steps[*step].taken_by = Some(self.steps.len());
            }
        }
        let origin = Origin::Step(self.steps.len());
        self.steps.push(ProgramStep { output: output.clone(), inputs, form, work, taken_by: None });
        Ok(KnownName::Column(Plan { kind: ColumnKind::Dense { dtype, shape }, origin, spec: None }))
    }

    fn side(&mut self, table: &TableRef) -> Arc<Side> {
        let place = self.sides.iter().position(|side| side.is(table)).unwrap_or_else(|| {
            self.sides.push(Arc::new(Side::new(table.clone())));
            self.sides.len() - 1
        });
        Arc::clone(&self.sides[place])
    }

    /// Opens all tables.
    pub(crate) fn open_tables(&self) -> Result<(), TableFault> {
        self.steps.iter().try_for_each(|step| match &step.work {
            OperatorWork::Columns(ready) => ready.open.as_ref().map_or(Ok(()), |open| open()),
            OperatorWork::Images(_) => Ok(()),
        })
    }

    /// Bytes per row of intermediate columns.
    pub(crate) fn row_bytes(&self) -> usize {
        let features = self.features.iter().map(|plan| match &plan.kind {
            ColumnKind::Dense { dtype, shape } => {
                Form { dtype: *dtype, shape: shape.clone() }.row_bytes()
            }
            _ => 0,
        });
        let taken = self.steps.iter().filter(|step| step.taken_by.is_some());
        features.chain(taken.map(|step| step.form.row_bytes())).sum()
    }

    /// Memory for the operators' intermediate columns.
    pub(crate) fn memory(&self) -> &ColumnMemory {
        &self.memory
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Source of a column, if it can be an operator's input.
    fn source(&mut self, plan: &Plan) -> Result<(InputSource, Form), String> {
        let ColumnKind::Dense { dtype, shape } = &plan.kind else {
            return Err(
                "it takes columns of a fixed shape: a FixedLenFeature, or an operator's output"
                    .to_owned(),
            );
        };
        let form = Form { dtype: *dtype, shape: shape.clone() };
        if let Origin::Step(step) = plan.origin {
            return Ok((InputSource::Step(step), form));
        }
        let is_fixed =
            plan.spec.as_ref().is_none_or(|spec| matches!(spec.feature, Feature::FixedLen { .. }));
        if !is_fixed {
            return Err("it takes columns of a fixed shape".to_owned());
        }
        let known = self.features.iter().position(|known| known.origin == plan.origin);
        let place = known.unwrap_or_else(|| {
            self.features.push(plan.clone());
            self.features.len() - 1
        });
        Ok((InputSource::Feature(place), form))
    }

    /// Source of a column with a variable number of values.
    fn rows(&mut self, plan: &Plan) -> Result<(InputSource, Form), String> {
        let is_plain = matches!(plan.origin, Origin::Feature(Parts::One { .. }));
        let ColumnKind::Ragged { dtype, levels: 1, shape } = &plan.kind else {
            return Err("it takes columns of any number of values: a VarLenFeature".to_owned());
        };
        if !is_plain || !shape.is_empty() || *dtype == Dtype::Bytes {
            return Err("it takes a VarLenFeature of int64 or float32".to_owned());
        }
        let form = Form { dtype: *dtype, shape: vec![] };
        let known = self.rows.iter().position(|known| known.origin == plan.origin);
        let place = known.unwrap_or_else(|| {
            self.rows.push(plan.clone());
            self.rows.len() - 1
        });
        Ok((InputSource::Rows(place), form))
    }

    /// Runs all operators for the rows of `cells`.
    /// - `output`: returns the range of a step's column in the batch, if it has one; called once
    ///   per step.
    ///
    /// # Errors  The row in which an operator fails.
    pub(crate) fn run<'o>(
        &self,
        cells: &Cells<'_>,
        key: &DrawKey,
        mut output: impl FnMut(usize) -> Option<&'o mut [u8]>,
    ) -> Result<(), RowError> {
        if self.is_empty() {
            return Ok(());
        }
        let rows = cells.rows.len();
        let failed = |output: &str, (row, fault): Failed| {
            let output = output.to_owned();
            RowError::at(&cells.rows[row], RowFault::Operator { output, fault })
        };
        let numbers_of = |form: &Form, rows: usize, plan: &Plan| {
            let mut column = ColumnBuffer::new(form, rows, &self.memory)
                .map_err(|fault| failed("operators", (0, fault)))?;
            cells.numbers(plan, column.bytes_mut());
            Ok::<_, RowError>(column)
        };
        let mut numbers: Vec<ColumnBuffer> = Vec::with_capacity(self.features.len());
        let mut strings: Vec<Vec<&[u8]>> = Vec::with_capacity(self.features.len());
        for plan in &self.features {
            let (mut column, mut texts) = (ColumnBuffer::default(), vec![]);
            match plan.kind.dtype() {
                Dtype::Bytes => texts = cells.strings(plan),
                dtype => {
                    let ColumnKind::Dense { shape, .. } = &plan.kind else {
                        unreachable!("only columns of a fixed shape are taken");
                    };
                    let form = Form { dtype, shape: shape.clone() };
                    column = numbers_of(&form, rows, plan)?;
                }
            }
            numbers.push(column);
            strings.push(texts);
        }
        let mut ragged: Vec<(ColumnBuffer, Vec<usize>)> = Vec::with_capacity(self.rows.len());
        for plan in &self.rows {
            let lengths = cells.lengths(plan);
            let form = Form { dtype: plan.kind.dtype(), shape: vec![lengths.iter().sum()] };
            ragged.push((numbers_of(&form, 1, plan)?, lengths));
        }
        let mut made: Vec<ColumnBuffer> = Vec::with_capacity(self.steps.len());
        for (number, step) in self.steps.iter().enumerate() {
            let inputs: Vec<Input<'_>> = step
                .inputs
                .iter()
                .map(|source| match source {
                    InputSource::Feature(at) if self.features[*at].kind.dtype() == Dtype::Bytes => {
                        Input::Strings(&strings[*at])
                    }
                    InputSource::Feature(at) => {
                        Input::Numbers(numbers[*at].bytes(), self.features[*at].kind.row_bytes())
                    }
                    InputSource::Rows(at) => Input::Rows(ragged[*at].0.bytes(), &ragged[*at].1),
                    InputSource::Step(at) => {
                        Input::Numbers(made[*at].bytes(), self.steps[*at].form.row_bytes())
                    }
                })
                .collect();
            let failed = |failure| failed(&step.output, failure);
            let carry_out = |out: &mut [u8]| match &step.work {
                OperatorWork::Columns(ready) => (ready.run)(&inputs, rows, out),
                OperatorWork::Images(chain) => {
                    let draws = |row: usize, position| {
                        let Row { sample, occurrence, .. } = cells.rows[row];
                        key.draws(sample, occurrence, position)
                    };
                    chain.run_all(&inputs, rows, draws, &self.memory, out)
                }
            };
            let mut column = ColumnBuffer::default();
            match output(number) {
                // No later step uses it: it is written directly to the batch.
                Some(out) if step.taken_by.is_none() => {
                    carry_out(out).map_err(failed)?;
                }
                out => {
                    column = ColumnBuffer::new(&step.form, rows, &self.memory)
                        .map_err(|fault| failed((0, fault)))?;
                    carry_out(column.bytes_mut()).map_err(failed)?;
                    if let Some(out) = out {
                        out.copy_from_slice(column.bytes());
                    }
                }
            }
            made.push(column);
            // Releases columns that no later step uses.
            for source in &step.inputs {
                if let InputSource::Step(at) = source
                    && self.steps[*at].taken_by == Some(number)
                {
                    self.memory.keep(&mut made[*at]);
                }
            }
            if step.taken_by.is_none() {
                self.memory.keep(&mut made[number]);
            }
        }
        numbers.iter_mut().for_each(|column| self.memory.keep(column));
        ragged.iter_mut().for_each(|(column, _)| self.memory.keep(column));
        Ok(())
    }
}
