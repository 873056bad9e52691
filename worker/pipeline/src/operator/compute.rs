//! The operator `compute`: an expression, computed for many rows at a time.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::cast::cast;
use super::definition::{Definition, Given, Inputs, OperatorWork};
use super::expression::{Dialect, Expression, Node, One, Two};
use super::form::Form;
use crate::dtype::{Dtype, with_type};

/// Rows per block: intermediate values stay in the processor's cache.
const ROWS: usize = 512;

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
        Ok(Inputs::Fixed(Expression::parse(&self.expression, Dialect::Compute)?.names().to_vec()))
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
    let mut stack: Vec<[f64; ROWS]> = vec![];
    for begin in (0..rows).step_by(ROWS) {
        let range = begin..rows.min(begin + ROWS);
        let count = range.len();
        let mut depth = 0;
        for node in expression.nodes() {
            if stack.len() <= depth {
                stack.push([0.0; ROWS]);
            }
            match node {
                Node::Integer(integer) => stack[depth][..count].fill(*integer as f64),
                Node::Number(number) => stack[depth][..count].fill(*number),
                Node::Name(name) => input(*name, range.clone(), &mut stack[depth][..count]),
                Node::One(one) => {
                    depth -= 1;
                    let values = &mut stack[depth][..count];
                    values.iter_mut().for_each(|value| *value = apply(*one, *value));
                }
                Node::Two(two) => {
                    depth -= 2;
                    let (first, second) = stack.split_at_mut(depth + 1);
                    let pairs = first[depth][..count].iter_mut().zip(&second[0][..count]);
                    pairs.for_each(|(a, b)| *a = combine(*two, *a, *b));
                }
                Node::Text(_) | Node::Len(_) | Node::In(_) => {
                    unreachable!("the parser refuses {node:?}")
                }
                Node::Where => {
                    depth -= 3;
                    let (first, others) = stack.split_at_mut(depth + 1);
                    let chosen = others[0][..count].iter().zip(&others[1][..count]);
                    let rows = first[depth][..count].iter_mut().zip(chosen);
                    rows.for_each(|(if_true, (yes, no))| {
                        *if_true = if is_true(*if_true) { *yes } else { *no };
                    });
                }
            }
            depth += 1;
        }
        output(range, &stack[0][..count]);
    }
}

/// True as in TensorFlow and numpy: any value except 0.
fn is_true(value: f64) -> bool {
    value != 0.0
}

fn apply(one: One, x: f64) -> f64 {
    match one {
        One::Negate => -x,
        One::Not => f64::from(u8::from(!is_true(x))),
        One::Abs => x.abs(),
        // Unlike `signum`, returns 0 for 0 and NaN for NaN.
        One::Sign if x == 0.0 || x.is_nan() => x,
        One::Sign => x.signum(),
        One::Tanh => libm::tanh(x),
        One::Exp => libm::exp(x),
        One::Log => libm::log(x),
        One::Sqrt => x.sqrt(),
        One::Floor => x.floor(),
        One::Hash => unreachable!("the parser refuses it"),
    }
}

fn combine(two: Two, a: f64, b: f64) -> f64 {
    let truth = |holds: bool| f64::from(u8::from(holds));
    match two {
        Two::Add => a + b,
        Two::Subtract => a - b,
        Two::Multiply => a * b,
        Two::Divide => a / b,
        Two::Modulo | Two::FloorDivide => unreachable!("the parser refuses {two:?}"),
        // NaN stays NaN, as in TensorFlow.
        Two::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Two::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Two::Min => a.min(b),
        Two::Max => a.max(b),
        Two::Less => truth(a < b),
        Two::LessOrEqual => truth(a <= b),
        Two::Greater => truth(a > b),
        Two::GreaterOrEqual => truth(a >= b),
        Two::Equal => truth(a == b),
        Two::NotEqual => truth(a != b),
        Two::And => truth(is_true(a) && is_true(b)),
        Two::Or => truth(is_true(a) || is_true(b)),
    }
}
