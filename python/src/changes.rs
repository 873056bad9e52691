//! Operators that a device applies: its steps, and the resulting columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardfeed_device::{Change, Float, NUMBERS_MAX, Number, Step};
use shardfeed_pipeline::{ColumnKind, Dtype, ImageLayout, Operation, Operator};

use crate::device::goes;

/// Columns that a device changes: their kind on the device, by index among the columns of a batch.
pub(crate) type Made = BTreeMap<usize, ColumnKind>;

/// Changes that a device applies to batches.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) changes: Vec<Change>,
    pub(crate) made: Made,
}

impl Changes {
    /// - `columns`: as on the host. `rows`: maximum of a batch.
    ///
    /// # Errors  The operator that the device does not support, and why.
    pub(crate) fn of(
        operators: &[Operator],
        columns: &[(Arc<str>, ColumnKind)],
        rows: u64,
    ) -> Result<Self, String> {
        let mut made = Made::new();
        let mut steps: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
        for (number, operator) in operators.iter().enumerate() {
            let refuse = |what: String| {
                format!(
                    "operator {number} after on_device() (column `{}`): {what}",
                    operator.output
                )
            };
            let named = columns.iter().position(|(name, _)| **name == *operator.output);
            let place = named.ok_or_else(|| {
                refuse("batches have no such column; name it in outputs".to_owned())
            })?;
            let kind = made.get(&place).unwrap_or(&columns[place].1);
            let ColumnKind::Dense { dtype, shape } = kind else {
                return Err(refuse("it is not of one shape for all rows".to_owned()));
            };
            let (dtype, shape) = (*dtype, shape.clone());
            let (new, new_shape) = operator.made_of(dtype, &shape).map_err(refuse)?;
            let items = shape.iter().product::<usize>() as u64;
            if items.saturating_mul(rows) >= NUMBERS_MAX as u64 {
                return Err(refuse(format!(
                    "a batch has {items} x {rows} numbers of it, and a device changes fewer than \
                     {NUMBERS_MAX} at once; use a smaller batch_size, or call it before on_device()"
                )));
            }
            steps.entry(place).or_default().push(step(operator, &shape));
            made.insert(place, ColumnKind::Dense { dtype: new, shape: new_shape });
        }
        // Parts are the columns that go to the device.
        let part = |place: usize| columns[..place].iter().filter(|(_, kind)| goes(kind)).count();
        let change = |(place, steps): (&usize, &Vec<Step>)| {
            Change::new(part(*place), number(columns[*place].1.dtype()), steps)
        };
        Ok(Self { changes: steps.iter().map(change).collect(), made })
    }
}

/// Returns the device's step for a checked operator on rows of this shape.
fn step(operator: &Operator, shape: &[usize]) -> Step {
    match &operator.operation {
        Operation::Cast(cast) => Step::Cast { to: number(cast.dtype) },
        Operation::Normalize(normalize) => {
            let is_narrow = normalize.dtype == Dtype::Float32;
            let float = if is_narrow { Float::Float32 } else { Float::Float64 };
            Step::Normalize { mean: normalize.mean.clone(), std: normalize.std.clone(), float }
        }
        Operation::Layout(layout) => {
            // The dimensions before the cut are moved behind it.
            let cut = if layout.to == ImageLayout::Chw { 2 } else { 1 };
            let size = |dims: &[usize]| (dims.iter().product::<usize>() as u32).max(1);
            Step::Transpose { rows: size(&shape[..cut]), columns: size(&shape[cut..]) }
        }
        _ => unreachable!("made_of refuses all others"),
    }
}

fn number(dtype: Dtype) -> Number {
    match dtype {
        Dtype::Bool => Number::Bool,
        Dtype::Uint8 | Dtype::Bytes => Number::Uint8,
        Dtype::Int8 => Number::Int8,
        Dtype::Uint16 => Number::Uint16,
        Dtype::Int16 => Number::Int16,
        Dtype::Uint32 => Number::Uint32,
        Dtype::Int32 => Number::Int32,
        Dtype::Int64 => Number::Int64,
        Dtype::Float16 => Number::Float16,
        Dtype::Bfloat16 => Number::Bfloat16,
        Dtype::Float32 => Number::Float32,
        Dtype::Float64 => Number::Float64,
    }
}
