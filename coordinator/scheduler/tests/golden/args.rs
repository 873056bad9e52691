//! Arguments of a script's command.

use std::error::Error;
use std::str::FromStr;

use goldenscript::{ArgumentConsumer, Command};

pub(crate) type Failed = Box<dyn Error>;

/// Arguments that were not read yet.
pub(crate) struct Args<'a>(ArgumentConsumer<'a>);

impl<'a> Args<'a> {
    pub(crate) fn new(command: &'a Command) -> Self {
        Self(command.consume_args())
    }

    /// Returns the next argument without a key.
    pub(crate) fn word(&mut self, what: &str) -> Result<&'a str, Failed> {
        self.0.next_pos().ok_or_else(|| format!("{what} is missing").into())
    }

    /// Returns the remaining arguments without a key.
    pub(crate) fn words(&mut self) -> Vec<&'a str> {
        std::iter::from_fn(|| self.0.next_pos()).collect()
    }

    /// Returns the value of a key, if it is given.
    pub(crate) fn key<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, Failed> {
        let read = |text: &str| text.parse().map_err(|_| format!("{key}={text:?} is unreadable"));
        Ok(self.0.take_key(key).map(read).transpose()?)
    }

    /// Returns the value of a key, or a default.
    pub(crate) fn or<T: FromStr>(&mut self, key: &str, default: T) -> Result<T, Failed> {
        Ok(self.key(key)?.unwrap_or(default))
    }

    /// Returns the words of a key's value, separated by spaces or commas.
    pub(crate) fn list(&mut self, key: &str) -> Result<Vec<String>, Failed> {
        let text: String = self.or(key, String::new())?;
        let words = text.split([' ', ',']).filter(|word| !word.is_empty());
        Ok(words.map(str::to_owned).collect())
    }

    /// Returns the numbers of a key's value, or no numbers.
    pub(crate) fn numbers(&mut self, key: &str) -> Result<Vec<u64>, Failed> {
        let words = self.list(key)?;
        Ok(words.iter().map(|word| word.parse()).collect::<Result<_, _>>()?)
    }

    /// Rejects arguments that the command does not have.
    pub(crate) fn finish(&self) -> Result<(), Failed> {
        self.0.reject_next()
    }
}

/// Reads a number without a key.
pub(crate) fn number(text: &str) -> Result<u64, Failed> {
    text.parse().map_err(|_| format!("{text:?} is no number").into())
}
