//! Lists of files: `@LIST` expands to the files that the lines of a text name.

use std::path::Path;

use crate::error::LoadError;

/// Maximum size of a list in bytes: a million long paths.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// Makes a pattern independent of the working directory.
///
/// # Errors  The path is not UTF-8, or there is no working directory.
pub fn absolute_pattern(pattern: &str) -> Result<String, LoadError> {
    if pattern.contains("://") {
        return Ok(pattern.to_owned());
    }
    let (mark, path) = pattern.strip_prefix('@').map_or(("", pattern), |path| ("@", path));
    // `absolute` keeps pattern characters, but not a trailing slash, which names no file.
    let path = std::path::absolute(path)
        .map_err(|source| LoadError::Io { file: pattern.to_owned(), source })?;
    let text = path.to_str().map(|path| format!("{mark}{path}"));
    text.ok_or_else(|| {
        let path = path.display();
        LoadError::NotFound(format!("{path}: the path is not UTF-8; rename its folder"))
    })
}

/// Replaces each list by its lines.
///
/// # Errors  A list cannot be read, is not UTF-8, is too long, or names nothing.
pub(super) fn with_lists(patterns: &[String]) -> Result<Vec<String>, LoadError> {
    let mut all = Vec::new();
    for pattern in patterns {
        match pattern.strip_prefix('@') {
            Some(list) => all.extend(lines_of(Path::new(list))?),
            None => all.push(pattern.clone()),
        }
    }
    Ok(all)
}

fn lines_of(list: &Path) -> Result<Vec<String>, LoadError> {
    let shown = list.display();
    let io = |source| LoadError::Io { file: list.display().to_string(), source };
    let bytes = std::fs::metadata(list).map_err(io)?.len();
    let bad = |what: String| LoadError::NotFound(format!("@{shown}: {what}"));
    if bytes > LIST_BYTES_MAX {
        return Err(bad(format!("a list has at most {LIST_BYTES_MAX} bytes, this one {bytes}")));
    }
    let text = String::from_utf8(std::fs::read(list).map_err(io)?)
        .map_err(|_| bad("not a text; a list has a path, or a URL, in each line".into()))?;
    let folder = list.parent().unwrap_or(Path::new(""));
    let line = |(number, line): (usize, &str)| {
        if line.contains("://") {
            return Ok(line.to_owned());
        }
        let path = folder.join(line);
        // The line is not quoted: the user who names a list may not be allowed to read it.
        let text = path.to_str().filter(|_| path.is_file());
        text.map(str::to_owned).ok_or_else(|| bad(format!("line {number} names no file")))
    };
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty()).map(line);
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    match lines.is_empty() {
        true => Err(bad("the list names no file".into())),
        false => Ok(lines),
    }
}

#[cfg(test)]
mod tests {
    use super::super::discover;
    use super::*;

    #[test]
    fn a_list_stands_for_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["a b.tfrecord", "c[1].tfrecord", "d.tfrecord", "e.tfrecord"] {
            std::fs::write(at(name), b"").unwrap();
        }
        // Absolute, relative to the list, a name that looks like a pattern, an empty line.
        let lines = format!("{}\nc[1].tfrecord\n\n", at("a b.tfrecord"));
        std::fs::write(at("whole.txt"), lines).unwrap();
        let list = format!("@{}", at("whole.txt"));
        let found = discover(&[list.clone(), at("e*")], &mut |_| true).unwrap();
        assert_eq!(found.paths, ["a b.tfrecord", "c[1].tfrecord", "e.tfrecord"]);
        assert_eq!(found.root, folder.path());
        assert_eq!(absolute_pattern(&list).unwrap(), list);
        let here = absolute_pattern("@x/whole.txt").unwrap();
        assert!(here.starts_with("@/") && here.ends_with("/x/whole.txt"), "{here}");
    }

    #[test]
    fn a_list_that_is_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list.txt");
        let error = || {
            let pattern = format!("@{}", list.display());
            let error = discover(&[pattern], &mut |_| true).unwrap_err().to_string();
            error.replace(folder.path().to_str().unwrap(), "DIR")
        };
        let mut said = vec![error()];
        for text in [&b"\n"[..], b"\xff\n", b"gone.tfrecord\n"] {
            std::fs::write(&list, text).unwrap();
            said.push(error());
        }
        std::fs::File::create(&list).unwrap().set_len(LIST_BYTES_MAX + 1).unwrap();
        said.push(error());
        assert_eq!(
            said,
            [
                "DIR/list.txt: cannot read: No such file or directory (os error 2)",
                "@DIR/list.txt: the list names no file",
                "@DIR/list.txt: not a text; a list has a path, or a URL, in each line",
                "@DIR/list.txt: line 1 names no file",
                "@DIR/list.txt: a list has at most 268435456 bytes, this one 268435457",
            ]
        );
    }
}
