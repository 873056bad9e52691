//! Record specs in Python's format, and the columns of a `Source` while it is declared.

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use shardfeed_embedded::EncodedSpec;
use shardfeed_pipeline::{
    CheckedExpression, ColumnKind, Operator, Outline, OutlineColumn, OutlineError, ParseSpec,
    RecordSpec, Schema,
};
use shardfeed_tfrecord::example::{DType, DefaultValue, Feature, FeatureSpec};

use crate::errors::{config_error, load_error};
use crate::loader::option;

/// A column for Python: name, kind, dtype, shape of one row; `None`: differs from row to row.
type OutlineTuple = (String, &'static str, &'static str, Vec<Option<usize>>);

/// The columns of a source: the native half of Python's `Source`.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeOutline(Outline);

#[pymethods]
impl NativeOutline {
    /// Columns of parsed records; without features of unchanged records.
    #[new]
    fn new(
        py: Python<'_>,
        features: Option<Vec<FeatureTuple<'_>>>,
        sequence_features: Option<Vec<FeatureTuple<'_>>>,
    ) -> PyResult<Self> {
        let parse = parse_spec(py, features, sequence_features)?;
        Outline::new(parse).map(Self).map_err(config_error(py))
    }

    /// Returns the columns after one more operator.
    ///
    /// # Errors  `KeyError` with the name of a column that does not exist, else `ConfigError` with
    /// the reason.
    fn then(&self, py: Python<'_>, operator: &str, on_device: bool) -> PyResult<Self> {
        let operator: Operator = serde_json::from_str(operator).map_err(config_error(py))?;
        let after =
            if on_device { self.0.then_on_device(&operator) } else { self.0.then(&operator) };
        match after {
            Ok(after) => Ok(Self(after)),
            Err(OutlineError::NoColumn(name)) => Err(PyKeyError::new_err(name)),
            Err(OutlineError::Operator(what)) => Err(config_error(py)(what)),
        }
    }

    /// Checks the expression of a filter, and joins it with the one before. Returns its canonical
    /// text, and the indexes of the operators that make columns for all expressions.
    /// - `others`: other expressions. `measured`: these indexes for the expressions before.
    fn filter(
        &self,
        py: Python<'_>,
        expression: &str,
        before: Option<&str>,
        others: Vec<String>,
        measured: Vec<usize>,
    ) -> PyResult<(String, Vec<usize>)> {
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let checked = self.0.filter(expression, before, (&others, &measured));
        checked_tuple(py, checked)
    }

    /// Returns the columns of samples that are rows of records.
    fn unbatch(&self, py: Python<'_>, unbatch: &str) -> PyResult<Self> {
        let spec = serde_json::from_str(unbatch).map_err(config_error(py))?;
        self.0.unbatch(&spec).map(Self).map_err(config_error(py))
    }

    fn pack(&self, py: Python<'_>, pack: &str) -> PyResult<Self> {
        let spec = serde_json::from_str(pack).map_err(config_error(py))?;
        self.0.pack(&spec).map(Self).map_err(config_error(py))
    }

    fn window(&self, py: Python<'_>, window: &str) -> PyResult<Self> {
        let spec = serde_json::from_str(window).map_err(config_error(py))?;
        self.0.window(&spec).map(Self).map_err(config_error(py))
    }

    /// Checks the settings of balanced steps. Returns the canonical text of the cost, and indexes as
    /// `filter` does.
    fn balance(
        &self,
        py: Python<'_>,
        balance: &str,
        others: Vec<String>,
        measured: Vec<usize>,
        is_of_mixture: bool,
    ) -> PyResult<(String, Vec<usize>)> {
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        let spec = serde_json::from_str(balance).map_err(config_error(py))?;
        checked_tuple(py, self.0.balance(&spec, (&others, &measured), is_of_mixture))
    }

    /// Columns in the order of a batch.
    fn columns(&self) -> Vec<OutlineTuple> {
        self.0.columns().into_iter().map(outline_tuple).collect()
    }
}

fn checked_tuple(
    py: Python<'_>,
    checked: Result<CheckedExpression, String>,
) -> PyResult<(String, Vec<usize>)> {
    let checked = checked.map_err(config_error(py))?;
    Ok((checked.text, checked.measured))
}

fn outline_tuple((name, column): (&str, OutlineColumn<'_>)) -> OutlineTuple {
    let known = |unknown: usize, shape: &[usize]| -> Vec<Option<usize>> {
        std::iter::repeat_n(None, unknown).chain(shape.iter().copied().map(Some)).collect()
    };
    let (what, dtype, shape) = match column {
        OutlineColumn::Images { count, dtype, channels } => {
            let shape = count.map(Some).into_iter().chain(known(2, &[channels])).collect();
            ("images", dtype, shape)
        }
        OutlineColumn::Column(kind) => {
            let (what, shape) = match kind {
                ColumnKind::Dense { shape, .. } => ("dense", known(0, shape)),
                ColumnKind::Padded { shape, .. } => ("padded", known(1, shape)),
                ColumnKind::Ragged { levels, shape, .. } => ("ragged", known(*levels, shape)),
                ColumnKind::Sparse { size, .. } => ("sparse", known(0, size)),
            };
            (what, kind.dtype(), shape)
        }
    };
    (name.to_owned(), what, dtype.name(), shape)
}

/// A feature: its name, everything but the default as JSON, its default.
type FeatureTuple<'py> = (String, String, Option<Bound<'py, PyAny>>);

fn features(py: Python<'_>, list: Vec<FeatureTuple<'_>>) -> PyResult<Vec<FeatureSpec>> {
    let spec = |(name, text, value): FeatureTuple<'_>| {
        let feature = serde_json::from_str(&text)
            .map_err(|error| config_error(py)(format!("feature {name:?}: {error}")))?;
        let mut spec = FeatureSpec { name, feature };
        let dtype = spec.dtype();
        if let Feature::FixedLen { default, .. } | Feature::FixedLenSequence { default, .. } =
            &mut spec.feature
        {
            *default = value.map(|value| default_value(dtype, &value)).transpose()?;
        }
        Ok(spec)
    };
    list.into_iter().map(spec).collect()
}

fn parse_spec(
    py: Python<'_>,
    context: Option<Vec<FeatureTuple<'_>>>,
    lists: Option<Vec<FeatureTuple<'_>>>,
) -> PyResult<Option<ParseSpec>> {
    let list = |list: Option<Vec<_>>| list.map(|list| features(py, list)).transpose();
    Ok(match (list(context)?, list(lists)?) {
        (None, None) => None,
        (Some(features), None) => Some(ParseSpec::Example(features)),
        (context, Some(lists)) => {
            Some(ParseSpec::Sequence { context: context.unwrap_or_default(), lists })
        }
    })
}

/// Returns the declaration of records: features, operators, outputs and sample program.
pub(crate) fn record_spec<'py>(
    py: Python<'py>,
    get: &impl Fn(&str) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Option<RecordSpec>> {
    let parse = parse_spec(py, get("features")?.extract()?, get("sequence_features")?.extract()?)?;
    let operators = |name: &str| operators(py, name, get(name)?.extract()?);
    let json = |name: &str| {
        let text: Option<String> = get(name)?.extract()?;
        Ok::<_, PyErr>(text.unwrap_or_else(|| "null".to_owned()))
    };
    let spec = RecordSpec {
        parse,
        operators: operators("operators")?,
        outputs: get("outputs")?.extract()?,
        filter: get("filter")?.extract()?,
        measured: operators("measured")?,
        unbatch: serde_json::from_str(&json("unbatch")?).map_err(config_error(py))?,
        filter_rows: get("filter_rows")?.extract()?,
        pack: serde_json::from_str(&json("pack")?).map_err(config_error(py))?,
        window: serde_json::from_str(&json("window")?).map_err(config_error(py))?,
        balance: serde_json::from_str(&json("balance")?).map_err(config_error(py))?,
    };
    Ok((spec != RecordSpec::default()).then_some(spec))
}

/// Returns the declaration of records in the encoding that processes exchange, from a dict of options.
#[pyfunction]
#[pyo3(name = "record_spec")]
pub(crate) fn encoded_record_spec<'py>(
    py: Python<'py>,
    options: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyBytes>> {
    let spec = record_spec(py, &|name| option(options, name))?.unwrap_or_default();
    let schema = Schema::new(spec).map_err(config_error(py))?;
    let encoded = EncodedSpec::of(&schema).map_err(|error| load_error(py, &error))?;
    Ok(PyBytes::new(py, encoded.bytes()))
}

/// Parses operators in Python's format.
pub(crate) fn operators(py: Python<'_>, option: &str, text: String) -> PyResult<Vec<Operator>> {
    serde_json::from_str(&text).map_err(|error| config_error(py)(format!("{option}: {error}")))
}

fn default_value(dtype: DType, value: &Bound<'_, PyAny>) -> PyResult<DefaultValue> {
    Ok(match dtype {
        DType::Float32 => DefaultValue::Float32(value.extract()?),
        DType::Int64 => DefaultValue::Int64(value.extract()?),
        DType::Bytes => DefaultValue::Bytes(value.extract()?),
    })
}
