//! Lists of remote files, and their change stamps.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use glob::{MatchOptions, Pattern};
use object_store::path::Path as StorePath;
use object_store::{ObjectMeta, ObjectStoreExt};
use shardfeed_plan::ChangeStamp;

use super::bucket::Bucket;
use super::fault::{PATIENCE_HINT, StoreFault};
use super::location::{Location, shown};
use super::runtime::runtime;
use crate::error::LoadError;
use crate::wait::Task;

/// Maximum number of concurrent requests for change stamps, or for small objects.
const LOOKS: usize = 64;

/// Maximum number of files of one range in braces: more is probably a mistake.
const RANGE_MAX: u64 = 1_000_000;

/// Callback that is called now and then; `false` cancels.
pub(crate) type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// URL and change stamp of a remote file.
pub(crate) type StampedUrl = (String, ChangeStamp);

/// Returns the remote files that `pattern` names.
///
/// # Errors  There are none; the store refuses or does not answer; `Interrupted`.
pub(crate) fn find(pattern: &str, go_on: GoOn<'_>) -> Result<Vec<StampedUrl>, LoadError> {
    let location = Location::parse(pattern)?;
    if location.key.is_empty() || location.key.ends_with('/') {
        return Err(LoadError::NotFound(format!(
            "{pattern}: is a folder; name its files, for example {}/*.tfrecord",
            pattern.trim_end_matches('/')
        )));
    }
    if location.scheme.is_web() {
        return stamps(&expand(pattern)?, go_on);
    }
    if !location.key.contains(['*', '?', '[']) {
        return stamps(&[location.url()], go_on);
    }
    let matched = list(&location, pattern, go_on)?;
    if matched.is_empty() {
        return Err(LoadError::NotFound(format!(
            "{pattern}: no object matches; check the pattern and the bucket"
        )));
    }
    Ok(matched)
}

/// Returns the current change stamps of remote files of one bucket or host, in order of `urls`.
///
/// # Errors  As [`find`].
pub(crate) fn stamps(urls: &[String], go_on: GoOn<'_>) -> Result<Vec<StampedUrl>, LoadError> {
    each_object(urls, go_on, |bucket, url, path| async move {
        let stamp = look(&bucket, &path).await.map_err(|fault| told(&url, fault))?;
        Ok((url, stamp))
    })
}

/// Runs `ask` for each of `urls`, which are of one bucket or host, at most [`LOOKS`] at once.
/// Returns the results in the order of `urls`.
pub(super) fn each_object<T: Send + 'static, F>(
    urls: &[String],
    go_on: GoOn<'_>,
    ask: impl Fn(Arc<Bucket>, String, StorePath) -> F + Send + 'static,
) -> Result<Vec<T>, LoadError>
where
    F: Future<Output = Result<T, LoadError>> + Send,
{
    let Some(first) = urls.first() else {
        return Ok(Vec::new());
    };
    let first = Location::parse(first)?;
    let (bucket, root) = (Bucket::open(&first)?, first.root());
    let paths = urls.iter().map(|url| Ok((url.clone(), Location::parse(url)?.store_path()?)));
    let paths = paths.collect::<Result<Vec<_>, LoadError>>()?;
    let work = async move {
        bucket.check_credentials(&root).await?;
        let paths = futures::stream::iter(paths);
        let asked = paths.map(move |(url, path)| ask(Arc::clone(&bucket), url, path));
        asked.buffered(LOOKS).try_collect().await
    };
    Task::spawn(&runtime(), work).wait(go_on)
}

pub(super) async fn look(bucket: &Bucket, path: &StorePath) -> Result<ChangeStamp, StoreFault> {
    let meta = bucket.lists.head(path).await;
    meta.map(|meta| stamp_of(&meta)).map_err(|error| StoreFault::of(bucket.scheme, &error))
}

/// Returns the change stamp of an object's metadata. An ETag identifies the contents; without one,
/// size and time in whole seconds are used: stores report fractions in lists only.
pub(super) fn stamp_of(meta: &ObjectMeta) -> ChangeStamp {
    let etag = meta.e_tag.as_deref().filter(|etag| !etag.is_empty());
    // Azure quotes it in headers but not in lists.
    let etag = etag.map(|etag| match etag.ends_with('"') {
        true => etag.to_owned(),
        false => format!("\"{etag}\""),
    });
    let modified_ns = match etag {
        Some(_) => 0,
        None => i128::from(meta.last_modified.timestamp()) * 1_000_000_000,
    };
    ChangeStamp { size_bytes: meta.size, modified_ns, etag }
}

pub(super) fn told(url: &str, fault: StoreFault) -> LoadError {
    let store =
        |reason, hint| LoadError::Store { file: url.to_owned(), offset: None, reason, hint };
    match fault {
        StoreFault::Gone => {
            LoadError::NotFound(format!("{url}: no such object; check the bucket and the key"))
        }
        StoreFault::Changed => store("changed while it was looked at".into(), "try again"),
        StoreFault::Passing { reason, .. } => store(format!("gave up: {reason}"), PATIENCE_HINT),
        StoreFault::Lasting { reason, hint } => store(reason, hint),
    }
}

fn list(location: &Location, pattern: &str, go_on: GoOn<'_>) -> Result<Vec<StampedUrl>, LoadError> {
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let matches = Pattern::new(&location.key)
        .map_err(|error| LoadError::NotFound(format!("{pattern}: not a pattern: {error}")))?;
    let is_wild = |part: &&str| part.contains(['*', '?', '[']);
    let parts: Vec<&str> = location.key.split('/').collect();
    let literal = parts.iter().take_while(|part| !is_wild(part)).count();
    let folder = Location { key: parts[..literal].join("/"), ..location.clone() };
    let prefix = (literal > 0).then(|| folder.store_path()).transpose()?;
    // Only if the pattern is confined to one folder, that folder is listed without those below it.
    let flat = literal + 1 == parts.len() && !parts[literal].contains("**");
    let bucket = Bucket::open(location)?;
    let (root, url) = (location.root(), pattern.to_owned());
    let work = async move {
        bucket.check_credentials(&root).await?;
        let store = Arc::clone(&bucket.lists);
        let failed = |error| match StoreFault::of(bucket.scheme, &error) {
            StoreFault::Gone => LoadError::NotFound(format!(
                "{url}: there is no such bucket; check its name, and the endpoint"
            )),
            fault => told(&url, fault),
        };
        let matched = |meta: &ObjectMeta| matches.matches_with(meta.location.as_ref(), options);
        let seen = |meta: ObjectMeta| (format!("{root}/{}", meta.location), stamp_of(&meta));
        if flat {
            let found = store.list_with_delimiter(prefix.as_ref()).await.map_err(failed)?;
            return Ok(found.objects.into_iter().filter(matched).map(seen).collect());
        }
        let mut listing = store.list(prefix.as_ref());
        let mut found = Vec::new();
        while let Some(meta) = listing.next().await {
            let meta = meta.map_err(failed)?;
            if matched(&meta) {
                found.push(seen(meta));
            }
        }
        Ok(found)
    };
    Task::spawn(&runtime(), work).wait(go_on)
}

/// Expands ranges in braces to their numbers, as web servers list nothing.
fn expand(pattern: &str) -> Result<Vec<String>, LoadError> {
    let refused = |why: &str| LoadError::NotFound(format!("{}: {why}", shown(pattern)));
    if pattern.contains('?') {
        return Err(refused("URLs with a query, such as presigned ones, are not supported"));
    }
    if pattern.contains(['*', '[']) {
        return Err(refused(
            "a web server lists no files, so it cannot be a pattern; name each file, or a range such \
             as x-{00000..00099}.tfrecord",
        ));
    }
    let Some((before, rest)) = pattern.split_once('{') else {
        return Ok(vec![pattern.to_owned()]);
    };
    let range = rest.split_once('}').and_then(|(range, behind)| {
        let (from, to) = range.split_once("..")?;
        Some((from.len(), from.parse::<u64>().ok()?, to.parse::<u64>().ok()?, behind))
    });
    let Some((width, from, to, behind)) = range else {
        return Err(refused("the text in braces is no range such as {00000..00099}"));
    };
    if from > to || to - from >= RANGE_MAX {
        return Err(refused("the range in braces is empty or too long"));
    }
    let behind = expand(behind)?;
    if (to - from + 1).saturating_mul(behind.len() as u64) > RANGE_MAX {
        return Err(refused("the ranges in braces name too many files"));
    }
    let names = (from..=to).map(|number| format!("{before}{number:0width$}"));
    Ok(names.flat_map(|name| behind.iter().map(move |rest| format!("{name}{rest}"))).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Starts a web server that answers every request in this way.
    fn server(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut caller in listener.incoming().flatten() {
                let (mut asked, mut bytes) = (Vec::new(), [0; 1024]);
                while !asked.ends_with(b"\r\n\r\n") {
                    match caller.read(&mut bytes) {
                        Ok(read @ 1..) => asked.extend(&bytes[..read]),
                        _ => break,
                    }
                }
                let answer =
                    format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = caller.write_all(answer.as_bytes());
            }
        });
        address
    }

    #[test]
    fn every_answer_of_a_web_server_but_a_file_is_told_with_what_to_check() {
        let said = [
            "404 Not Found",
            "403 Forbidden",
            "400 Bad Request",
            "300 Multiple Choices\r\nLocation: http://elsewhere/x",
        ]
        .map(|answer| {
            let address = server(answer);
            let error = find(&format!("http://{address}/x"), &mut || true).unwrap_err();
            error.to_string().replace(&address, "HOST")
        });
        assert_eq!(
            said,
            [
                "http://HOST/x: no such object; check the bucket and the key",
                "http://HOST/x: cannot read: access is denied; the server wants a login, which is \
                 not supported",
                "http://HOST/x: cannot read: HTTP status 400; check the URL",
                "http://HOST/x: cannot read: HTTP status 300 (redirected to http://elsewhere/x); \
                 check the URL",
            ]
        );
        let folder = find("http://host/x/", &mut || true).unwrap_err().to_string();
        assert_eq!(
            folder,
            "http://host/x/: is a folder; name its files, for example http://host/x/*.tfrecord"
        );
    }

    #[test]
    fn a_range_in_braces_is_its_files() {
        let names = expand("http://h/x-{08..10}-of-{1..2}").unwrap();
        assert_eq!(names[0], "http://h/x-08-of-1");
        assert_eq!(names[5], "http://h/x-10-of-2");
        assert_eq!(names.len(), 6);
        let said = [
            "http://h/*",
            "http://h/x?y=1",
            "http://h/{a,b}",
            "http://h/{1",
            "http://h/{2..1}",
            "http://h/{1..1000001}",
            "http://h/{1..999999}/{1..9}",
        ]
        .map(|bad| expand(bad).unwrap_err().to_string());
        assert_eq!(
            said,
            [
                "http://h/*: a web server lists no files, so it cannot be a pattern; name each \
                 file, or a range such as x-{00000..00099}.tfrecord",
                "http://h/x?***: URLs with a query, such as presigned ones, are not supported",
                "http://h/{a,b}: the text in braces is no range such as {00000..00099}",
                "http://h/{1: the text in braces is no range such as {00000..00099}",
                "http://h/{2..1}: the range in braces is empty or too long",
                "http://h/{1..1000001}: the range in braces is empty or too long",
                "http://h/{1..999999}/{1..9}: the ranges in braces name too many files",
            ]
        );
    }
}
