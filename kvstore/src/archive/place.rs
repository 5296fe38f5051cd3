//! Where the archive is: `file:///directory` or, in a build with the feature `s3`, `s3://bucket/prefix`.

use super::ArchiveError;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait between two tries.
const BACKOFF: Duration = Duration::from_secs(2);

/// What is set about the archive.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it is.
    pub url: String,
    /// Of one request, its answer included.
    pub timeout: Duration,
    /// Tries after the first.
    pub retries: usize,
    /// Endpoint, region and credentials of S3, by the names of the usual variables (`AWS_...`).
    pub variables: Variables,
}

impl Settings {
    /// These with the variables of the process.
    pub fn new(url: &str, timeout: Duration, retries: usize) -> Self {
        Self { url: url.to_owned(), timeout, retries, variables: Variables::of_process() }
    }

    /// The longest that one call may take: every try and the waits between them.
    pub fn patience(&self) -> Duration {
        let tries = u32::try_from(self.retries).unwrap_or(u32::MAX).saturating_add(1);
        self.timeout.saturating_add(BACKOFF).saturating_mul(tries)
    }

    /// Whether the URL is one that can be opened here; nothing is opened.
    pub fn check(&self) -> Result<(), ArchiveError> {
        parse(&self.url).map(drop)
    }
}

/// Names and values, of which nothing is printed.
#[derive(Clone, Default)]
pub struct Variables(pub Vec<(String, String)>);

impl Variables {
    fn of_process() -> Self {
        let utf8 =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        Self(utf8.filter(|(name, _)| name.starts_with("AWS_")).collect())
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} variables", self.0.len())
    }
}

enum Place<'a> {
    Directory(&'a str),
    #[cfg(feature = "s3")]
    Bucket(&'a str, Path),
}

fn parse(url: &str) -> Result<Place<'_>, ArchiveError> {
    let wrong = |why: &str| Err(ArchiveError::Setting(format!("{url:?}: {why}")));
    match url.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(Place::Directory(path)),
        Some(("file", _)) => wrong("a directory is named by file:/// and its whole path"),
        #[cfg(not(feature = "s3"))]
        Some(("s3", _)) => wrong("this build cannot use S3; build it with --features s3"),
        #[cfg(feature = "s3")]
        Some(("s3", place)) => {
            let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
            if bucket.is_empty() {
                return wrong("no bucket; write s3://BUCKET/PREFIX");
            }
            match Path::parse(prefix.trim_end_matches('/')) {
                Ok(prefix) => Ok(Place::Bucket(bucket, prefix)),
                Err(e) => wrong(&super::one_line(&e.to_string())),
            }
        }
        _ => wrong("must be file:///DIRECTORY or s3://BUCKET/PREFIX"),
    }
}

/// The directory that a local archive is.
pub fn directory(settings: &Settings) -> Option<PathBuf> {
    match parse(&settings.url) {
        Ok(Place::Directory(path)) => Some(PathBuf::from(path)),
        _ => None,
    }
}

/// The store and the prefix in it.
pub fn open(settings: &Settings) -> Result<(Arc<dyn ObjectStore>, Path), ArchiveError> {
    let failed = |e: String| ArchiveError::Setting(format!("{:?}: {}", settings.url, super::one_line(&e)));
    match parse(&settings.url)? {
        Place::Directory(path) => {
            std::fs::create_dir_all(path).map_err(|e| failed(e.to_string()))?;
            let store = LocalFileSystem::new_with_prefix(path).map_err(|e| failed(e.to_string()))?;
            // An object must be as durable as the file that it replaces.
            Ok((Arc::new(store.with_fsync(true)), Path::default()))
        }
        #[cfg(feature = "s3")]
        Place::Bucket(bucket, prefix) => {
            s3::open(settings, bucket).map(|store| (store, prefix)).map_err(|e| failed(e.to_string()))
        }
    }
}

#[cfg(feature = "s3")]
mod s3 {
    use super::{BACKOFF, Settings};
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
    use std::sync::Arc;
    use std::time::Duration;

    /// A connection is made within this.
    const CONNECT: Duration = Duration::from_secs(5);

    pub fn open(settings: &Settings, bucket: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
        // The TLS stack comes without cryptography of its own; one that is installed already does as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client =
            |key, time: Duration| (AmazonS3ConfigKey::Client(key), format!("{} ms", time.as_millis()));
        // Names that the client does not know belong to other programs.
        let known = settings.variables.0.iter().filter_map(|(name, value)| {
            Some((name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>().ok()?, value.clone()))
        });
        let ours = [
            client(ClientConfigKey::Timeout, settings.timeout),
            client(ClientConfigKey::ConnectTimeout, CONNECT.min(settings.timeout)),
        ];
        let builder =
            known.chain(ours).fold(AmazonS3Builder::new(), |b, (key, value)| b.with_config(key, value));
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: BACKOFF, ..BackoffConfig::default() },
            max_retries: settings.retries,
            retry_timeout: settings.patience(),
        };
        Ok(Arc::new(builder.with_bucket_name(bucket).with_retry(retry).build()?))
    }
}
