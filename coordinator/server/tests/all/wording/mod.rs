//! Messages to users, word by word: a call causes each rejection, and a table shows its text beside
//! the call. The author of a changed text must review the table.

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

/// Calls, and the message that each of them got.
#[derive(Default)]
pub(crate) struct Table {
    lines: String,
    names: Vec<(String, &'static str)>,
}

impl Table {
    /// Shows a value that differs from run to run under a name. The first match applies.
    pub(crate) fn name(&mut self, value: impl Display, name: &'static str) {
        self.names.push((value.to_string(), name));
    }

    pub(crate) fn add(&mut self, asked: &str, said: impl Display) {
        let named = |said: String, (value, name): &(String, &str)| said.replace(value, name);
        let said = self.names.iter().fold(said.to_string(), named);
        writeln!(self.lines, "{asked}\n    {said}").unwrap();
    }

    /// Adds the message of a call that must be rejected.
    pub(crate) fn refused<T: Debug>(&mut self, asked: &str, answer: Result<Response<T>, Status>) {
        let (kind, message) = refused(Err::<Response<T>, _>(answer.expect_err(asked)));
        self.add(asked, format!("{kind:?}: {message}"));
    }

    pub(crate) fn check(&self, says: &Expect) {
        says.assert_eq(&self.lines);
    }
}
