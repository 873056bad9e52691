//! A folder of certificates: three files, read together.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::TlsError;
use crate::identity::Identity;

/// Whose signatures are believed: one certificate, or several of them.
pub const CA_FILE: &str = "ca.crt";
/// Who one is: the certificate, and those between it and the authority.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// The certificate's key.
pub const KEY_FILE: &str = "tls.key";

/// Files of certificates are smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A folder of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// What it holds.
#[derive(Debug)]
pub(crate) struct Material {
    pub(crate) roots: Vec<CertificateDer<'static>>,
    pub(crate) own: Option<Own>,
}

/// A certificate and its key.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// What people want to know of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Who it says somebody is.
    pub identity: Option<Identity>,
    /// DNS names and IP addresses that it is good for.
    pub hosts: Vec<String>,
    /// Good from then on.
    pub not_before: SystemTime,
    /// Good until then.
    pub not_after: SystemTime,
    /// Whether it may sign others.
    pub is_authority: bool,
    /// Its serial number, hexadecimal.
    pub serial: String,
}

/// What tells that files changed: for each, when, how long, and which inode.
pub(crate) type Stamp = [Option<(i64, i64, u64, u64)>; 3];

impl Folder {
    /// A folder; nothing is read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What tells that its files changed.
    pub(crate) fn stamp(&self) -> Stamp {
        [CA_FILE, CERTIFICATE_FILE, KEY_FILE].map(|name| {
            let found = fs::metadata(self.file(name)).ok()?;
            Some((found.mtime(), found.mtime_nsec(), found.len(), found.ino()))
        })
    }

    /// Whether others than its owner may read the key; `None`: there is none.
    pub fn key_mode(&self) -> Option<u32> {
        fs::metadata(self.file(KEY_FILE)).ok().map(|found| found.mode() & 0o777)
    }

    /// The certificates of the authorities that are believed.
    ///
    /// # Errors  There is no such file; it holds none.
    pub fn authorities(&self) -> Result<Vec<Certificate>, TlsError> {
        let path = self.file(CA_FILE);
        certificates(&path)?.iter().map(|der| Certificate::parse(&path, der)).collect()
    }

    /// Its own certificate; `None`: it has none.
    ///
    /// # Errors  The file is not what it must be.
    pub fn certificate(&self) -> Result<Option<Certificate>, TlsError> {
        let path = self.file(CERTIFICATE_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let chain = certificates(&path)?;
        chain.first().map(|der| Certificate::parse(&path, der)).transpose()
    }

    /// Reads all of it.
    ///
    /// # Errors  A file is missing (of the own ones both may be), unreadable, or not what it must be; the
    /// own certificate is not good now.
    pub(crate) fn load(&self) -> Result<Material, TlsError> {
        let roots = certificates(&self.file(CA_FILE))?;
        let (certificate, key) = (self.file(CERTIFICATE_FILE), self.file(KEY_FILE));
        let own = match (certificate.exists(), key.exists()) {
            (false, false) => None,
            (true, false) => {
                return Err(TlsError::content(key, "is missing: the key of tls.crt beside it"));
            }
            (false, true) => {
                let reason = "is missing: the certificate of tls.key beside it";
                return Err(TlsError::content(certificate, reason));
            }
            (true, true) => {
                let chain = certificates(&certificate)?;
                let facts = Certificate::parse(&certificate, &chain[0])?;
                facts.check_time(&certificate, SystemTime::now())?;
                let pem = read(&key)?;
                let refused = |error: pem::Error| {
                    let reason = match error {
                        pem::Error::NoItemsFound => "holds no key in PEM".to_owned(),
                        other => format!("is no key in PEM: {other}"),
                    };
                    TlsError::content(&key, reason)
                };
                let key = PrivateKeyDer::from_pem_slice(&pem).map_err(refused)?;
                Some(Own { chain, key })
            }
        };
        Ok(Material { roots, own })
    }
}

impl Certificate {
    pub(crate) fn parse(path: &Path, der: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let broken = |what: String| TlsError::content(path, format!("is no certificate: {what}"));
        let (_, parsed) =
            X509Certificate::from_der(der).map_err(|error| broken(error.to_string()))?;
        let names = parsed.subject_alternative_name().map_err(|error| broken(error.to_string()))?;
        let names = names.map(|names| &names.value.general_names[..]).unwrap_or_default();
        let host = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
                Ok(v4) => Some(std::net::Ipv4Addr::from(v4).to_string()),
                Err(_) => {
                    Some(std::net::Ipv6Addr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string())
                }
            },
            _ => None,
        };
        let at =
            |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let constraints = parsed.basic_constraints().ok().flatten();
        Ok(Self {
            identity: Identity::of(der),
            hosts: names.iter().filter_map(host).collect(),
            not_before: at(parsed.validity().not_before.timestamp()),
            not_after: at(parsed.validity().not_after.timestamp()),
            is_authority: constraints.is_some_and(|found| found.value.ca),
            serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    fn check_time(&self, path: &Path, now: SystemTime) -> Result<(), TlsError> {
        let seconds = |span: Duration| span.as_secs();
        let reason = if let Ok(since) = now.duration_since(self.not_after) {
            format!("expired {} ago", words(seconds(since)))
        } else if let Ok(until) = self.not_before.duration_since(now) {
            format!("becomes good in {}", words(seconds(until)))
        } else {
            return Ok(());
        };
        Err(TlsError::OutOfTime { path: path.to_owned(), reason })
    }
}

/// A span for people: its largest unit.
fn words(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..=119 => (seconds, "s"),
        120..=7_199 => (seconds / 60, "minutes"),
        7_200..=172_799 => (seconds / 3_600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit}")
}

/// The certificates of a file in PEM; one at least.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found
        .map_err(|error| TlsError::content(path, format!("is no certificate in PEM: {error}")))?;
    match found.is_empty() {
        true => Err(TlsError::content(path, "holds no certificate in PEM")),
        false => Ok(found),
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        let source = io::Error::other(format!("{bytes} bytes, more than certificates have"));
        return Err(failed(source));
    }
    fs::read(path).map_err(failed)
}
