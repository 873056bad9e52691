//! The columns of a record spec while it is declared, one operator at a time.

use std::sync::Arc;

use super::parse::{ParseSpec, RecordParser};
use super::{RecordSpec, Schema, SchemaError};
use crate::column::{ColumnKind, Origin, Plan};
use crate::dtype::Dtype;
use crate::operator::{Form, NOT_ON_DEVICE, Operator, Side};
use crate::program::{Checked, KnownName, Names, OutlineError};
use crate::samples::SampleProgram;
use crate::samples::balance::BalanceSpec;
use crate::samples::combine::Combiner;
use crate::samples::measure::Measure;
use crate::samples::pack::PackSpec;
use crate::samples::scope::{Needed, Scope, joined};
use crate::samples::unbatch::UnbatchSpec;
use crate::samples::window::WindowSpec;

/// Columns after parsing and some operators, under the rules of [`Schema::new`](super::Schema::new).
#[derive(Clone, Debug)]
pub struct Outline {
    parse: Arc<Option<ParseSpec>>,
    /// Rows that are samples, or are combined.
    unbatch: Option<Arc<UnbatchSpec>>,
    /// Columns of which a sample has one row.
    unbatched: Arc<Vec<String>>,
    /// Those of which a sample has several rows.
    around: Arc<Vec<String>>,
    /// Writer of packs or windows, if they are samples.
    combiner: Option<Arc<Combiner>>,
    names: Names,
    operators: Arc<Vec<Operator>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedExpression {
    /// Canonical text.
    pub text: String,
    /// Indexes of the operators that make columns for this expression and for those before it.
    pub measured: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutlineColumn<'a> {
    /// A column that batches can have.
    Column(&'a ColumnKind),
    /// Images whose size differs from row to row.
    Images {
        /// Images of a row; `None`: a row is one image.
        count: Option<usize>,
        dtype: Dtype,
        channels: usize,
    },
}

impl Outline {
    /// Columns of parsed records; `None`: of unchanged records.
    ///
    /// # Errors  A feature is invalid.
    pub fn new(parse: Option<ParseSpec>) -> Result<Self, SchemaError> {
        let mut parse = parse;
        let names = Names::new(&RecordParser::new(&mut parse, None)?.1);
        Ok(Self {
            parse: Arc::new(parse),
            unbatch: None,
            unbatched: Arc::default(),
            around: Arc::default(),
            combiner: None,
            names,
            operators: Arc::default(),
        })
    }

    /// Returns the columns after one more operator.
    ///
    /// # Errors  It cannot be applied to these columns.
    pub fn then(&self, operator: &Operator) -> Result<Self, OutlineError> {
        let mut names = self.names.clone();
        let mut operators = Arc::clone(&self.operators);
        let position = operators.len();
        Arc::make_mut(&mut operators).push(operator.clone());
        if let Some(input) = operator.operation.renamed() {
            names.rename(input, &operator.output)?;
            return Ok(Self { names, operators, ..self.clone() });
        }
        let side = operator.operation.table().map(|table| Arc::new(Side::new(table.clone())));
        let made = Checked::new(&self.names, position, operator, side)?.declared(position);
        names.set(&operator.output, made);
        Ok(Self { names, operators, ..self.clone() })
    }

    /// Returns the columns of samples that are rows of records.
    ///
    /// # Errors  A column has no rows, an operator made it, or a number is out of range.
    pub fn unbatch(&self, unbatch: &UnbatchSpec) -> Result<Self, String> {
        let columns = unbatch.names();
        if self.combiner.is_some() {
            return Err("rows are combined to packs or windows: call unbatch() before".to_owned());
        }
        if let Some(name) = columns.iter().find(|name| self.names.is_changed(name)) {
            return Err(made_by_an_operator(name, "unbatch"));
        }
        for operator in self.operators.iter() {
            let inputs = operator.operation.definition().inputs()?;
            if let Some(name) = inputs.names().iter().find(|name| columns.contains(name)) {
                return Err(format!(
                    "an operator makes `{}` of column `{name}`, and runs on each row: call unbatch() \
                     before it",
                    operator.output
                ));
            }
        }
        let parse = (*self.parse).clone();
        let unbatched = Some(unbatch.clone());
        let mut spec = RecordSpec { parse, unbatch: unbatched, ..RecordSpec::default() };
        SampleProgram::new(&spec).map_err(SchemaError::what)?;
        let parsed = RecordParser::new(&mut spec.parse, Some(unbatch));
        let (_, plans) = parsed.map_err(SchemaError::what)?;
        let has_made = plans.iter().any(|plan| matches!(plan.origin, Origin::IsPad(_)));
        if has_made && !self.operators.is_empty() {
            return Err("call unbatch() with offsets before the operators".to_owned());
        }
        let mut names = self.names.clone();
        for plan in plans {
            let name = plan.spec.as_ref().map(|spec| spec.name.clone()).unwrap_or_default();
            match columns.contains(&name) {
                true => names.set_parsed(&name, plan),
                false if names.get(&name).is_none() => names.add_parsed(&name, plan),
                false => {}
            }
        }
        let around = unbatch.columns.iter().filter(|column| column.offsets.is_some());
        let around = Arc::new(around.map(|column| column.name.clone()).collect());
        let (unbatched, unbatch) = (Arc::new(columns), Some(Arc::new(unbatch.clone())));
        Ok(Self { unbatch, unbatched, around, names, ..self.clone() })
    }

    /// Returns the columns of packs.
    ///
    /// # Errors  A column has no tokens, a setting is out of range, or there are operators.
    pub fn pack(&self, pack: &PackSpec) -> Result<Self, String> {
        self.combine(RecordSpec { pack: Some(pack.clone()), ..RecordSpec::default() }, "pack")
    }

    /// Returns the columns of windows.
    ///
    /// # Errors  A column has no fixed shape, a setting is out of range, or there are operators.
    pub fn window(&self, window: &WindowSpec) -> Result<Self, String> {
        self.combine(RecordSpec { window: Some(window.clone()), ..RecordSpec::default() }, "window")
    }

    fn combine(&self, spec: RecordSpec, method: &str) -> Result<Self, String> {
        if !self.operators.is_empty() {
            return Err(format!("call {method}() before the operators, which run on samples"));
        }
        if self.combiner.is_some() {
            return Err("a source has one of pack and window".to_owned());
        }
        let unbatch = self.unbatch.as_deref().cloned();
        let spec = RecordSpec { parse: (*self.parse).clone(), unbatch, ..spec };
        let program = SampleProgram::new(&spec).map_err(SchemaError::what)?;
        let combiner = program.and_then(|program| program.combiner().cloned());
        let parser = Schema::of_combined(&spec).map_err(SchemaError::what)?;
        let (_, plans) = RecordParser::of(parser.expect("it combines records"), None)?;
        let names = Names::new(&plans);
        Ok(Self { combiner, names, ..self.clone() })
    }

    /// Checks the expression of a filter, and joins it with the one before.
    /// - `before`: the filter so far; `others`: all other expressions, with their operators.
    ///
    /// # Errors  It is not an expression, or does not fit the columns.
    pub fn filter(
        &self,
        expression: &str,
        before: Option<&str>,
        others: (&[&str], &[usize]),
    ) -> Result<CheckedExpression, String> {
        if let Some(combiner) = &self.combiner {
            let method = match &**combiner {
                Combiner::Packs(_) => "pack",
                Combiner::Windows(_) => "window",
            };
            return Err(format!("a filter takes records: call filter() before {method}()"));
        }
        let all: Vec<&str> = before.iter().chain(others.0).copied().collect();
        let measured = self.measured(expression, (&all, others.1), "filter")?;
        let operators = self.chosen(&measured);
        let scope = self.scope(&operators);
        let mut text = Measure::new(expression, scope)?.to_string();
        if let Some(before) = before {
            text = Measure::new(&Measure::joined(before, &text)?, scope)?.to_string();
        }
        Ok(CheckedExpression { text, measured })
    }

    fn scope<'a>(&'a self, operators: &'a [Operator]) -> Scope<'a> {
        Scope { parse: (*self.parse).as_ref(), operators, unbatched: &self.unbatched }
    }

    fn chosen(&self, operators: &[usize]) -> Vec<Operator> {
        operators.iter().map(|at| self.operators[*at].clone()).collect()
    }

    /// Returns the operators that make columns for expressions.
    /// - `before`: other expressions, and their operators.
    fn measured(
        &self,
        expression: &str,
        (before, of_before): (&[&str], &[usize]),
        method: &str,
    ) -> Result<Vec<usize>, String> {
        let names = Measure::names_of(expression)?;
        let needed = Needed::by(&self.operators, &names)?;
        let around = self
            .around
            .iter()
            .find(|name| !needed.operators.is_empty() && needed.features.contains(name));
        if let Some(name) = around {
            return Err(format!(
                "an operator makes a column of the rows of `{name}` around a sample's own; {method} \
                 takes the own row: call {method}() before the operators"
            ));
        }
        let mut uses = vec![(names, (0..self.operators.len()).collect())];
        for other in before {
            uses.push((Measure::names_of(other)?, of_before.to_vec()));
        }
        joined(&self.operators, &uses)
    }

    /// Checks the settings of balanced steps.
    /// - `others`: all other expressions, and their operators.
    /// - `is_of_mixture`: true if the cost takes features of the records, whatever operators made of
    ///   them: a mixture is balanced after the operators of its sources.
    ///
    /// # Errors  They do not fit the samples.
    pub fn balance(
        &self,
        balance: &BalanceSpec,
        others: (&[&str], &[usize]),
        is_of_mixture: bool,
    ) -> Result<CheckedExpression, String> {
        let measured = match (self.combiner.is_some(), is_of_mixture) {
            (true, _) => others.1.to_vec(),
            (false, true) => {
                let cost = (Measure::names_of(&balance.by)?, vec![]);
                let others_uses =
                    others.0.iter().map(|other| Ok((Measure::names_of(other)?, others.1.to_vec())));
                let uses = std::iter::once(Ok(cost)).chain(others_uses);
                joined(&self.operators, &uses.collect::<Result<Vec<_>, String>>()?)?
            }
            (false, false) => self.measured(&balance.by, others, "balance")?,
        };
        let operators = self.chosen(&measured);
        let measure = balance.measure(self.scope(&operators), self.combiner.as_deref())?;
        let text = measure.map_or_else(|| balance.by.clone(), |cost| cost.to_string());
        Ok(CheckedExpression { text, measured })
    }

    /// Returns the columns after one more operator, which a device may run instead of the worker.
    ///
    /// # Errors  It cannot be applied to these columns, or not on a device.
    pub fn then_on_device(&self, operator: &Operator) -> Result<Self, OutlineError> {
        let after = self.then(operator)?;
        let any = Form { dtype: Dtype::Float32, shape: vec![] };
        if operator.operation.definition().device_form(&any).is_none() {
            return Err(OutlineError::Operator(NOT_ON_DEVICE.to_owned()));
        }
        let what = match self.names.get(&operator.output) {
            Some(KnownName::Column(Plan { kind: ColumnKind::Dense { dtype, shape }, .. })) => {
                operator.made_of(*dtype, shape).map_err(OutlineError::Operator)?;
                return Ok(after);
            }
            Some(_) => "a device takes columns of a fixed shape",
            None => "a device's operator makes a column of itself; leave output out",
        };
        Err(OutlineError::Operator(what.to_owned()))
    }

    /// Names and columns: parsed ones first, by name, then those of operators in their order.
    pub fn columns(&self) -> Vec<(&str, OutlineColumn<'_>)> {
        self.names.all().into_iter().map(|(name, known)| (name, column(known))).collect()
    }
}

fn made_by_an_operator(name: &str, method: &str) -> String {
    format!(
        "column `{name}` is made or renamed by an operator; {method} takes features of the record: call \
         {method}() before the operators"
    )
}

fn column(known: &KnownName) -> OutlineColumn<'_> {
    match known {
        KnownName::Column(plan) => OutlineColumn::Column(&plan.kind),
        KnownName::Images { chain, .. } => {
            let (count, dtype, channels) = chain.pixels();
            OutlineColumn::Images { count, dtype, channels }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn operator(output: &str, operation: &Value) -> Operator {
        serde_json::from_value(json!({"output": output, "operation": operation})).unwrap()
    }

    fn features() -> ParseSpec {
        serde_json::from_value(json!([
            {"name": "photo", "feature": {"fixed_len": {"dtype": "bytes", "shape": []}}},
            {"name": "label", "feature": {"fixed_len": {"dtype": "int64", "shape": [2]}}},
            {"name": "any", "feature": {"var_len": {"dtype": "float32"}}},
        ]))
        .unwrap()
    }

    fn decode() -> Operator {
        operator(
            "photo",
            &json!({"decode_image": {"input": "photo", "channels": 3, "dtype": "uint8"}}),
        )
    }

    fn resize() -> Operator {
        let fields =
            json!({"input": "photo", "size": [4, 5], "method": "bilinear", "antialias": true});
        operator("small", &json!({"resize": fields}))
    }

    #[test]
    fn a_second_filter_makes_the_first_no_deeper() {
        let outline = Outline::new(Some(features())).unwrap();
        let deep = format!("{}ordinal{} > 0", "abs(".repeat(49), ")".repeat(49));
        let first = outline.filter(&deep, None, (&[], &[])).unwrap().text;
        assert_eq!(first, deep);
        let both = outline.filter("len(any) > 0", Some(&first), (&[], &[])).unwrap().text;
        assert_eq!(both, format!("{deep} and len(any) > 0"));
    }

    #[test]
    fn each_step_has_the_columns_of_its_schema() {
        let operators = [
            operator("label", &json!({"cast": {"input": "label", "dtype": "float32"}})),
            operator("new", &json!({"cast": {"input": "label", "dtype": "int8"}})),
            decode(),
            resize(),
        ];
        let mut outline = Outline::new(Some(features())).unwrap();
        for count in 0..=operators.len() {
            if count > 0 {
                outline = outline.then(&operators[count - 1]).unwrap();
            }
            let spec = RecordSpec {
                parse: Some(features()),
                operators: operators[..count].to_vec(),
                ..RecordSpec::default()
            };
            if count == 3 {
                // A job cannot have these images, but the next operator makes them one size.
                Schema::new(spec).unwrap_err();
                let images =
                    OutlineColumn::Images { count: None, dtype: Dtype::Uint8, channels: 3 };
                assert_eq!(outline.columns()[2], ("photo", images));
                continue;
            }
            let schema = Schema::new(spec).unwrap();
            let columns = outline.columns().into_iter().filter_map(|(name, column)| match column {
                OutlineColumn::Column(kind) => Some((name.into(), kind.clone())),
                OutlineColumn::Images { .. } => None,
            });
            assert_eq!(columns.collect::<Vec<_>>(), schema.columns(), "{count} operators");
        }
    }

    #[test]
    fn an_operator_that_does_not_fit_changes_nothing() {
        let outline = Outline::new(Some(features())).unwrap().then(&decode()).unwrap();
        let before = format!("{:?}", outline.columns());
        let cast = |input: &str| operator("x", &json!({"cast": {"input": input, "dtype": "int8"}}));
        let said = |input: &str| outline.then(&cast(input)).unwrap_err().to_string();
        assert_eq!(outline.then(&cast("z")).unwrap_err(), OutlineError::NoColumn("z".to_owned()));
        let decode = json!({"decode_image": {"input": "any", "channels": 3, "dtype": "uint8"}});
        let refused = outline.then(&operator("x", &decode)).unwrap_err().to_string();
        assert!(refused.starts_with("it takes one byte string a row, not float32"), "{refused}");
        assert!(said("photo").starts_with("the images of `photo` differ in size"));
        assert_eq!(format!("{:?}", outline.columns()), before);
    }

    #[test]
    fn a_device_runs_few_operators_in_place() {
        let outline = Outline::new(Some(features())).unwrap();
        let cast =
            |output: &str| operator(output, &json!({"cast": {"input": "label", "dtype": "int8"}}));
        let outline = outline.then_on_device(&cast("label")).unwrap();
        let said = outline.then_on_device(&cast("new")).unwrap_err().to_string();
        assert_eq!(said, "a device's operator makes a column of itself; leave output out");
        let said = outline.then_on_device(&cast("any")).unwrap_err().to_string();
        assert_eq!(said, "a device takes columns of a fixed shape");
        for other in [
            operator("label", &json!({"select": {"input": "label", "indices": [0], "axis": 0}})),
            operator("new", &json!({"rename": {"input": "label"}})),
            operator("new", &json!({"concat": {"inputs": ["label", "label"], "axis": 0}})),
            operator("new", &json!({"constant": {"value": [1], "shape": [], "dtype": "int64"}})),
        ] {
            let said = outline.then_on_device(&other).unwrap_err().to_string();
            assert!(said.starts_with("a device casts, normalizes and lays out"), "{said}");
        }
    }
}
