//! Files of a dataset: those that its patterns match, or those that it is named by.

use std::collections::BTreeSet;

use glob::{MatchOptions, Pattern};
use shardfeed_plan::{Corrupt, Digest, fixed_folder};
use shardfeed_scheduler::Listing;

use crate::error::{Result, invalid};

/// Prefix of names that the coordinator chooses; a caller's name must not have it.
pub(super) const FILES_PREFIX: &str = "files-";

/// Hex digits of the digest in such a name.
const NAME_DIGITS: usize = 24;

/// Returns the name of a dataset added by its files: the same for equal files, options and program.
/// - `scope`: of a limited principal, whose scans are not trusted by others; empty for others.
pub(super) fn name_of(
    Listing { root, parts }: &Listing,
    (compression, corrupt, program): (&str, Corrupt, Option<Digest>),
    scope: &[String],
) -> String {
    let mut fields = vec![root.clone(), compression.to_owned(), corrupt.to_string()];
    fields.extend(parts.iter().map(|part| part.chunk.to_string()));
    // No chunk and no name begins with this character.
    fields.extend(program.map(|program| format!("\t{program}")));
    // Names in a scope have no control characters.
    fields.extend(scope.iter().map(|name| format!("\n{name}")));
    let fields = fields.iter().flat_map(|field| [field.as_bytes(), b"\0"]);
    format!("{FILES_PREFIX}{}", &Digest::of_parts(fields).to_string()[..NAME_DIGITS])
}

pub(super) struct Matcher {
    literals: BTreeSet<String>,
    globs: Vec<(String, Pattern)>,
    /// True if a pattern is a list that only workers can read: it may name any file.
    has_list: bool,
}

impl Matcher {
    pub(super) fn new(patterns: &[String]) -> Self {
        let mut matcher = Self { literals: BTreeSet::new(), globs: vec![], has_list: false };
        for pattern in patterns {
            if pattern.starts_with('@') {
                matcher.has_list = true;
                continue;
            }
            let plain = plain(pattern);
            matcher.literals.insert(plain.clone());
            if plain.contains(['*', '?', '[', '{'])
                && let Ok(glob) = Pattern::new(&without_ranges(&plain))
            {
                matcher.globs.push((fixed_folder(&plain).to_owned(), glob));
            }
        }
        matcher
    }

    /// Rejects a listed file that no pattern matches.
    pub(super) fn check(&self, root: &str, path: &str) -> Result<()> {
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: false,
        };
        let location = plain(&format!("{root}/{path}"));
        let fits = |(folder, glob): &(String, Pattern)| {
            location.starts_with(folder.as_str()) && glob.matches_with(&location, options)
        };
        if self.has_list || self.literals.contains(&location) || self.globs.iter().any(fits) {
            return Ok(());
        }
        let location: String = location.chars().take(200).collect();
        Err(invalid(format!("`{location}` is matched by no pattern of the dataset")))
    }
}

/// Returns a path or URL without redundant components.
fn plain(location: &str) -> String {
    let location = location.strip_prefix("file://").unwrap_or(location);
    let (scheme, rest) = match location.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}:/"), rest),
        None => (String::new(), location),
    };
    let mut parts: Vec<&str> = vec![];
    for part in rest.split('/').filter(|part| !matches!(*part, "" | ".")) {
        // Listings resolve these, unless a wildcard precedes them.
        let goes_up = part == ".." && scheme.is_empty();
        match parts.last() {
            Some(last) if goes_up && !is_wild(last) => drop(parts.pop()),
            None if goes_up => {}
            _ => parts.push(part),
        }
    }
    parts.iter().fold(scheme, |plain, part| plain + "/" + part)
}

fn is_wild(part: &str) -> bool {
    part.contains(['*', '?', '[', '{'])
}

/// Returns a pattern in which ranges in braces match anything within a component.
fn without_ranges(pattern: &str) -> String {
    let mut parts = pattern.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Next to another `*` none is needed, and two would match across components.
        if !text.ends_with('*') {
            text.push('*');
        }
        let rest = part.split_once('}').map_or("", |(_, rest)| rest);
        text.push_str(rest.strip_prefix('*').unwrap_or(rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(patterns: &[&str], root: &str, path: &str) -> bool {
        let patterns: Vec<_> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Matcher::new(&patterns).check(root, path).is_ok()
    }

    #[test]
    fn files_are_those_that_a_pattern_matches() {
        for (pattern, root, path) in [
            ("/data/*.tfrecord", "/data", "a.tfrecord"),
            ("/data//./*.tfrecord", "/data", "a.tfrecord"),
            ("/data/sub/../*.tfrecord", "/data", "a.tfrecord"),
            ("/../data/a", "/data", "a"),
            ("/data/**/x-*", "/data/a", "b/x-1"),
            ("/data/a[1].tfrecord", "/data", "a[1].tfrecord"),
            ("file:///data/a", "/data", "a"),
            ("s3://bucket/a/*.gz", "s3://bucket/a", "x.gz"),
            ("https://host/x-{00..99}.gz", "https://host", "x-07.gz"),
            ("@/data/list.txt", "/anywhere", "a"),
        ] {
            assert!(matches(&[pattern], root, path), "{pattern}");
        }
        for (pattern, root, path) in [
            ("/data/*.tfrecord", "/other", "a.tfrecord"),
            ("/data/sub/../*.tfrecord", "/data/sub", "a.tfrecord"),
            ("s3://bucket/../a", "s3://", "a"),
            ("/data/*.tfrecord", "/data", "b/a.tfrecord"),
            ("/data/*.tfrecord", "/", "data/b/a.tfrecord"),
            ("/data/a", "/data", "b"),
            ("s3://bucket/a/*", "s3://bucket/b", "x"),
            ("https://host/x-{00..99}.gz", "https://host", "y-07.gz"),
            ("https://host/x-{00..99}.gz", "https://host", "x-0/7.gz"),
        ] {
            assert!(!matches(&[pattern], root, path), "{pattern}");
        }
    }

    #[test]
    fn the_same_files_have_one_name_and_a_limited_scope_its_own() {
        let part = |byte| shardfeed_scheduler::Part {
            chunk: Digest::from_bytes([byte; 32]),
            files: 1,
            bytes: 1,
        };
        let listing = |root: &str, byte| Listing { root: root.to_owned(), parts: vec![part(byte)] };
        let name = |listing: &Listing, scope: &[&str]| {
            let scope: Vec<_> = scope.iter().map(|&name| name.to_owned()).collect();
            name_of(listing, ("auto", Corrupt::Error, None), &scope)
        };
        let program = Some(Digest::from_bytes([1; 32]));
        let filtered = name_of(&listing("/a", 1), ("auto", Corrupt::Error, program), &[]);
        let all = [
            name(&listing("/a", 1), &[]),
            name(&listing("/b", 1), &[]),
            name(&listing("/a", 2), &[]),
            name(&listing("/a", 1), &["*"]),
            name(&listing("/a", 1), &["nightly-*"]),
            filtered,
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
        assert_eq!(all[0], name(&listing("/a", 1), &[]));
    }
}
