//! The operators of a job, in the order in which they are carried out for the rows of a part of a batch.

use shardfeed_tfrecord::example::Feature;

use crate::column::{ColumnKind, Origin, Plan};
use crate::dtype::Dtype;
use crate::operator::{
    Column, Failed, Form, Input, Memory, Operator, OperatorError, OperatorFault, Ready,
};
use crate::rows::Cells;

/// Where an operator's input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A parsed feature.
    Feature(usize),
    /// An earlier operator.
    Step(usize),
}

#[derive(Clone, Debug)]
struct Step {
    output: String,
    inputs: Vec<Source>,
    ready: Ready,
    /// The last one that takes it.
    taken_by: Option<usize>,
}

/// All operators, checked against each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    /// Features that are taken, as parsing knows them.
    features: Vec<Plan>,
    steps: Vec<Step>,
    memory: Memory,
}

/// What an operator's row could not be, and which one.
pub(crate) struct Fault {
    pub(crate) row: usize,
    pub(crate) output: String,
    pub(crate) fault: OperatorFault,
}

impl Program {
    /// - `plans`: all that parsing gives.
    /// - Returns the program, and what is there at the end by name: all columns of parsing that were not
    ///   replaced, and those that operators made.
    pub(crate) fn new(
        plans: &[Plan],
        operators: &[Operator],
    ) -> Result<(Self, Vec<(String, Plan)>), OperatorError> {
        let name = |plan: &Plan| plan.spec.as_ref().map_or("record", |spec| &spec.name).to_owned();
        let mut columns: Vec<(String, Plan)> =
            plans.iter().map(|plan| (name(plan), plan.clone())).collect();
        let mut program = Self::default();
        for (number, Operator { output, operation }) in operators.iter().enumerate() {
            let refuse =
                |what: String| OperatorError { operator: number, output: output.clone(), what };
            let (mut inputs, mut forms) = (vec![], vec![]);
            for input in operation.inputs().map_err(refuse)? {
                let known = columns.iter().find(|(name, _)| *name == input);
                let Some((_, plan)) = known else {
                    let names: Vec<_> = columns.iter().map(|(name, _)| name.as_str()).collect();
                    let names = names.join("`, `");
                    return Err(refuse(format!(
                        "there is no column `{input}`; there are `{names}`"
                    )));
                };
                let (source, form) = program.source(&plan.clone()).map_err(refuse)?;
                inputs.push(source);
                forms.push(form);
            }
            let ready = Ready::new(operation.clone(), forms).map_err(refuse)?;
            let Form { dtype, shape } = ready.form().clone();
            for input in &inputs {
                if let Source::Step(step) = input {
                    program.steps[*step].taken_by = Some(number);
                }
            }
            let origin = Origin::Step(program.steps.len());
            let output = output.clone();
            let plan = Plan { kind: ColumnKind::Dense { dtype, shape }, origin, spec: None };
            program.steps.push(Step { output: output.clone(), inputs, ready, taken_by: None });
            match columns.iter_mut().find(|(name, _)| *name == output) {
                Some((_, known)) => *known = plan,
                None => columns.push((output, plan)),
            }
        }
        Ok((program, columns))
    }

    /// Bytes of a row of what is in between.
    pub(crate) fn row_bytes(&self) -> usize {
        let features = self.features.iter().map(|plan| match &plan.kind {
            ColumnKind::Dense { dtype, shape } => {
                Form { dtype: *dtype, shape: shape.clone() }.row_bytes()
            }
            _ => 0,
        });
        let taken = self.steps.iter().filter(|step| step.taken_by.is_some());
        features.chain(taken.map(|step| step.ready.form().row_bytes())).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Where a column comes from, if an operator can take it.
    fn source(&mut self, plan: &Plan) -> Result<(Source, Form), String> {
        let ColumnKind::Dense { dtype, shape } = &plan.kind else {
            return Err(
                "it takes columns of a fixed shape: a FixedLenFeature, or what an operator made"
                    .to_owned(),
            );
        };
        let form = Form { dtype: *dtype, shape: shape.clone() };
        if let Origin::Step(step) = plan.origin {
            return Ok((Source::Step(step), form));
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
        Ok((Source::Feature(place), form))
    }

    /// Carries out all operators for the rows of `cells`.
    /// - `output`: the share of a step's column in the batch, if it has one; taken once for each step.
    pub(crate) fn run<'o>(
        &self,
        cells: &Cells<'_>,
        mut output: impl FnMut(usize) -> Option<&'o mut [u8]>,
    ) -> Result<(), Fault> {
        let rows = cells.rows.len();
        let mut numbers: Vec<Column> = Vec::with_capacity(self.features.len());
        let mut strings: Vec<Vec<&[u8]>> = Vec::with_capacity(self.features.len());
        for plan in &self.features {
            let (mut column, mut texts) = (Column::default(), vec![]);
            match plan.kind.dtype() {
                Dtype::Bytes => texts = cells.strings(plan),
                dtype => {
                    let ColumnKind::Dense { shape, .. } = &plan.kind else {
                        unreachable!("only columns of a fixed shape are taken");
                    };
                    let form = Form { dtype, shape: shape.clone() };
                    let output = || "operators".to_owned();
                    column = Column::new(&form, rows, &self.memory).map_err(|fault| Fault {
                        row: 0,
                        output: output(),
                        fault,
                    })?;
                    cells.numbers(plan, column.bytes_mut());
                }
            }
            numbers.push(column);
            strings.push(texts);
        }
        let mut made: Vec<Column> = Vec::with_capacity(self.steps.len());
        for (number, step) in self.steps.iter().enumerate() {
            let inputs: Vec<Input<'_>> = step
                .inputs
                .iter()
                .map(|source| match source {
                    Source::Feature(at) if strings[*at].is_empty() => {
                        Input::Numbers(numbers[*at].bytes())
                    }
                    Source::Feature(at) => Input::Strings(&strings[*at]),
                    Source::Step(at) => Input::Numbers(made[*at].bytes()),
                })
                .collect();
            let failed = |(row, fault): Failed| Fault { row, output: step.output.clone(), fault };
            let mut column = Column::default();
            match output(number) {
                // Nobody takes it: it is made where it belongs.
                Some(out) if step.taken_by.is_none() => {
                    step.ready.run(&inputs, rows, out).map_err(failed)?;
                }
                out => {
                    column = Column::new(step.ready.form(), rows, &self.memory)
                        .map_err(|fault| failed((0, fault)))?;
                    step.ready.run(&inputs, rows, column.bytes_mut()).map_err(failed)?;
                    if let Some(out) = out {
                        out.copy_from_slice(column.bytes());
                    }
                }
            }
            made.push(column);
            // What nobody takes any more goes.
            for (earlier, column) in self.steps.iter().zip(&mut made) {
                if earlier.taken_by.is_none_or(|by| by <= number) {
                    self.memory.keep(column);
                }
            }
        }
        numbers.iter_mut().for_each(|column| self.memory.keep(column));
        Ok(())
    }
}
