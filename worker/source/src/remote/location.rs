//! URLs of remote files: `scheme://authority/key`.

use std::path::Path;

use object_store::path::Path as StorePath;

use crate::error::LoadError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    S3,
    Gs,
    Az,
    Http,
    Https,
}

/// URL of a remote file, folder or pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) scheme: Scheme,
    /// Bucket, container, or host and port.
    pub(crate) authority: String,
    /// Rest of the URL, without the first slash.
    pub(crate) key: String,
}

/// True if a path is the URL of something that is not in the file system.
pub fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains("://"))
}

impl Scheme {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Az => "az",
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// True if it is a plain web server, which lists nothing.
    pub(crate) fn is_web(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}

/// Returns a URL for messages: without the user, the password, and the query, which may be signed.
pub(crate) fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let rest = match authority.rsplit_once('@') {
        Some((user, _)) => format!("***{}", &rest[user.len()..]),
        None => rest.to_owned(),
    };
    let rest = rest.split_once('?').map_or(rest.clone(), |(path, _)| format!("{path}?***"));
    if scheme.is_empty() { rest } else { format!("{scheme}://{rest}") }
}

impl Location {
    /// # Errors  The URL is invalid, or its scheme is unknown.
    pub(crate) fn parse(url: &str) -> Result<Self, LoadError> {
        let refused = |why: &str| LoadError::NotFound(format!("{}: {why}", shown(url)));
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| refused("is not a URL such as s3://bucket/key"))?;
        let scheme = match scheme {
            "s3" | "s3a" => Scheme::S3,
            "gs" => Scheme::Gs,
            "az" => Scheme::Az,
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            other => {
                return Err(refused(&format!(
                    "`{other}://` is not known; use a path, file://, s3://, gs://, az://, http:// or \
                     https://"
                )));
            }
        };
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            return Err(refused("names no bucket or host"));
        }
        if authority.contains('@') {
            return Err(refused(
                "a user or account in the URL would be shown in logs; give it by the environment \
                 (docs/DATASETS.md)",
            ));
        }
        Ok(Self { scheme, authority: authority.to_owned(), key: key.to_owned() })
    }

    /// Returns the URL of the bucket or host.
    pub(crate) fn root(&self) -> String {
        format!("{}://{}", self.scheme.name(), self.authority)
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/{}", self.root(), self.key)
    }

    /// Returns the key in the form for stores.
    ///
    /// # Errors  The key is invalid: it has empty parts, `.` or `..`.
    pub(crate) fn store_path(&self) -> Result<StorePath, LoadError> {
        let refused = |error| LoadError::NotFound(format!("{}: {error}", self.url()));
        match self.scheme.is_web() {
            true => StorePath::from_url_path(&self.key).map_err(refused),
            false => StorePath::parse(&self.key).map_err(refused),
        }
    }
}

/// Returns the deepest folder that contains all of `urls`, which must be of one bucket or host.
///
/// # Errors  They are not.
pub(crate) fn common_root(urls: &[&str]) -> Result<String, LoadError> {
    let Some((first, others)) = urls.split_first() else {
        return Ok(String::new());
    };
    let bucket = Location::parse(first)?.root();
    let mut root = folder_of(first);
    for url in others {
        if !inside(&bucket, url) {
            return Err(LoadError::NotFound(format!(
                "{url} and {first} are in different places; a dataset's files are all local, or all \
                 in one bucket or on one host"
            )));
        }
        while !inside(root, url) {
            root = folder_of(root);
        }
    }
    Ok(root.to_owned())
}

fn folder_of(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(folder, _)| folder)
}

fn inside(folder: &str, url: &str) -> bool {
    url.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let location = Location::parse("s3://bucket/a/b c.tfrecord").unwrap();
        assert_eq!(location.root(), "s3://bucket");
        assert_eq!(location.key, "a/b c.tfrecord");
        assert_eq!(location.url(), "s3://bucket/a/b c.tfrecord");
        let web = Location::parse("https://host:8080/x/a%20b").unwrap();
        assert_eq!(web.store_path().unwrap().as_ref(), "x/a b");
        let refused = |url| Location::parse(url).unwrap_err().to_string();
        let said = [
            refused("hdfs://name/x"),
            refused("name/x"),
            refused("s3:///x"),
            refused("http://user@host/x"),
            refused("https://me:se@cret@host/x?sig=SECRET"),
            Location::parse("s3://b/a//b").unwrap().store_path().unwrap_err().to_string(),
        ];
        assert_eq!(
            said,
            [
                "hdfs://name/x: `hdfs://` is not known; use a path, file://, s3://, gs://, az://, \
                 http:// or https://",
                "name/x: is not a URL such as s3://bucket/key",
                "s3:///x: names no bucket or host",
                "http://***@host/x: a user or account in the URL would be shown in logs; give it \
                 by the environment (docs/DATASETS.md)",
                "https://***@host/x?***: a user or account in the URL would be shown in logs; give \
                 it by the environment (docs/DATASETS.md)",
                "s3://b/a//b: Path \"a//b\" contained empty path segment",
            ]
        );
    }

    #[test]
    fn the_root_is_the_deepest_common_folder() {
        let root = |urls: &[&str]| common_root(urls).map_err(|error| error.to_string());
        assert_eq!(root(&["s3://b/x/a", "s3://b/x/b"]).unwrap(), "s3://b/x");
        assert_eq!(root(&["s3://b/x/a", "s3://b/xy/b"]).unwrap(), "s3://b");
        assert_eq!(root(&["s3://b/x/y/a", "s3://b/x/b"]).unwrap(), "s3://b/x");
        assert_eq!(root(&["s3://b/a"]).unwrap(), "s3://b");
        let apart = root(&["s3://b/a", "s3://bb/a"]).unwrap_err();
        assert_eq!(
            apart,
            "s3://bb/a and s3://b/a are in different places; a dataset's files are all local, or \
             all in one bucket or on one host"
        );
        assert!(root(&["s3://b/a", "/b/a"]).unwrap_err().contains("different places"));
    }
}
