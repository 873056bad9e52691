//! Parser of lists of files, one per line, with or without labels.

use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) entries: Vec<Entry>,
    /// Names of the classes, in bytewise order; empty if labels are integers, or there are none.
    pub(super) classes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: String,
    /// The integer after the path, or the number of its class.
    pub(super) label: Option<i64>,
    /// Number of the line, from 1.
    pub(super) line: usize,
}

/// An error of a list, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LinesError {
    #[error("line {line}: is not UTF-8")]
    NotText { line: usize },
    #[error("line {line}: has no label, as line {other} has")]
    NoLabel { line: usize, other: usize },
    #[error("line {line}: has no path before its label")]
    NoPath { line: usize },
    #[error("names no files")]
    Empty,
}

impl Lines {
    /// Parses a list; ignores empty lines.
    ///
    /// # Errors
    /// The list is not text, some lines have no label, or there are no lines.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, LinesError> {
        let text = std::str::from_utf8(bytes).map_err(|error| LinesError::NotText {
            line: 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count(),
        })?;
        let text = text.trim_start_matches('\u{feff}');
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end()));
        let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty()).collect();
        if lines.is_empty() {
            return Err(LinesError::Empty);
        }
        // With tabs, any text may be a label, and names may contain spaces; without, only integers.
        let split = if text.contains('\t') { at_tab } else { at_space };
        let parts: Vec<_> = lines.iter().map(|&(line, text)| (line, text, split(text))).collect();
        let labelled = parts.iter().find(|(_, _, parts)| parts.is_some());
        let Some(&(other, ..)) = labelled else {
            let entry =
                |&(line, path): &(usize, &str)| Entry { path: path.into(), label: None, line };
            return Ok(Self { entries: lines.iter().map(entry).collect(), classes: Vec::new() });
        };
        let mut labels = Vec::with_capacity(parts.len());
        for (line, _, parts) in parts {
            let (path, label) = parts.ok_or(LinesError::NoLabel { line, other })?;
            if path.is_empty() {
                return Err(LinesError::NoPath { line });
            }
            labels.push((line, path, label));
        }
        let integers: Option<Vec<i64>> =
            labels.iter().map(|(.., label)| label.parse().ok()).collect();
        let classes: BTreeSet<&str> = match &integers {
            Some(_) => BTreeSet::new(),
            None => labels.iter().map(|(.., label)| *label).collect(),
        };
        let classes: Vec<String> = classes.into_iter().map(str::to_owned).collect();
        let number = |index: usize, label: &str| match &integers {
            Some(integers) => integers.get(index).copied(),
            None => {
                classes.binary_search_by(|name| name.as_str().cmp(label)).ok().map(|n| n as i64)
            }
        };
        let entries = labels.iter().enumerate().map(|(index, &(line, path, label))| Entry {
            path: path.into(),
            label: number(index, label),
            line,
        });
        Ok(Self { entries: entries.collect(), classes })
    }
}

fn at_tab(line: &str) -> Option<(&str, &str)> {
    let (path, label) = line.rsplit_once('\t')?;
    let (path, label) = (path.trim(), label.trim());
    (!label.is_empty()).then_some((path, label))
}

fn at_space(line: &str) -> Option<(&str, &str)> {
    let (path, label) = line.rsplit_once(' ')?;
    label.parse::<i64>().ok().map(|_| (path.trim(), label))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, Option<i64>)> {
        let lines = Lines::parse(text.as_bytes()).unwrap();
        lines.entries.into_iter().map(|entry| (entry.path, entry.label)).collect()
    }

    fn pairs(pairs: &[(&str, Option<i64>)]) -> Vec<(String, Option<i64>)> {
        pairs.iter().map(|&(path, label)| (path.to_owned(), label)).collect()
    }

    #[test]
    fn a_line_is_a_path() {
        assert_eq!(read("a.jpg\r\n\n  \nb c.jpg"), pairs(&[("a.jpg", None), ("b c.jpg", None)]));
        assert_eq!(read("\u{feff}a.jpg\n"), pairs(&[("a.jpg", None)]));
    }

    #[test]
    fn integers_behind_spaces_are_labels_if_all_lines_have_one() {
        assert_eq!(
            read("a b.jpg 3\nc.jpg  -1\n"),
            pairs(&[("a b.jpg", Some(3)), ("c.jpg", Some(-1))])
        );
        let error = Lines::parse(b"a.jpg 3\n\nc.jpg\n").unwrap_err();
        assert_eq!(error, LinesError::NoLabel { line: 3, other: 1 });
        assert_eq!(Lines::parse(b" 3\n").unwrap_err(), LinesError::NoPath { line: 1 });
    }

    #[test]
    fn behind_tabs_stand_integers_or_names_of_classes() {
        assert_eq!(read("a 1\t7\nb\t8\n"), pairs(&[("a 1", Some(7)), ("b", Some(8))]));
        let lines = Lines::parse(b"a\tdog\nb\tbig cat\nc\tdog\nd\t3\n").unwrap();
        assert_eq!(lines.classes, ["3", "big cat", "dog"]);
        let labels: Vec<_> = lines.entries.iter().map(|entry| entry.label).collect();
        assert_eq!(labels, [Some(2), Some(1), Some(2), Some(0)]);
        let error = Lines::parse(b"a\tdog\nb 5\n").unwrap_err();
        assert_eq!(error, LinesError::NoLabel { line: 2, other: 1 });
        assert_eq!(
            Lines::parse(b"a\tdog\nb\t\n").unwrap_err().to_string(),
            "line 2: has no label, as line 1 has"
        );
    }

    #[test]
    fn lists_that_name_nothing_are_refused() {
        assert_eq!(Lines::parse(b" \n\n").unwrap_err(), LinesError::Empty);
        assert_eq!(Lines::parse(b"a\n\xff\n").unwrap_err(), LinesError::NotText { line: 2 });
    }
}
