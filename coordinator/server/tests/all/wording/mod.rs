//! Rejections: a call causes each one, and a table shows its kind beside the call, and the message of
//! the first one of each kind.

mod admin;
mod cluster;
mod denied;
mod start;
mod views;
mod worker;

use std::collections::BTreeSet;
use std::fmt::{Debug, Display, Write};

use expect_test::Expect;
use tonic::{Response, Status};

use crate::fixture::refused;

/// Calls, and what each of them got.
#[derive(Default)]
pub(crate) struct Table {
    lines: String,
    names: Vec<(String, &'static str)>,
    /// Kinds of which a message is shown.
    shown: BTreeSet<String>,
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

    /// Adds a call that must be rejected.
    pub(crate) fn refused<T: Debug>(&mut self, asked: &str, answer: Result<Response<T>, Status>) {
        let (kind, message) = refused(Err::<Response<T>, _>(answer.expect_err(asked)));
        let kind = format!("{kind:?}");
        if self.shown.insert(kind.clone()) {
            self.add(asked, format!("{kind}: {message}"));
        } else {
            writeln!(self.lines, "{asked}: {kind}").unwrap();
        }
    }

    pub(crate) fn check(&self, says: &Expect) {
        says.assert_eq(&self.lines);
    }
}
