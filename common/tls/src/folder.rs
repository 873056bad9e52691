//! Folder of certificates: three files that are read together.

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

/// Certificates of the trusted authorities, one or more.
pub const CA_FILE: &str = "ca.crt";
/// Certificate of the process, with the intermediate certificates up to the authority.
pub const CERTIFICATE_FILE: &str = "tls.crt";
pub const KEY_FILE: &str = "tls.key";

const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

#[derive(Debug)]
pub(crate) struct Material {
    pub(crate) roots: Vec<CertificateDer<'static>>,
    pub(crate) own: Option<Own>,
}

#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    /// Properties of the first certificate of the chain.
    pub(crate) certificate: Certificate,
}

/// Properties of a certificate for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub identity: Option<Identity>,
    /// DNS names and IP addresses for which it is valid.
    pub hosts: Vec<String>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    pub serial: String,
}

impl Folder {
    /// Returns the folder at `path`; nothing is read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        [CA_FILE, CERTIFICATE_FILE, KEY_FILE].map(|name| self.file(name)).into()
    }

    /// Returns the permission bits of the key file; `None` if there is none.
    pub fn key_mode(&self) -> Option<u32> {
        fs::metadata(self.file(KEY_FILE)).ok().map(|found| found.mode() & 0o777)
    }

    /// Returns the certificates of the trusted authorities.
    ///
    /// # Errors  The file is missing; it holds no certificate.
    pub fn authorities(&self) -> Result<Vec<Certificate>, TlsError> {
        let path = self.file(CA_FILE);
        certificates(&path)?.iter().map(|der| Certificate::parse(&path, der)).collect()
    }

    /// Returns the folder's own certificate; `None` if there is none.
    ///
    /// # Errors  The file has invalid content.
    pub fn certificate(&self) -> Result<Option<Certificate>, TlsError> {
        let path = self.file(CERTIFICATE_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let chain = certificates(&path)?;
        chain.first().map(|der| Certificate::parse(&path, der)).transpose()
    }

    /// Reads all files.
    ///
    /// # Errors  A file is missing (certificate and key may both be), unreadable or invalid; the
    /// own certificate is not valid now.
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
                let (chain, path) = (certificates(&certificate)?, certificate);
                let certificate = Certificate::parse(&path, &chain[0])?;
                certificate.check_time(&path, SystemTime::now())?;
                let pem = read(&key)?;
                let refused = |error: pem::Error| {
                    let reason = match error {
                        pem::Error::NoItemsFound => "holds no key in PEM".to_owned(),
                        other => format!("is no key in PEM: {other}"),
                    };
                    TlsError::content(&key, reason)
                };
                let key = PrivateKeyDer::from_pem_slice(&pem).map_err(refused)?;
                Some(Own { chain, key, certificate })
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
        Ok(Self {
            identity: Identity::of(der),
            hosts: names.iter().filter_map(host).collect(),
            not_before: at(parsed.validity().not_before.timestamp()),
            not_after: at(parsed.validity().not_after.timestamp()),
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

/// Formats a duration for display in its largest unit.
fn words(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..=119 => (seconds, "s"),
        120..=7_199 => (seconds / 60, "minutes"),
        7_200..=172_799 => (seconds / 3_600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit}")
}

/// Returns the certificates of a PEM file, at least one.
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
