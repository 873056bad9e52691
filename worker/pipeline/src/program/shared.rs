//! Images of records of which the rows are samples with different parts of the image.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{InputSource, Program, ProgramPart, ProgramStep};
use crate::column::Origin;
use crate::draw::DrawKey;
use crate::operator::OperatorWork;
use crate::record::RowError;
use crate::rows::Cells;

impl Program {
    /// Finds the images of records that are the same for all rows of a record.
    /// - `unbatched`: names of the columns with rows.
    pub(crate) fn share_images(&mut self, unbatched: &[String]) {
        let is_of_record = |step: &ProgramStep| {
            let (OperatorWork::Images(chain), Some(InputSource::Feature(at))) =
                (&step.work, step.inputs.first())
            else {
                return false;
            };
            let plan = &self.features[*at];
            let name = plan.spec.as_ref().map(|spec| &spec.name);
            chain.decodes()
                && matches!(plan.origin, Origin::Feature(_))
                && name.is_some_and(|name| !unbatched.contains(name))
        };
        let steps = self.steps.iter().enumerate();
        self.shared = steps.filter(|(_, step)| is_of_record(step)).map(|(at, _)| at).collect();
        self.before_shared = vec![false; self.steps.len()];
        for (at, step) in self.steps.iter().enumerate().rev() {
            self.before_shared[at] |= self.shared.contains(&at);
            if self.before_shared[at] {
                for input in &step.inputs {
                    if let InputSource::Step(taken) = input {
                        self.before_shared[*taken] = true;
                    }
                }
            }
        }
    }

    /// Returns the bytes of a row's shared images: those that are cut out of an image of which the
    /// rows of a record have different parts. 0: there are none.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.shared.iter().map(|step| self.steps[*step].form.row_bytes()).sum()
    }

    /// Makes only the shared images of the rows of `cells`.
    ///
    /// # Errors  The row in which an operator fails.
    pub(crate) fn make_shared(
        &self,
        cells: &Cells<'_>,
        key: &DrawKey,
    ) -> Result<Vec<Arc<[u8]>>, RowError> {
        let rows = cells.rows.len();
        let bytes = |step: &usize| self.steps[*step].form.row_bytes();
        let mut images: Vec<_> =
            self.shared.iter().map(|step| vec![0; rows * bytes(step)]).collect();
        let mut outputs: BTreeMap<_, _> = self.shared.iter().copied().zip(&mut images).collect();
        self.run(cells, key, &ProgramPart::Images, |step| {
            outputs.remove(&step).map(Vec::as_mut_slice)
        })?;
        let of_row = |row: usize| {
            let parts = self.shared.iter().zip(&images);
            let parts = parts.map(|(step, all)| &all[row * bytes(step)..][..bytes(step)]);
            parts.collect::<Vec<_>>().concat().into()
        };
        Ok((0..rows).map(of_row).collect())
    }

    /// Place of a shared step's image among the bytes of [`Program::shared_bytes`].
    pub(super) fn shared_place(&self, step: usize) -> Option<Range<usize>> {
        let place = self.shared.iter().position(|shared| *shared == step)?;
        let before = &self.shared[..place];
        let start = before.iter().map(|step| self.steps[*step].form.row_bytes()).sum();
        Some(start..start + self.steps[step].form.row_bytes())
    }
}
