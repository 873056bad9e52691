//! Columns that the expressions of a sample program may use: features, and what operators make of them.

use std::collections::BTreeSet;

use crate::operator::Operator;
use crate::schema::parse::ParseSpec;

/// Columns that an expression may use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scope<'a> {
    /// Parsing of the records; `None`: a column `record`.
    pub(crate) parse: Option<&'a ParseSpec>,
    /// Operators that make further columns.
    pub(crate) operators: &'a [Operator],
    /// Columns of which a sample has one row.
    pub(crate) unbatched: &'a [String],
}

/// Operators and features that make some columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Needed {
    /// Indexes of the operators, ascending.
    pub(crate) operators: Vec<usize>,
    /// Names of the columns that no operator makes.
    pub(crate) features: Vec<String>,
}

impl Needed {
    /// Returns what the columns after the last operator are made of.
    ///
    /// # Errors  No expression may use an operator's result.
    pub(crate) fn by(operators: &[Operator], names: &[String]) -> Result<Self, String> {
        let mut open: BTreeSet<String> = names.iter().cloned().collect();
        let mut needed = vec![];
        for (at, operator) in operators.iter().enumerate().rev() {
            if let Some(lost) = operator.operation.renamed().filter(|lost| open.contains(*lost)) {
                return Err(format!(
                    "column `{lost}` was renamed to `{}`; use this name, or call all methods that take the \
                     column before rename()",
                    operator.output
                ));
            }
            if !open.remove(&operator.output) {
                continue;
            }
            let name = &operator.output;
            let measured = operator.operation.check_measured();
            measured.map_err(|what| format!("column `{name}` {what}"))?;
            open.extend(operator.operation.definition().inputs()?.names().iter().cloned());
            needed.push(at);
        }
        needed.reverse();
        Ok(Self { operators: needed, features: open.into_iter().collect() })
    }

    pub(crate) fn chosen(&self, operators: &[Operator]) -> Vec<Operator> {
        self.operators.iter().map(|at| operators[*at].clone()).collect()
    }
}

impl Scope<'_> {
    /// Returns the key of the numbers of rows of records.
    pub(crate) fn rows_key(&self) -> String {
        let features = self.parse.map(|parse| parse.named(self.unbatched));
        format!("rows {}", serde_json::to_string(&features).expect("features are plain data"))
    }

    /// Returns the start of the keys of the rows' values; empty: records have no rows.
    pub(crate) fn of_rows(&self) -> String {
        match self.unbatched {
            [] => String::new(),
            _ => format!("row of {} ", self.rows_key()),
        }
    }

    /// Returns the operators that the expressions with these names need.
    ///
    /// # Errors  As [`Needed::by`].
    pub(crate) fn needed(&self, names: &[String]) -> Result<Needed, String> {
        Needed::by(self.operators, names)
    }
}

/// Returns the operators that all expressions need together: an index for each, ascending.
/// - `uses`: for each expression its names, and the indexes of the operators before it.
///
/// # Errors  An operator between two expressions changes a column of the first one.
pub(crate) fn joined(
    operators: &[Operator],
    uses: &[(Vec<String>, Vec<usize>)],
) -> Result<Vec<usize>, String> {
    let mut all = BTreeSet::new();
    let mut each = vec![];
    for (names, before) in uses {
        let those: Vec<_> = before.iter().map(|at| operators[*at].clone()).collect();
        let needed = Needed::by(&those, names)?;
        let needed: Vec<usize> = needed.operators.iter().map(|at| before[*at]).collect();
        all.extend(needed.iter().copied());
        each.push((names, needed));
    }
    let all: Vec<usize> = all.into_iter().collect();
    let together: Vec<_> = all.iter().map(|at| operators[*at].clone()).collect();
    for (names, needed) in each {
        let now = Needed::by(&together, names)?.operators.into_iter().map(|at| all[at]);
        let now: Vec<usize> = now.collect();
        if let Some(at) =
            now.iter().chain(&needed).find(|at| !(now.contains(at) && needed.contains(at)))
        {
            return Err(format!(
                "column `{}` was changed by an operator between two expressions that use it; give the \
                 operator another output",
                operators[*at].output
            ));
        }
    }
    Ok(all)
}
