//! A bucket, container or web host, and the way to reach it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use shardfeed_plan::Digest;
use tokio::sync::Semaphore;

use super::fault::{access_hint, deepest};
use super::limits::{Limits, PAUSE};
use super::location::{Location, Scheme};
use super::profile;
use super::transport::StoreConnector;
use crate::error::LoadError;
use crate::shared::{Lock, PerProcess};

/// Timeout that disables that of object_store: each request is watched byte by byte here.
const NO_TIMEOUT: &str = "1day";

/// Attempts to get credentials before they count as missing.
const CREDENTIAL_ATTEMPTS: u32 = 3;

type CredentialCheck = Pin<Box<dyn Future<Output = Result<(), object_store::Error>> + Send>>;

pub(crate) struct Bucket {
    pub(super) scheme: Scheme,
    pub(super) limits: Limits,
    /// For ranges: failures are reported at once, and retried by `fetch`.
    pub(super) reads: Arc<dyn ObjectStore>,
    /// For lists and looks: small, and retried by object_store.
    pub(super) lists: Arc<dyn ObjectStore>,
    /// Limit of requests in flight, shared by all buckets.
    pub(super) permits: Arc<Semaphore>,
    /// Requests credentials, if requests are signed.
    credentials: Option<Box<dyn Fn() -> CredentialCheck + Send + Sync>>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bucket").field("reads", &self.reads).finish_non_exhaustive()
    }
}

/// A bucket that is open in a process, and the key by which it is shared.
struct KnownBucket {
    process: u32,
    root: String,
    environment: Digest,
    bucket: Weak<Bucket>,
}

impl Bucket {
    /// Opens the bucket of `location`, shared by all users under the same environment.
    ///
    /// # Errors  The environment has no valid settings for a store.
    pub(crate) fn open(location: &Location) -> Result<Arc<Self>, LoadError> {
        static KNOWN: Lock<Vec<KnownBucket>> = Lock::new(Vec::new());
        let (process, root, environment) = (std::process::id(), location.root(), environment());
        let mut known = KNOWN.lock();
        known.retain(|known| known.bucket.strong_count() > 0);
        let same = |known: &&KnownBucket| {
            known.process == process && known.root == root && known.environment == environment
        };
        if let Some(bucket) = known.iter().find(same).and_then(|known| known.bucket.upgrade()) {
            return Ok(bucket);
        }
        // Not under the lock: a fork in the meantime would leave it locked in the child. Two
        // concurrent callers build one bucket each.
        drop(known);
        let bucket = Arc::new(Self::build(location)?);
        let mut known = KNOWN.lock();
        known.push(KnownBucket { process, root, environment, bucket: Arc::downgrade(&bucket) });
        Ok(bucket)
    }

    fn build(location: &Location) -> Result<Self, LoadError> {
        static TLS: Once = Once::new();
        // Another library's choice of provider works too.
        TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let limits = Limits::from_environment()?;
        let scheme = location.scheme;
        let refused = |error: object_store::Error| {
            LoadError::Option(format!(
                "{}: {}; {}",
                location.root(),
                deepest(&error),
                access_hint(scheme)
            ))
        };
        let built = match scheme {
            Scheme::S3 => s3(&location.authority, limits),
            Scheme::Gs => gs(&location.authority, limits),
            Scheme::Az => az(&location.authority, limits),
            Scheme::Http | Scheme::Https => web(&location.root(), limits),
        };
        let Built { reads, lists, credentials } = built.map_err(refused)?;
        Ok(Self { scheme, limits, reads, lists, permits: permits(limits), credentials })
    }

    /// Checks that there are credentials, for a more specific error than that of a request.
    ///
    /// # Errors  There are none.
    pub(super) async fn check_credentials(&self, root: &str) -> Result<(), LoadError> {
        let Some(ask) = &self.credentials else {
            return Ok(());
        };
        let mut attempt = 1;
        loop {
            match ask().await {
                Ok(()) => return Ok(()),
                Err(_) if attempt < CREDENTIAL_ATTEMPTS => attempt += 1,
                Err(error) => {
                    return Err(LoadError::Store {
                        file: root.to_owned(),
                        offset: None,
                        reason: format!("there are no credentials ({})", deepest(&error)),
                        hint: access_hint(self.scheme),
                    });
                }
            }
        }
    }
}

/// Returns the limit of requests of this process; a fork gets a separate one.
fn permits(limits: Limits) -> Arc<Semaphore> {
    static PERMITS: PerProcess<(usize, Arc<Semaphore>)> = PerProcess::new();
    let make = || (limits.requests, Arc::new(Semaphore::new(limits.requests)));
    PERMITS.get(|(requests, _)| *requests == limits.requests, make).1
}

/// Returns a digest of the environment variables that affect access to a bucket.
fn environment() -> Digest {
    let ours = [
        "AWS_",
        "GOOGLE_",
        "GCE_",
        "AZURE_",
        "IDENTITY_",
        "SHARDFEED_STORE_",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "SSL_CERT_",
        "HOME",
    ];
    let mut set: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| ours.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    set.sort();
    Digest::of_parts(set.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]))
}

struct Built {
    reads: Arc<dyn ObjectStore>,
    lists: Arc<dyn ObjectStore>,
    credentials: Option<Box<dyn Fn() -> CredentialCheck + Send + Sync>>,
}

/// Disables retries, which `fetch` makes.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn patient(limits: Limits) -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: PAUSE.0, max_backoff: PAUSE.1, base: 2.0 };
    RetryConfig { backoff, max_retries: 1000, retry_timeout: limits.retry }
}

fn stall(limits: Limits) -> String {
    format!("{}ms", limits.stall.max(Duration::from_secs(1)).as_millis())
}

/// Builds the clients of a store that signs requests: object_store's builders share no trait.
/// - `$key`: type of the builder's settings.
macro_rules! signed {
    ($base:expr, $key:ident, $limits:expr) => {{
        let (base, limits) = ($base, $limits);
        let client = |timeout: &str, retry| {
            base.clone()
                .with_config($key::Client(ClientConfigKey::Timeout), timeout)
                .with_http_connector(StoreConnector)
                .with_retry(retry)
        };
        let reads = client(NO_TIMEOUT, once()).build()?;
        let credentials = Arc::clone(reads.credentials());
        let lists = client(&stall(limits), patient(limits))
            .with_credentials(Arc::clone(&credentials))
            .build()?;
        let is_signed = base.get_config_value(&$key::SkipSignature).as_deref() != Some("true");
        let ask = move || -> CredentialCheck {
            let credentials = Arc::clone(&credentials);
            Box::pin(async move { credentials.get_credential().await.map(drop) })
        };
        let credentials = is_signed.then(|| Box::new(ask) as _);
        Ok(Built { reads: Arc::new(reads), lists: Arc::new(lists), credentials })
    }};
}

fn s3(bucket: &str, limits: Limits) -> Result<Built, object_store::Error> {
    let mut base = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let is_set = |key| base.get_config_value(&key).is_some();
    if !is_set(AmazonS3ConfigKey::AccessKeyId)
        && !is_set(AmazonS3ConfigKey::WebIdentityTokenFile)
        && let Some(profile) = profile::from_environment()
    {
        base = profile.apply(base);
    }
    signed!(base, AmazonS3ConfigKey, limits)
}

fn gs(bucket: &str, limits: Limits) -> Result<Built, object_store::Error> {
    let base = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
    signed!(base, GoogleConfigKey, limits)
}

fn az(container: &str, limits: Limits) -> Result<Built, object_store::Error> {
    let base = MicrosoftAzureBuilder::from_env().with_container_name(container);
    signed!(base, AzureConfigKey, limits)
}

fn web(root: &str, limits: Limits) -> Result<Built, object_store::Error> {
    let options = |timeout: Option<Duration>| {
        let options = ClientOptions::new().with_allow_http(true);
        match timeout {
            Some(timeout) => options.with_timeout(timeout),
            None => options.with_timeout_disabled(),
        }
    };
    let store = |timeout, retry| {
        HttpBuilder::new()
            .with_url(root)
            .with_client_options(options(timeout))
            .with_retry(retry)
            .with_http_connector(StoreConnector)
            .build()
    };
    let reads = Arc::new(store(None, once())?);
    let lists = Arc::new(store(Some(limits.stall), patient(limits))?);
    Ok(Built { reads, lists, credentials: None })
}
