//! The operator `compute`: an expression, computed for many rows at a time.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::cast::cast;
use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::expression::{BLOCK, Dialect, Expression, Node};
use super::form::Form;
use crate::dtype::{Dtype, with_type};

/// An expression over columns of one number per row, computed in float64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compute {
    /// Such as `where(mate > 0, 1, tanh(score / 400))`; docs/OPERATORS.md describes the syntax.
    pub expression: String,
    pub dtype: Dtype,
}

impl Definition for Compute {
    fn row() -> &'static str {
        "`compute(output, expression, dtype)` | an expression over columns of one number | \
         TensorFlow in float64 | to 1e-14 (tanh, exp and log are those of the crate libm)"
    }

    fn inputs(&self) -> Result<Inputs, String> {
        Ok(Inputs::Fixed(Expression::parse(&self.expression, Dialect::Compute)?.names()))
    }

    fn prepare(&self, given: Given<'_>) -> Result<OperatorWork, String> {
        given.forms.iter().try_for_each(|form| form.of_numbers().map(drop))?;
        if let Some(input) = given.forms.iter().find(|input| input.items() != 1) {
            return Err(format!(
                "an expression takes columns of one number a row, not of shape {:?}; select or \
                 reshape them",
                input.shape
            ));
        }
        let form = Form::numbers(self.dtype, vec![])?;
        let expression = Expression::parse(&self.expression, Dialect::Compute)?;
        let from: Vec<Dtype> = given.forms.iter().map(|form| form.dtype).collect();
        let to = self.dtype;
        Ok(OperatorWork::columns(form, move |inputs, rows, out| {
            let input = |name: usize, range: Range<usize>, to: &mut [f64]| {
                with_type!(from[name], From => cast(&inputs[name].numbers::<From>()[range], to));
            };
            with_type!(to, To => {
                let out = bytemuck::cast_slice_mut::<u8, To>(out);
                compute(&expression, rows, input, |range, values| cast(values, &mut out[range]));
            });
            Ok(())
        }))
    }
}

/// Computes all rows in blocks.
/// - `input`: writes some rows of a column as float64.
/// - `output`: receives the results of some rows, in order.
fn compute(
    expression: &Expression,
    rows: usize,
    input: impl Fn(usize, Range<usize>, &mut [f64]),
    mut output: impl FnMut(Range<usize>, &[f64]),
) {
    for begin in (0..rows).step_by(BLOCK) {
        let range = begin..rows.min(begin + BLOCK);
        let leaf = |node: &Node| match node {
            Node::Integer(integer) => vec![*integer as f64; range.len()],
            Node::Number(number) => vec![*number; range.len()],
            Node::Leaf(name) => {
                let mut values = vec![0.0; range.len()];
                input(*name, range.clone(), &mut values);
                values
            }
            _ => unreachable!("the parser refuses {node:?}"),
        };
        let values = expression.root().values(&leaf);
        output(range, &values);
    }
}
