//! Options of a process: a TOML file, overridden by flags.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Arg;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

use crate::error::Problem;

/// Maximum size of an options file, bytes: larger files are not options files.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Sets the environment variable of an option, unless it has one: `prefix` with the option's name.
pub(super) fn with_variable(arg: Arg, prefix: &str) -> Arg {
    if arg.get_env().is_some() {
        return arg;
    }
    let name = format!("{prefix}{}", arg.get_id().as_str().to_ascii_uppercase());
    // clap keeps names for as long as the process runs.
    arg.env(&*name.leak()).hide_env_values(true)
}

/// Reads options from the file, overridden by the flags.
/// - `flags`: fields with the names of `T`'s fields; those that were not given are not serialized.
///
/// # Errors
/// The file cannot be read, or its content is invalid.
pub(crate) fn read<T: DeserializeOwned>(file: Option<&Path>, flags: &impl Serialize) -> Result<T> {
    let mut table = file.map(load).transpose()?.unwrap_or_default();
    let flags = Table::try_from(flags).map_err(|error| Problem::usage(error.to_string()))?;
    table.extend(flags);
    typed(file, table)
}

/// Converts a table to options.
///
/// # Errors
/// An unknown name or an invalid value.
pub(super) fn typed<T: DeserializeOwned>(file: Option<&Path>, table: Table) -> Result<T> {
    let options = T::deserialize(table).map_err(|error| {
        // The flags were checked before.
        let file = file.map(|file| format!("{}: ", file.display())).unwrap_or_default();
        let said = error.to_string();
        let said: Vec<_> = said.lines().filter(|line| !line.is_empty()).collect();
        Problem::usage(format!("{file}{}", said.join(", ")))
            .hint("`--help` lists the options, their units and their defaults")
    })?;
    Ok(options)
}

pub(super) fn load(path: &Path) -> Result<Table> {
    let name = path.display();
    let unread = || format!("cannot read {name}");
    let size = fs::metadata(path).with_context(unread)?.len();
    if size > FILE_BYTES_MAX {
        let what = format!("{name}: {size} bytes, more than options have");
        return Err(Problem::usage(what).into());
    }
    let text = fs::read_to_string(path).with_context(unread)?;
    text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map(|before| format!(":{}", before.lines().count().max(1)));
        let said = error.message().replace('\n', ", ");
        Problem::usage(format!("{name}{}: {said}", line.unwrap_or_default()))
            .hint("write TOML: `name = value`, strings in quotes")
            .into()
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct FileOptions {
        first_word: Option<String>,
        count: Option<u64>,
    }

    fn read_text(text: &str, flags: &FileOptions) -> Result<FileOptions, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let read = read(Some(file.path()), flags);
        read.map_err(|error: anyhow::Error| {
            error.to_string().replace(&file.path().display().to_string(), "FILE")
        })
    }

    #[test]
    fn flags_win_and_the_rest_is_the_files() {
        let flags = FileOptions { first_word: None, count: Some(2) };
        let read = read_text("first-word = \"a\"\ncount = 1", &flags).unwrap();
        assert_eq!(read, FileOptions { first_word: Some("a".into()), count: Some(2) });
    }

    #[test]
    fn a_file_that_says_nonsense_is_named_with_the_line_or_the_field() {
        let none = FileOptions { first_word: None, count: None };
        let refused = |text| read_text(text, &none).unwrap_err();
        assert!(refused("count = 1\n\nfirst = ").starts_with("FILE:3: "), "{}", refused("a = "));
        let unknown = refused("word = 1");
        assert!(unknown.starts_with("FILE: unknown field `word`"), "{unknown}");
        let wrong = refused("count = \"many\"");
        assert!(wrong.contains("count") && wrong.contains("many"), "{wrong}");
    }
}
