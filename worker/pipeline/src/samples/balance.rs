//! Balanced steps: the cost of a sample. Source: docs/ORDER.md, section 15.

use serde::{Deserialize, Serialize};
use shardfeed_plan::check_balance_window;

use crate::samples::combine::Combiner;
use crate::samples::measure::Measure;
use crate::samples::scope::Scope;

/// Cost of a pack: the sum of the squares of the tokens of its segments.
const SUM_SQUARES: &str = "sum_squares";

/// Cost of a sample, and the samples that are sorted by it together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceSpec {
    /// Canonical text of an expression over features; of packs `sum_squares`.
    pub by: String,
    /// Samples of a lane that are sorted together.
    pub window: u64,
}

impl BalanceSpec {
    /// Returns the measure of the cost; `None`: it follows from the packs.
    /// - `combiner`: of samples that have several records.
    ///
    /// # Errors  A description of what does not fit.
    pub(crate) fn measure(
        &self,
        scope: Scope<'_>,
        combiner: Option<&Combiner>,
    ) -> Result<Option<Measure>, String> {
        check_balance_window(self.window).map_err(|error| error.to_string())?;
        match combiner {
            None => {}
            Some(Combiner::Packs(_)) if self.by == SUM_SQUARES => return Ok(None),
            Some(Combiner::Packs(_)) => {
                return Err(format!("packs are balanced by \"{SUM_SQUARES}\""));
            }
            Some(Combiner::Windows(_)) => {
                return Err("windows have no cost; balance records, rows or packs".to_owned());
            }
        }
        let measure = Measure::new(&self.by, scope).map_err(|error| {
            let is_of_packs = self.by == SUM_SQUARES;
            let hint = if is_of_packs { "; it is the cost of packs, of pack()" } else { "" };
            error + hint
        })?;
        match measure.depends_on_path() {
            true => Err("a cost has no `shard_path`: moved files would have another order".into()),
            false => Ok(Some(measure)),
        }
    }
}
