//! Data roots: folders and URL prefixes below which a worker reads.
//!
//! This module only compares text; code that opens files must resolve symbolic links as well.

/// Returns true if `location`, an absolute path or a URL, is at or below one of `roots`.
///
/// A location with a `..` component is below no root.
pub fn is_below(roots: &[String], location: &str) -> bool {
    let location = location.strip_prefix("file://").unwrap_or(location);
    if location.split('/').any(|part| part == "..") {
        return false;
    }
    roots.iter().any(|root| {
        let root = root.strip_prefix("file://").unwrap_or(root).trim_end_matches('/');
        let rest = location.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Returns the folder or URL that contains every file matched by `pattern`.
///
/// For a list (`@PATH`) this is the path of the list.
pub fn fixed_folder(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('@').unwrap_or(pattern);
    let pattern = pattern.strip_prefix("file://").unwrap_or(pattern);
    match pattern.find(['*', '?', '[', '{']) {
        None => pattern,
        Some(end) => &pattern[..pattern[..end].rfind('/').unwrap_or(0)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_below_a_root_by_whole_components() {
        let roots = ["/data/".to_owned(), "s3://bucket/a".to_owned(), "https://".to_owned()];
        for inside in [
            "/data",
            "/data/x",
            "file:///data/x/y",
            "s3://bucket/a/b",
            "https://host/x",
            "/data//x",
        ] {
            assert!(is_below(&roots, inside), "{inside}");
        }
        for outside in [
            "/",
            "/database",
            "/data/../etc",
            "/data/..",
            "s3://bucket/ab",
            "http://host/x",
            "data",
        ] {
            assert!(!is_below(&roots, outside), "{outside}");
        }
        assert!(is_below(&["/".to_owned()], "/etc/x"));
        assert!(!is_below(&["/".to_owned()], "s3://bucket/x"));
        assert!(!is_below(&[], "/x"));
    }

    #[test]
    fn the_fixed_folder_of_a_pattern_ends_before_its_first_wildcard() {
        for (pattern, folder) in [
            ("/data/x-*.tfrecord", "/data"),
            ("/data/*/x", "/data"),
            ("/data/x.tfrecord", "/data/x.tfrecord"),
            ("file:///data/[ab]/x", "/data"),
            ("https://host/x-{00..99}", "https://host"),
            ("@/lists/a.txt", "/lists/a.txt"),
            ("*", ""),
        ] {
            assert_eq!(fixed_folder(pattern), folder, "{pattern}");
        }
    }
}
