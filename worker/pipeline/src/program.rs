//! The operators of a job, in the order in which they run for the rows of a part of a batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardfeed_tfrecord::example::Feature;

use crate::column::{ColumnKind, FoundStrings, Origin, Plan, items};
use crate::draw::DrawKey;
use crate::dtype::Dtype;
use crate::extent::Extent;
use crate::operator::{
    Chain, ColumnBuffer, ColumnMemory, Failed, Form, Given, Input, Inputs, Operator, OperatorError,
    OperatorFault, OperatorWork, Side, Strings, TableFault, TableRef,
};
use crate::record::{RowError, RowFault};
use crate::rows::Cells;

mod shared;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputSource {
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
    /// The ragged columns of whose values the step makes values, with their names.
    values_of: Vec<(String, usize)>,
    /// Last step that uses the result.
    taken_by: Option<usize>,
}

/// Meaning of a name between operators.
#[derive(Clone, Debug)]
pub(crate) enum KnownName {
    Column(Plan),
    /// Images whose size differs from row to row; run by the step that makes sizes equal.
    Images {
        chain: Chain,
        inputs: Vec<InputSource>,
        position: usize,
        is_taken: bool,
    },
}

/// Meaning of each name, in order of appearance. A clone shares the parsed columns.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    parsed: Arc<Vec<(String, KnownName)>>,
    parsed_places: Arc<BTreeMap<String, usize>>,
    /// Names that operators added, replaced or removed (`None`), with their places.
    made: BTreeMap<String, (usize, Option<KnownName>)>,
    count: usize,
}

impl Names {
    /// - `plans`: all parsed columns.
    pub(crate) fn new(plans: &[Plan]) -> Self {
        let name = |plan: &Plan| plan.spec.as_ref().map_or("record", |spec| &spec.name).to_owned();
        let parsed = plans.iter().map(|plan| (name(plan), KnownName::Column(plan.clone())));
        let parsed: Vec<_> = parsed.collect();
        let places = parsed.iter().enumerate().map(|(place, (name, _))| (name.clone(), place));
        let (parsed_places, count) = (Arc::new(places.collect()), parsed.len());
        Self { parsed: Arc::new(parsed), parsed_places, made: BTreeMap::new(), count }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&KnownName> {
        match self.made.get(name) {
            Some((_, known)) => known.as_ref(),
            None => self.parsed_places.get(name).map(|place| &self.parsed[*place].1),
        }
    }

    pub(crate) fn set(&mut self, name: &str, known: KnownName) {
        let place = self.place(name).unwrap_or(self.count);
        self.count = self.count.max(place + 1);
        self.made.insert(name.to_owned(), (place, Some(known)));
    }

    /// Replaces a parsed column by another one, at the same place.
    pub(crate) fn set_parsed(&mut self, name: &str, plan: Plan) {
        if let Some(place) = self.parsed_places.get(name).copied() {
            Arc::make_mut(&mut self.parsed)[place].1 = KnownName::Column(plan);
        }
    }

    /// Adds a parsed column after the others; no operator was added yet.
    pub(crate) fn add_parsed(&mut self, name: &str, plan: Plan) {
        let place = self.parsed.len();
        Arc::make_mut(&mut self.parsed).push((name.to_owned(), KnownName::Column(plan)));
        Arc::make_mut(&mut self.parsed_places).insert(name.to_owned(), place);
        self.count = place + 1;
    }

    /// True if an operator made the column of this name, or renamed it.
    pub(crate) fn is_changed(&self, name: &str) -> bool {
        self.made.contains_key(name)
    }

    /// Place of a name that exists.
    fn place(&self, name: &str) -> Option<usize> {
        match self.made.get(name) {
            Some((place, known)) => known.is_some().then_some(*place),
            None => self.parsed_places.get(name).copied(),
        }
    }

    /// Gives a column another name, at the same place.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), OutlineError> {
        let (place, known) = self
            .place(from)
            .zip(self.get(from).cloned())
            .ok_or_else(|| OutlineError::NoColumn(from.to_owned()))?;
        if self.get(to).is_some() {
            let what = format!("there is a column `{to}` already; choose another name");
            return Err(what.into());
        }
        self.made.insert(from.to_owned(), (place, None));
        self.made.insert(to.to_owned(), (place, Some(known)));
        Ok(())
    }

    /// Notes that an operator takes the images of this name, and returns their inputs.
    fn take_images(&mut self, name: &str) -> Vec<InputSource> {
        match self.made.get_mut(name) {
            Some((_, Some(KnownName::Images { inputs, is_taken, .. }))) => {
                *is_taken = true;
                inputs.clone()
            }
            _ => unreachable!("operators made the images"),
        }
    }

    /// All names in their order.
    pub(crate) fn all(&self) -> Vec<(&str, &KnownName)> {
        let parsed = self.parsed.iter().enumerate();
        let mut all: Vec<_> = parsed
            .filter(|(_, (name, _))| !self.made.contains_key(name))
            .map(|(place, (name, known))| (place, name.as_str(), known))
            .chain(self.made.iter().filter_map(|(name, (place, known))| {
                known.as_ref().map(|known| (*place, name.as_str(), known))
            }))
            .collect();
        all.sort_by_key(|(place, ..)| *place);
        all.into_iter().map(|(_, name, known)| (name, known)).collect()
    }
}

/// Reason why an operator cannot be applied to the columns before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutlineError {
    #[error("there is no column `{0}`")]
    NoColumn(String),
    /// Everything else.
    #[error("{0}")]
    Operator(String),
}

impl From<String> for OutlineError {
    fn from(what: String) -> Self {
        Self::Operator(what)
    }
}

/// An operator that fits the columns before it.
pub(crate) struct Checked {
    /// Columns that it takes.
    plans: Vec<Plan>,
    /// The column that it takes, if it has images of different sizes.
    images: Option<String>,
    /// The parsed columns whose rows it keeps, by input; empty: it makes rows of a fixed shape.
    values_of: Vec<(String, Plan)>,
    work: OperatorWork,
    /// Form of the result; `None`: images of different sizes, or strings.
    form: Option<Form>,
}

impl Checked {
    /// Checks an operator.
    /// - `position`: index among the operators. `side`: its lookup table, if it has one.
    pub(crate) fn new(
        names: &Names,
        position: usize,
        operator: &Operator,
        side: Option<Arc<Side>>,
    ) -> Result<Self, OutlineError> {
        let definition = operator.operation.definition();
        let takes = definition.inputs()?;
        let (mut plans, mut forms, mut images) = (vec![], vec![], None);
        for (at, input) in takes.names().iter().enumerate() {
            let takes_images = at == 0 && matches!(takes, Inputs::Images(_) | Inputs::Any(_));
            match names.get(input).ok_or_else(|| OutlineError::NoColumn(input.clone()))? {
                KnownName::Column(plan) => {
                    forms.push(input_form(plan, &takes)?);
                    plans.push(plan.clone());
                }
                KnownName::Images { .. } if !takes_images => {
                    let what = format!(
                        "the images of `{input}` differ in size from row to row; resize or crop them first"
                    );
                    return Err(what.into());
                }
                KnownName::Images { chain, .. } => images = Some((input.clone(), chain.clone())),
            }
        }
        let (images, chain) = images.unzip();
        let is_fixed = matches!(takes, Inputs::Fixed(_));
        let values_of = if is_fixed { rows_of(takes.names(), &plans)? } else { vec![] };
        let is_rows = !is_fixed && plans.first().is_some_and(|plan| !is_dense(plan));
        let given = Given { forms: &forms, is_rows, images: chain, position, side };
        let work = definition.prepare(given)?;
        let is_outside = |plan: &Plan| {
            plan.kind.dtype() == Dtype::Bytes
                && matches!(&plan.origin, Origin::Around(around) if around.has_zeros())
        };
        if matches!(work, OperatorWork::Images(_)) && plans.first().is_some_and(is_outside) {
            let what = "rows outside of a record are empty strings with edge=\"zero\", and no \
                        images; pass edge=\"repeat\" or \"drop\" to unbatch()";
            return Err(what.to_owned().into());
        }
        let is_parsed = |plan: &Plan| {
            is_dense(plan) && !matches!(plan.origin, Origin::Step(_) | Origin::Found(_))
        };
        if matches!(work, OperatorWork::Strings { .. }) && !plans.iter().all(is_parsed) {
            let what = "strings of a table are found by a column of the record, with a fixed shape";
            return Err(what.to_owned().into());
        }
        let form = match &work {
            OperatorWork::Columns(ready) => Some(ready.form.clone()),
            _ if !values_of.is_empty() => {
                let what =
                    "it takes columns of a fixed shape: a FixedLenFeature, or an operator's output";
                return Err(what.to_owned().into());
            }
            OperatorWork::Images(chain) => chain.form().transpose()?,
            OperatorWork::Strings { .. } => None,
        };
        Ok(Self { plans, images, values_of, work, form })
    }

    /// Meaning of its output for a declaration, which runs nothing.
    pub(crate) fn declared(self, position: usize) -> KnownName {
        match (self.form, self.work) {
            (None, OperatorWork::Images(chain)) => {
                KnownName::Images { chain, inputs: vec![], position, is_taken: false }
            }
            (None, OperatorWork::Strings { from, shape }) => {
                KnownName::Column(strings_plan(from, shape, "", self.plans))
            }
            (None, OperatorWork::Columns(_)) => unreachable!("columns have a form"),
            (Some(form), _) => KnownName::Column(step_plan(form, position, &self.values_of)),
        }
    }
}

/// Plan of a column that an operator makes.
/// - `step`: its step in the program. `values_of`: as in [`Checked`].
fn step_plan(Form { dtype, shape }: Form, step: usize, values_of: &[(String, Plan)]) -> Plan {
    let (kind, origin) = match values_of.first() {
        Some((_, parsed)) => {
            let kind = ColumnKind::Ragged { dtype, levels: parsed.kind.splits(), shape };
            (kind, Origin::Rows(step, Box::new(parsed.clone())))
        }
        None => (ColumnKind::Dense { dtype, shape }, Origin::Step(step)),
    };
    Plan { kind, origin, spec: None }
}

/// Returns the parsed columns that determine the lengths of rows, if the columns are ragged.
fn rows_of(names: &[String], plans: &[Plan]) -> Result<Vec<(String, Plan)>, String> {
    if plans.iter().all(is_dense) {
        return Ok(vec![]);
    }
    let levels = plans[0].kind.splits();
    if let Some(other) = plans.iter().position(|plan| plan.kind.splits() != levels) {
        return Err(format!(
            "`{}` and `{}` are not both of a fixed shape, or both rows of the same depth; pad rows first",
            names[0], names[other]
        ));
    }
    Ok(names.iter().cloned().zip(plans.iter().map(|plan| plan.parsed().clone())).collect())
}

/// Plan of a column of strings that an operator makes.
/// - `plans`: of the keys, for a table.
fn strings_plan(from: Strings, shape: Vec<usize>, output: &str, plans: Vec<Plan>) -> Plan {
    let kind = ColumnKind::Dense { dtype: Dtype::Bytes, shape };
    let origin = match (from, plans.into_iter().next()) {
        (Strings::Table(finder), Some(keys)) => {
            let output = output.to_owned();
            Origin::Found(Arc::new(FoundStrings { output, keys, finder }))
        }
        (Strings::Constant(values), _) => Origin::Constant(values),
        (Strings::Table(_), None) => unreachable!("a lookup has keys"),
    };
    Plan { kind, origin, spec: None }
}

fn input_form(plan: &Plan, takes: &Inputs) -> Result<Form, String> {
    match takes {
        Inputs::Rows(_) => return rows_form(plan),
        Inputs::Any(_) if !is_dense(plan) => return rows_of_shape(plan),
        _ => {}
    }
    let (dtype, shape) = match &plan.kind {
        ColumnKind::Dense { dtype, shape } => (dtype, shape),
        ColumnKind::Ragged { dtype, shape, .. } if matches!(takes, Inputs::Fixed(_)) => {
            return Ok(Form { dtype: *dtype, shape: shape.clone() });
        }
        _ => {
            let what = match takes {
                Inputs::Fixed(_) => {
                    "it takes columns of a fixed shape (a FixedLenFeature, or an operator's output) \
                     or ragged ones (a VarLenFeature or RaggedFeature)"
                }
                _ => {
                    "it takes columns of a fixed shape (a FixedLenFeature, or an operator's output)"
                }
            };
            return Err(what.to_owned());
        }
    };
    let is_fixed = matches!(plan.origin, Origin::Step(_))
        || plan.spec.as_ref().is_none_or(|spec| matches!(spec.feature, Feature::FixedLen { .. }));
    if !is_fixed {
        return Err("it takes columns of a fixed shape".to_owned());
    }
    Ok(Form { dtype: *dtype, shape: shape.clone() })
}

fn is_dense(plan: &Plan) -> bool {
    matches!(plan.kind, ColumnKind::Dense { .. })
}

/// Form of a value of a column of rows with a variable number of values.
fn rows_of_shape(plan: &Plan) -> Result<Form, String> {
    match &plan.kind {
        ColumnKind::Ragged { dtype, levels: 1, shape } | ColumnKind::Padded { dtype, shape } => {
            Ok(Form { dtype: *dtype, shape: shape.clone() })
        }
        ColumnKind::Ragged { .. } => {
            Err("it takes rows of values, not rows of such rows".to_owned())
        }
        _ => Err("it takes columns of a fixed shape, and rows of any number of values".to_owned()),
    }
}

/// Form of a column with a variable number of values.
fn rows_form(plan: &Plan) -> Result<Form, String> {
    let ColumnKind::Ragged { dtype, levels: 1, shape } = &plan.kind else {
        return Err("it takes columns of any number of values: a VarLenFeature".to_owned());
    };
    if !shape.is_empty() || *dtype == Dtype::Bytes {
        return Err("it takes a VarLenFeature of int64 or float32".to_owned());
    }
    Ok(Form { dtype: *dtype, shape: vec![] })
}

/// Index of a parsed column among those that operators take.
fn place(known: &mut Vec<Plan>, plan: &Plan) -> usize {
    known.iter().position(|known| known.origin == plan.origin).unwrap_or_else(|| {
        known.push(plan.clone());
        known.len() - 1
    })
}

/// Values of a parsed column with a variable number of values in each row.
struct RowValues<'a> {
    plan: &'a Plan,
    numbers: ColumnBuffer,
    strings: Vec<&'a [u8]>,
    extent: Extent,
}

impl RowValues<'_> {
    /// Returns each value as a row.
    fn values(&self) -> Input<'_> {
        match &self.plan.kind {
            ColumnKind::Ragged { dtype: Dtype::Bytes, .. } => Input::Strings(&self.strings),
            ColumnKind::Ragged { dtype, shape, .. } => {
                Input::Numbers(self.numbers.bytes(), items(shape) * dtype.bytes())
            }
            other => unreachable!("{other:?} is not ragged"),
        }
    }
}

/// Checks that two columns have rows of the same lengths.
fn same_rows(first: (&str, &Extent), second: (&str, &Extent)) -> Result<(), Failed> {
    let levels = first.1.lengths.iter().zip(&second.1.lengths);
    for (level, (one, other)) in levels.enumerate() {
        let differs = |(_, (one, other)): &(usize, (&i64, &i64))| one != other;
        if let Some((item, (one, other))) = one.iter().zip(other).enumerate().find(differs) {
            let what = format!(
                "rows of `{}` and `{}` have different lengths, {:?}",
                first.0,
                second.0,
                [one, other]
            );
            return Err((first.1.row_of(level, item), OperatorFault::Record(what)));
        }
    }
    Ok(())
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
    /// Strings of tables, which are looked up before other operators run.
    found: Vec<Arc<FoundStrings>>,
    /// Steps that decode an image of a record of which several rows are samples.
    shared: Vec<usize>,
    /// True for the steps that these take, and for themselves.
    before_shared: Vec<bool>,
    memory: ColumnMemory,
}

/// Part of the program to run for some rows.
pub(crate) enum ProgramPart<'k> {
    /// Everything, but not the [shared images](Program::shared_bytes) that were made before: one
    /// entry for each row, or none at all.
    Rows(&'k [Option<Arc<[u8]>>]),
    /// Only what the shared images need.
    Images,
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
        let mut names = Names::new(plans);
        let mut program = Self::default();
        for (number, operator) in operators.iter().enumerate() {
            let made = match operator.operation.renamed() {
                Some(input) => names.rename(input, &operator.output).map(|()| None),
                None => program.add(&mut names, number, operator).map(Some),
            };
            let made = made.map_err(|refusal| {
                let what = match refusal {
                    OutlineError::NoColumn(name) => {
                        let all: Vec<_> = names.all().into_iter().map(|(name, _)| name).collect();
                        format!("there is no column `{name}`; there are `{}`", all.join("`, `"))
                    }
                    OutlineError::Operator(what) => what,
                };
                OperatorError { operator: number, output: operator.output.clone(), what }
            })?;
            if let Some(made) = made {
                names.set(&operator.output, made);
            }
        }
        let mut made = Made::default();
        for (name, known) in names.all() {
            let name = name.to_owned();
            match known {
                KnownName::Column(plan) => made.columns.push((name, plan.clone())),
                KnownName::Images { is_taken: true, .. } => made.images.push(name),
                KnownName::Images { position, .. } => {
                    let what = "its images differ in size from row to row, and nothing makes them one size; \
                                resize or crop them"
                        .to_owned();
                    return Err(OperatorError { operator: *position, output: name, what });
                }
            }
        }
        Ok((program, made))
    }

    fn add(
        &mut self,
        names: &mut Names,
        position: usize,
        operator: &Operator,
    ) -> Result<KnownName, OutlineError> {
        let side = operator.operation.table().map(|table| self.side(table));
        let checked = Checked::new(names, position, operator, side)?;
        let Checked { plans, images, values_of, work, form } = checked;
        let mut inputs = images.map(|images| names.take_images(&images)).unwrap_or_default();
        if !matches!(work, OperatorWork::Strings { .. }) {
            inputs.extend(plans.iter().map(|plan| self.source(plan)));
        }
        match (form, work) {
            (None, OperatorWork::Images(chain)) => {
                Ok(KnownName::Images { chain, inputs, position, is_taken: false })
            }
            (None, OperatorWork::Strings { from, shape }) => {
                let plan = strings_plan(from, shape, &operator.output, plans);
                if let Origin::Found(found) = &plan.origin {
                    self.found.push(Arc::clone(found));
                }
                Ok(KnownName::Column(plan))
            }
            (form, work) => {
                let form = form.expect("columns have a form");
                let plan = step_plan(form.clone(), self.steps.len(), &values_of);
                let place = |(name, plan): (String, Plan)| (name, place(&mut self.rows, &plan));
                let values_of = values_of.into_iter().map(place).collect();
                let output = operator.output.clone();
                self.push(ProgramStep { output, inputs, form, work, values_of, taken_by: None });
                Ok(KnownName::Column(plan))
            }
        }
    }

    fn push(&mut self, step: ProgramStep) {
        for input in &step.inputs {
            if let InputSource::Step(taken) = input {
                self.steps[*taken].taken_by = Some(self.steps.len());
            }
        }
        self.steps.push(step);
    }

    fn side(&mut self, table: &TableRef) -> Arc<Side> {
        let place = self.sides.iter().position(|side| side.is(table)).unwrap_or_else(|| {
            self.sides.push(Arc::new(Side::new(table.clone())));
            self.sides.len() - 1
        });
        Arc::clone(&self.sides[place])
    }

    pub(crate) fn tables(&self) -> &[Arc<FoundStrings>] {
        &self.found
    }

    pub(crate) fn open_tables(&self) -> Result<(), TableFault> {
        self.found.iter().try_for_each(|found| found.finder.open().map(drop))?;
        self.steps.iter().try_for_each(|step| match &step.work {
            OperatorWork::Columns(ready) => ready.open.as_ref().map_or(Ok(()), |open| open()),
            OperatorWork::Images(_) | OperatorWork::Strings { .. } => Ok(()),
        })
    }

    /// Bytes per row of intermediate columns.
    /// - `values_max`: values of a ragged column in a row.
    pub(crate) fn row_bytes(&self, values_max: usize) -> usize {
        let features = self.features.iter().map(|plan| match &plan.kind {
            ColumnKind::Dense { dtype, shape } => {
                Form { dtype: *dtype, shape: shape.clone() }.row_bytes()
            }
            _ => 0,
        });
        let rows = self.rows.iter().map(|plan| match &plan.kind {
            ColumnKind::Ragged { dtype, shape, .. } => {
                values_max.saturating_mul(items(shape) * dtype.bytes())
            }
            _ => 0,
        });
        let taken = self.steps.iter().filter(|step| step.taken_by.is_some()).map(|step| {
            let values = if step.values_of.is_empty() { 1 } else { values_max };
            step.form.row_bytes().saturating_mul(values)
        });
        features.chain(rows).chain(taken).fold(0, usize::saturating_add)
    }

    pub(crate) fn memory(&self) -> &ColumnMemory {
        &self.memory
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn source(&mut self, plan: &Plan) -> InputSource {
        match (&plan.origin, &plan.kind) {
            (Origin::Step(step) | Origin::Rows(step, _), _) => InputSource::Step(*step),
            (_, ColumnKind::Ragged { .. } | ColumnKind::Padded { .. }) => {
                InputSource::Rows(place(&mut self.rows, plan))
            }
            _ => InputSource::Feature(place(&mut self.features, plan)),
        }
    }

    /// Runs the operators for the rows of `cells`.
    /// - `output`: returns the range of a step's column in the batch, if any; called once per step.
    ///
    /// # Errors  The row in which an operator fails.
    pub(crate) fn run<'o>(
        &self,
        cells: &Cells<'_>,
        key: &DrawKey,
        part: &ProgramPart<'_>,
        mut output: impl FnMut(usize) -> Option<&'o mut [u8]>,
    ) -> Result<(), RowError> {
        if self.is_empty() {
            return Ok(());
        }
        let rows = cells.rows.len();
        let failed = |output: &str, (row, fault): Failed| {
            let output = output.into();
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
        let mut ragged: Vec<RowValues<'_>> = Vec::with_capacity(self.rows.len());
        for plan in &self.rows {
            let extent = cells.extent(plan)?;
            let (mut numbers, mut strings) = (ColumnBuffer::default(), vec![]);
            match plan.kind.dtype() {
                Dtype::Bytes => strings = cells.strings(plan),
                dtype => {
                    let form = Form { dtype, shape: vec![extent.items] };
                    numbers = numbers_of(&form, 1, plan)?;
                }
            }
            ragged.push(RowValues { plan, numbers, strings, extent });
        }
        let mut made: Vec<ColumnBuffer> = Vec::with_capacity(self.steps.len());
        for (number, step) in self.steps.iter().enumerate() {
            if matches!(part, ProgramPart::Images) && !self.before_shared[number] {
                made.push(ColumnBuffer::default());
                continue;
            }
            let rows = match step.values_of.split_first() {
                None => rows,
                Some(((name, first), others)) => {
                    let first = (name.as_str(), &ragged[*first].extent);
                    for (other, at) in others {
                        same_rows(first, (other, &ragged[*at].extent))
                            .map_err(|failure| failed(&step.output, failure))?;
                    }
                    first.1.elements()
                }
            };
            let is_of_values = !step.values_of.is_empty();
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
                    InputSource::Rows(at) if is_of_values => ragged[*at].values(),
                    InputSource::Rows(at) => {
                        Input::Rows(ragged[*at].numbers.bytes(), &ragged[*at].extent.lengths[0])
                    }
                    InputSource::Step(at) => match self.steps[*at].values_of.first() {
                        Some((_, rows)) if !is_of_values => {
                            Input::Rows(made[*at].bytes(), &ragged[*rows].extent.lengths[0])
                        }
                        _ => Input::Numbers(made[*at].bytes(), self.steps[*at].form.row_bytes()),
                    },
                })
                .collect();
            let failed = |(row, fault): Failed| {
                let row = step.values_of.first().map_or(row, |(_, first)| {
                    let extent = &ragged[*first].extent;
                    extent.row_of(extent.lengths.len(), row)
                });
                failed(&step.output, (row, fault))
            };
            let carry_out = |out: &mut [u8]| match &step.work {
                OperatorWork::Columns(ready) => (ready.run)(&inputs, rows, out),
                OperatorWork::Images(chain) => {
                    let draws = |row: usize, position| key.draws(&cells.rows[row], position);
                    let place = self.shared_place(number);
                    let made = |row: usize| match (part, &place) {
                        (ProgramPart::Rows(rows), Some(place)) => {
                            Some(&rows.get(row)?.as_deref()?[place.clone()])
                        }
                        _ => None,
                    };
                    chain.run_all(&inputs, rows, made, draws, &self.memory, out)
                }
                OperatorWork::Strings { .. } => unreachable!("strings are no step"),
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
        ragged.iter_mut().for_each(|rows| self.memory.keep(&mut rows.numbers));
        Ok(())
    }
}
