//! Whole small objects: read, and written by one request each.

use object_store::path::Path as StorePath;
use object_store::{Error, ObjectStoreExt};

use super::bucket::Bucket;
use super::fault::StoreFault;
use super::listing::{GoOn, each_object, told};
use super::location::{Location, Scheme};
use super::runtime::runtime;
use crate::error::LoadError;
use crate::wait::Task;

/// Returns the contents of objects of one bucket or host; `None`: there is no such object.
///
/// # Errors  The store refuses or does not answer; `Interrupted`.
pub(crate) fn contents(
    urls: &[String],
    go_on: GoOn<'_>,
) -> Result<Vec<Option<Vec<u8>>>, LoadError> {
    each_object(urls, go_on, |bucket, url, path| async move {
        let read = read(&bucket, &path).await;
        read.map_err(|error| told(&url, StoreFault::of(bucket.scheme, &error)))
    })
}

async fn read(bucket: &Bucket, path: &StorePath) -> Result<Option<Vec<u8>>, Error> {
    match bucket.lists.get(path).await {
        Ok(found) => Ok(Some(found.bytes().await?.into())),
        Err(error) => match StoreFault::of(bucket.scheme, &error) {
            StoreFault::Gone => Ok(None),
            _ => Err(error),
        },
    }
}

/// Writes an object as a whole.
///
/// # Errors  The store refuses or does not answer; `Interrupted`.
pub(crate) fn put(url: &str, bytes: Vec<u8>, go_on: GoOn<'_>) -> Result<(), LoadError> {
    let location = Location::parse(url)?;
    let (bucket, root, path) = (Bucket::open(&location)?, location.root(), location.store_path()?);
    let url = url.to_owned();
    let work = async move {
        bucket.check_credentials(&root).await?;
        let written = bucket.lists.put(&path, bytes.into()).await;
        written.map(drop).map_err(|error| LoadError::Index {
            object: url,
            reason: format!("cannot write: {}", reason(bucket.scheme, &error)),
        })
    };
    Task::spawn(&runtime(), work).wait(go_on)
}

/// Returns the reason why a store did not take an object.
fn reason(scheme: Scheme, error: &Error) -> String {
    match StoreFault::of(scheme, error) {
        StoreFault::Gone if scheme.is_web() => "the server takes no files".into(),
        StoreFault::Gone => "there is no such bucket".into(),
        StoreFault::Changed => "the object was changed at the same time".into(),
        StoreFault::Passing { reason, .. } | StoreFault::Lasting { reason, .. } => {
            // Without the page that a web server sends.
            let text = if scheme.is_web() { reason.split('<').next() } else { None };
            text.unwrap_or(&reason).trim_end_matches([':', ' ']).to_owned()
        }
    }
}
