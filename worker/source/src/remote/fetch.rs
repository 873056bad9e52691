//! One range of an object: requested until it is complete, or its time is up.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use object_store::path::Path as StorePath;
use object_store::{GetOptions, GetRange};
use shardfeed_plan::ChangeStamp;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::bucket::Bucket;
use super::fault::{Attempts, PATIENCE_HINT, StoreFault};
use super::listing::{look, stamp_of};
use super::location::Location;
use super::runtime::runtime;
use crate::blocks::{BLOCK_BYTES, BlockCache, BlockKey};
use crate::error::LoadError;
use crate::shared::Lock;
use crate::wait::Task;

/// Flag that is set when the results are no longer needed.
pub(crate) type Stop = Arc<AtomicBool>;

/// Requests of a loader's readers to stores so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Requests for ranges.
    pub requests: u64,
    /// Retries among them.
    pub retries: u64,
    pub bytes: u64,
    /// Bytes read from this host's disk cache instead.
    pub cached_bytes: u64,
}

/// Access to the objects of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    bucket: Arc<Bucket>,
    counters: Arc<Lock<RemoteStats>>,
    blocks: Option<Arc<BlockCache>>,
}

impl Reach {
    /// - `url`: of any object in the bucket.
    ///
    /// # Errors  The URL is invalid, or the environment has no valid settings for a store.
    pub(crate) fn open(
        url: &str,
        counters: Arc<Lock<RemoteStats>>,
        blocks: Option<Arc<BlockCache>>,
    ) -> Result<Self, LoadError> {
        let bucket = Bucket::open(&Location::parse(url)?)?;
        Ok(Self { bucket, counters, blocks })
    }

    /// # Errors  The URL is invalid, or its key is.
    pub(crate) fn object(
        &self,
        url: &str,
        stamp: ChangeStamp,
    ) -> Result<Arc<RemoteObject>, LoadError> {
        let path = Location::parse(url)?.store_path()?;
        Ok(Arc::new(RemoteObject { reach: self.clone(), path, url: url.to_owned(), stamp }))
    }
}

/// An object in the version that was indexed.
#[derive(Debug)]
pub(crate) struct RemoteObject {
    reach: Reach,
    path: StorePath,
    url: String,
    stamp: ChangeStamp,
}

/// A range in flight; cancelled when dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(super) range: Range<u64>,
    task: Task<Bytes>,
}

impl Pending {
    pub(crate) fn wait(&self, stop: &AtomicBool) -> Result<Bytes, LoadError> {
        self.task.wait(|| !stop.load(Ordering::Relaxed))
    }
}

impl RemoteObject {
    pub(crate) fn size_bytes(&self) -> u64 {
        self.stamp.size_bytes
    }

    /// Removes the blocks of a range from this host's disk cache.
    pub(crate) fn forget(&self, range: Range<u64>) {
        let blocks = self.reach.blocks.iter();
        let numbers = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        blocks.for_each(|blocks| {
            let key = |number| BlockKey::new(&self.url, &self.stamp, number);
            numbers.clone().for_each(|number| blocks.forget(key(number)));
        });
    }

    /// Starts to fetch a range.
    /// - `stop`: once set, no more requests are made, so that a closing loader ends without errors.
    pub(crate) fn begin(self: &Arc<Self>, range: Range<u64>, stop: &Stop) -> Pending {
        let (object, wanted, stop) = (Arc::clone(self), range.clone(), Arc::clone(stop));
        let task = Task::spawn(&runtime(), async move { object.get(wanted, &stop).await });
        Pending { range, task }
    }

    /// Returns a range, from this host's disk cache where possible.
    async fn get(&self, range: Range<u64>, stop: &Stop) -> Result<Bytes, LoadError> {
        let Some(blocks) = &self.reach.blocks else {
            return self.fetch(range, stop).await;
        };
        let numbers = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        let keys: Vec<_> =
            numbers.clone().map(|n| BlockKey::new(&self.url, &self.stamp, n)).collect();
        let (cache, wanted) = (Arc::clone(blocks), keys.clone());
        let look = move || wanted.into_iter().map(|key| cache.get(key)).collect::<Vec<_>>();
        let mut found = spawn_blocking(look).await.map_err(|_| LoadError::ReaderLost)?;
        let first = numbers.start;
        let mut all =
            Vec::with_capacity((self.span(numbers.clone()).end - first * BLOCK_BYTES) as usize);
        let mut number = numbers.start;
        while number < numbers.end {
            let index = (number - first) as usize;
            let span = self.span(number..number + 1);
            let whole = |block: &Vec<u8>| block.len() as u64 == span.end - span.start;
            if let Some(block) = found[index].take().filter(whole) {
                self.reach.counters.lock().cached_bytes += block.len() as u64;
                all.extend_from_slice(&block);
                number += 1;
                continue;
            }
            let behind = found[index + 1..].iter().take_while(|block| block.is_none()).count();
            let run = number..number + 1 + behind as u64;
            let bytes = self.fetch(self.span(run.clone()), stop).await?;
            all.extend_from_slice(&bytes);
            let (cache, keys) = (Arc::clone(blocks), keys[index..index + 1 + behind].to_vec());
            let keep = move || {
                let parts = bytes.chunks(BLOCK_BYTES as usize);
                keys.into_iter().zip(parts).for_each(|(key, part)| cache.put(key, part));
            };
            spawn_blocking(keep).await.map_err(|_| LoadError::ReaderLost)?;
            number = run.end;
        }
        let from = (range.start - first * BLOCK_BYTES) as usize;
        let until = (range.end - first * BLOCK_BYTES) as usize;
        Ok(Bytes::from(all).slice(from..until))
    }

    /// Returns the range of bytes of blocks in the file.
    fn span(&self, blocks: Range<u64>) -> Range<u64> {
        blocks.start * BLOCK_BYTES..(blocks.end * BLOCK_BYTES).min(self.stamp.size_bytes)
    }

    async fn fetch(&self, range: Range<u64>, stop: &Stop) -> Result<Bytes, LoadError> {
        let limits = self.reach.bucket.limits;
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut got = Vec::with_capacity(length);
        let mut attempts = Attempts::new(limits);
        loop {
            let permit = self.reach.bucket.permits.acquire().await.expect("it is never closed");
            if stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            {
                let mut counters = self.reach.counters.lock();
                counters.requests += 1;
                counters.retries += u64::from(attempts.failures > 0);
            }
            let before = got.len();
            let mut fault = self.attempt(&range, &mut got).await;
            drop(permit);
            if let Err(StoreFault::Changed) = fault {
                // A response may also be inconsistent.
                fault = Err(match look(&self.reach.bucket, &self.path).await {
                    Ok(now) if now == self.stamp => {
                        StoreFault::passing("an answer about another object or range")
                    }
                    Ok(now) => return Err(self.changed(Some(now))),
                    Err(fault) => fault,
                });
            }
            self.reach.counters.lock().bytes += (got.len() - before) as u64;
            let at = range.start + got.len() as u64;
            match fault {
                Ok(()) => return Ok(got.into()),
                Err(StoreFault::Gone | StoreFault::Changed) => return Err(self.changed(None)),
                Err(StoreFault::Lasting { reason, hint }) => {
                    return Err(self.failed(at, reason, hint));
                }
                Err(StoreFault::Passing { reason, retry_after }) => {
                    tracing::debug!(file = self.url, offset = at, reason, "a read failed");
                    match attempts.failed(reason, retry_after) {
                        Some(pause) => sleep(pause).await,
                        None => return Err(self.failed(at, attempts.told(), PATIENCE_HINT)),
                    }
                }
            }
        }
    }

    /// Makes one request for the bytes that are missing at the end of `got`.
    async fn attempt(&self, range: &Range<u64>, got: &mut Vec<u8>) -> Result<(), StoreFault> {
        let limits = self.reach.bucket.limits;
        let wanted = (range.end - range.start) as usize;
        let missing = range.start + got.len() as u64..range.end;
        let options = GetOptions {
            range: Some(GetRange::Bounded(missing)),
            if_match: self.condition(),
            ..GetOptions::default()
        };
        let stalled = |what: &str| {
            StoreFault::passing(format!("{what} for {:.1} s", limits.stall.as_secs_f64()))
        };
        let answer =
            timeout(limits.stall, self.reach.bucket.reads.get_opts(&self.path, options)).await;
        let answer = answer.map_err(|_| stalled("no answer"))?;
        let answer = answer.map_err(|error| StoreFault::of(self.reach.bucket.scheme, &error))?;
        if stamp_of(&answer.meta) != self.stamp {
            return Err(StoreFault::Changed);
        }
        let mut body = answer.into_stream();
        while got.len() < wanted {
            match timeout(limits.stall, body.next()).await {
                Err(_) => return Err(stalled("no byte")),
                Ok(Some(Err(error))) => {
                    return Err(StoreFault::of(self.reach.bucket.scheme, &error));
                }
                Ok(None) => return Err(StoreFault::passing("the body ended before its end")),
                Ok(Some(Ok(bytes))) => {
                    let room = wanted - got.len();
                    got.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
            }
        }
        Ok(())
    }

    /// Returns the condition that a store checks before it sends data. A weak tag never matches
    /// there; the response is compared here in any case.
    fn condition(&self) -> Option<String> {
        self.stamp.etag.clone().filter(|etag| !etag.starts_with("W/"))
    }

    fn changed(&self, found: Option<ChangeStamp>) -> LoadError {
        LoadError::changed(self.url.clone(), self.stamp.clone(), found)
    }

    fn failed(&self, offset: u64, reason: String, hint: &'static str) -> LoadError {
        LoadError::Store { file: self.url.clone(), offset: Some(offset), reason, hint }
    }
}
