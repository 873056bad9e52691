//! Which files a dataset may have: those that its patterns match, or those that it is named by.

use std::collections::BTreeSet;

use glob::{MatchOptions, Pattern};
use shardfeed_plan::{Corrupt, Digest, fixed_folder};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::Listing;

/// What names that the coordinator chooses begin with; a caller's name must not.
pub(super) const FILES_PREFIX: &str = "files-";

/// Bytes of the digest in such a name, in hex.
const NAME_DIGITS: usize = 24;

/// The name of a dataset that was added by its files: the same files, read by the same rules, have one name.
/// - `scope`: of a limited principal, whose scans nobody else believes; empty for others.
pub(super) fn name_of(
    Listing { root, parts }: &Listing,
    compression: &str,
    corrupt: Corrupt,
    scope: &[String],
) -> String {
    let mut fields = vec![root.clone(), compression.to_owned(), corrupt.to_string()];
    fields.extend(parts.iter().map(|part| part.chunk.to_string()));
    // A scope's names have no control characters.
    fields.extend(scope.iter().map(|name| format!("\n{name}")));
    let fields = fields.iter().flat_map(|field| [field.as_bytes(), b"\0"]);
    format!("{FILES_PREFIX}{}", &Digest::of_parts(fields).to_string()[..NAME_DIGITS])
}

/// What the patterns of a dataset match.
pub(super) struct Matcher {
    literals: BTreeSet<String>,
    globs: Vec<(String, Pattern)>,
    /// A list that only workers can read is among the patterns: it may name any file.
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

    /// Refuses a listed file that no pattern matches.
    pub(super) fn check(&self, root: &str, path: &str) -> Result<(), WireError> {
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
        let message = format!("`{location}` is matched by no pattern of the dataset");
        Err(WireError::new(ErrorKind::Invalid, message))
    }
}

/// A path or URL without what stands twice or for nothing.
fn plain(location: &str) -> String {
    let location = location.strip_prefix("file://").unwrap_or(location);
    let (scheme, rest) = match location.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}:/"), rest),
        None => (String::new(), location),
    };
    let mut parts: Vec<&str> = vec![];
    for part in rest.split('/').filter(|part| !matches!(*part, "" | ".")) {
        // Paths are listed without these, as far as no wildcard stands before them.
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

/// A pattern whose ranges in braces match anything within a component.
fn without_ranges(pattern: &str) -> String {
    let mut parts = pattern.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Beside another `*` one is enough, and two would cross components.
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
            name_of(listing, "auto", Corrupt::Error, &scope)
        };
        let all = [
            name(&listing("/a", 1), &[]),
            name(&listing("/b", 1), &[]),
            name(&listing("/a", 2), &[]),
            name(&listing("/a", 1), &["*"]),
            name(&listing("/a", 1), &["nightly-*"]),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
        assert_eq!(all[0], name(&listing("/a", 1), &[]));
    }
}
