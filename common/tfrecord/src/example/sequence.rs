//! Finds the requested features and feature lists in a `tf.train.SequenceExample`.

use super::cells::{Cells, Count, Parts, Wanted};
use super::feature::{ListRef, map_entry};
use super::parse::{ExampleParser, ParseError, malformed, place_in};
use super::spec::{Feature, FeatureSpec, SpecError};
use super::wire::{WireError, next_message};

/// Feature list of one record: the values of each step, checked but not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps<'a> {
    body: &'a [u8],
    steps: usize,
    count: usize,
    data_bytes: usize,
}

impl<'a> Steps<'a> {
    const NONE: Self = Self { body: &[], steps: 0, count: 0, data_bytes: 0 };

    pub fn steps(&self) -> usize {
        self.steps
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the decoded size of all values in bytes.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Iterates over the values of each step in order; `None` for a step without values.
    pub fn iter(&self) -> impl Iterator<Item = Option<ListRef<'a>>> + use<'a> {
        let mut rest = self.body;
        // The list was checked before, so no error can occur here.
        std::iter::from_fn(move || next_message(&mut rest, 1).ok().flatten())
            .map(|step| ListRef::read(step).ok().flatten())
    }
}

/// Finds features and feature lists in SequenceExamples.
///
/// A parser is created once and can be used for any number of records by any number of threads.
#[derive(Clone, Debug)]
pub struct SequenceParser {
    context: ExampleParser,
    lists: Vec<FeatureSpec>,
    cells: Cells,
}

impl SequenceParser {
    /// Creates a parser for features of the whole record and for lists with one or more values per
    /// step.
    ///
    /// - `context`: all features that are not lists.
    /// - `lists`: [`Feature::FixedLenSequence`], [`Feature::VarLen`] and [`Feature::Ragged`].
    ///
    /// # Errors
    /// The error of the first feature that cannot be parsed as requested.
    pub fn new(context: Vec<FeatureSpec>, lists: Vec<FeatureSpec>) -> Result<Self, SpecError> {
        for spec in &lists {
            let what = match &spec.feature {
                Feature::FixedLen { .. } => "FixedLen is for the context",
                Feature::Sparse { .. } => "Sparse is for the context",
                Feature::FixedLenSequence { default: Some(_), .. } => {
                    "a list's steps are padded with 0 or the empty string, without a default"
                }
                _ => continue,
            };
            let what = format!("{what}; a list is FixedLenSequence, VarLen or Ragged");
            return Err(SpecError::NoSense { feature: spec.name.clone(), what });
        }
        let cells = Cells::new(&lists)?;
        Ok(Self { context: ExampleParser::new(context)?, lists, cells })
    }

    pub fn context(&self) -> &ExampleParser {
        &self.context
    }

    pub fn lists(&self) -> &[FeatureSpec] {
        &self.lists
    }

    /// Returns the cells of a list.
    ///
    /// # Panics
    /// If `list` is not below the number of lists.
    pub fn parts(&self, list: usize) -> &Parts {
        &self.cells.parts[list]
    }

    /// Finds all features and lists in `record` without allocating.
    ///
    /// - `located`: replaced; the cells of the context.
    /// - `steps`: replaced; one for each of the lists' [`cells`](Self::cells). A missing list has
    ///   no steps. Both are empty after an error.
    ///
    /// # Errors
    /// [`ParseError`]: the bytes are not a SequenceExample, or not one with these features.
    pub fn locate<'a>(
        &self,
        record: &'a [u8],
        located: &mut Vec<Option<ListRef<'a>>>,
        steps: &mut Vec<Steps<'a>>,
    ) -> Result<(), ParseError> {
        steps.clear();
        self.context.locate(record, located)?;
        steps.resize(self.cells.wanted.len(), Steps::NONE);
        let result = self.locate_lists(record, steps);
        if result.is_err() {
            located.clear();
            steps.clear();
        }
        result
    }

    fn locate_lists<'a>(
        &self,
        record: &'a [u8],
        steps: &mut [Steps<'a>],
    ) -> Result<(), ParseError> {
        // Until a list is read, `count` in `steps` is 1 if it was found.
        self.find_lists(record, steps).map_err(|error| malformed(record, error))?;
        for (cell, place) in steps.iter_mut().enumerate() {
            let is_there = place.count == 1;
            if !is_there && self.cells.wanted[cell].is_required {
                let feature = self.cells.keys.name(cell).to_owned();
                let dtype = self.cells.wanted[cell].dtype;
                return Err(ParseError::RequiredList { feature, dtype });
            }
            *place = self.read(record, cell, place.body)?;
        }
        Ok(())
    }

    fn find_lists<'a>(
        &self,
        mut record: &'a [u8],
        steps: &mut [Steps<'a>],
    ) -> Result<(), WireError<'a>> {
        let mut expected = 0;
        while let Some(mut lists) = next_message(&mut record, 2)? {
            while let Some(entry) = next_message(&mut lists, 1)? {
                let (key, body) = map_entry(entry)?;
                if let Some(cell) = self.cells.keys.find(key, expected) {
                    expected = cell + 1;
                    steps[cell] = Steps { body, count: 1, ..Steps::NONE };
                }
            }
        }
        Ok(())
    }

    /// Checks all steps of a list.
    fn read<'a>(
        &self,
        record: &'a [u8],
        cell: usize,
        body: &'a [u8],
    ) -> Result<Steps<'a>, ParseError> {
        let Wanted { dtype, count: wanted, .. } = self.cells.wanted[cell];
        let mut found = Steps { body, ..Steps::NONE };
        let mut rest = body;
        loop {
            let step = next_message(&mut rest, 1).map_err(|error| malformed(record, error))?;
            let Some(step) = step else { return Ok(found) };
            let list = ListRef::read(step).map_err(|error| malformed(record, error))?;
            if let Some(list) = list.filter(|list| list.dtype() != dtype) {
                return Err(ParseError::DTypeMismatch {
                    feature: self.cells.keys.name(cell).to_owned(),
                    expected: dtype,
                    found: list.dtype(),
                    at: place_in(record, list.wire()),
                });
            }
            let (count, bytes) = list.map_or((0, 0), |list| (list.count(), list.data_bytes()));
            if let Count::MultipleOf(expected) = wanted
                && count != expected
            {
                return Err(self.step_count(cell, found.steps, expected, count));
            }
            found.steps += 1;
            found.count += count;
            found.data_bytes += bytes;
        }
    }

    #[cold]
    fn step_count(&self, cell: usize, step: usize, expected: usize, found: usize) -> ParseError {
        let shape = match &self.lists[self.cells.wanted[cell].feature].feature {
            Feature::FixedLenSequence { shape, .. } => shape.clone(),
            _ => unreachable!("only sequences say how many values a step has"),
        };
        let feature = self.cells.keys.name(cell).to_owned();
        ParseError::StepCount { feature, step, shape, expected, found }
    }
}
