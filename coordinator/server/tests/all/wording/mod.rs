//! What people are told, word by word: each refusal is brought about by a call, and a table shows it beside what
//! was asked. A text that changes is read again by whoever changes it.

mod admin;
mod cluster;
mod denied;
mod start;
mod views;
mod worker;

use std::fmt::{Debug, Display, Write};

use expect_test::Expect;
use tonic::{Response, Status};

use crate::fixture::refused;

/// What was asked, and what was said to it.
#[derive(Default)]
pub(crate) struct Table {
    lines: String,
    names: Vec<(String, &'static str)>,
}

impl Table {
    /// What differs from run to run stands in the table under a name. The first that fits is taken.
    pub(crate) fn name(&mut self, value: impl Display, name: &'static str) {
        self.names.push((value.to_string(), name));
    }

    pub(crate) fn add(&mut self, asked: &str, said: impl Display) {
        let named = |said: String, (value, name): &(String, &str)| said.replace(value, name);
        let said = self.names.iter().fold(said.to_string(), named);
        writeln!(self.lines, "{asked}\n    {said}").unwrap();
    }

    /// What a call that must be refused is told.
    pub(crate) fn refused<T: Debug>(&mut self, asked: &str, answer: Result<Response<T>, Status>) {
        let (kind, message) = refused(Err::<Response<T>, _>(answer.expect_err(asked)));
        self.add(asked, format!("{kind:?}: {message}"));
    }

    pub(crate) fn check(&self, says: &Expect) {
        says.assert_eq(&self.lines);
    }
}
