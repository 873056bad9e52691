//! A certificate authority: a folder with the key that signs the certificates of a cluster.
//!
//! The key is needed only where certificates are issued.

use std::fs::{self, DirBuilder};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

use crate::error::TlsError;
use crate::folder::{CA_FILE, CERTIFICATE_FILE, Certificate, Folder, KEY_FILE, certificates, read};
use crate::identity::{Identity, NAME_BYTES_MAX, Role};

const CA_KEY_FILE: &str = "ca.key";

/// Validity of an authority's certificate, days.
pub const CA_DAYS: u32 = 3_650;
/// Default validity of a certificate, days.
pub const LEAF_DAYS: u32 = 365;
pub const LEAF_DAYS_MAX: u32 = 3_650;

/// Time by which the start of validity is backdated, because clocks differ.
const BACKDATED: Duration = Duration::from_secs(3_600);

/// Domain in the URIs of certificates. Trust depends on the authority, not on this name.
const DOMAIN: &str = "shardfeed";

const HOSTS_MAX: usize = 64;

/// Folder of a certificate authority.
#[derive(Clone, Debug)]
pub struct Authority {
    folder: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub identity: Identity,
    /// Host names and addresses of a coordinator; empty for other roles.
    pub hosts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Folder with `ca.crt`, `tls.crt` and `tls.key`.
    pub folder: PathBuf,
    pub subject: Subject,
    pub not_after: SystemTime,
}

impl Authority {
    /// Creates an authority in a folder, which is created if it is missing.
    /// - `name`: name shown when certificates are inspected.
    ///
    /// # Errors  The folder holds an authority already; it cannot be written.
    pub fn create(folder: impl Into<PathBuf>, name: &str) -> Result<Self, TlsError> {
        let this = Self { folder: folder.into() };
        for file in [CA_KEY_FILE, CA_FILE] {
            let path = this.folder.join(file);
            if path.exists() {
                let hint = "an authority is made once; `shardfeed tls rotate --ca` replaces it";
                return Err(TlsError::Exists { path, hint });
            }
        }
        make_folder(&this.folder)?;
        let (certificate, key) = authority(name)?;
        write(&this.folder.join(CA_KEY_FILE), &key, SECRET)?;
        write(&this.folder.join(CA_FILE), &certificate, PUBLIC)?;
        Ok(this)
    }

    /// Opens an authority created by [`Authority::create`].
    ///
    /// # Errors  The folder holds no authority.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let this = Self { folder: folder.into() };
        let path = this.folder.join(CA_KEY_FILE);
        match path.exists() {
            true => Ok(this),
            false => Err(TlsError::content(
                path,
                "is missing: no authority; `shardfeed tls init` makes one",
            )),
        }
    }

    /// Issues a certificate with a new key into a folder.
    /// - `days`: validity.
    ///
    /// # Errors  The subject is invalid; the folder holds a certificate of another subject.
    pub fn issue(&self, subject: &Subject, days: u32, folder: &Path) -> Result<Issued, TlsError> {
        subject.check()?;
        if !(1..=LEAF_DAYS_MAX).contains(&days) {
            let said = format!("{days} days: certificates are good for 1 to {LEAF_DAYS_MAX} days");
            return Err(TlsError::Subject(said));
        }
        if let Ok(Some(there)) = Folder::new(folder).certificate()
            && there.identity.as_ref() != Some(&subject.identity)
        {
            let path = folder.join(CERTIFICATE_FILE);
            let hint = "it belongs to another identity; name another folder";
            return Err(TlsError::Exists { path, hint });
        }
        let (ca, ca_key) = (self.folder.join(CA_FILE), self.folder.join(CA_KEY_FILE));
        let bundle = text(&ca)?;
        let signer = KeyPair::from_pem(&text(&ca_key)?)
            .map_err(|error| TlsError::content(&ca_key, format!("is no key: {error}")))?;
        // The first certificate of the bundle is that of the signing authority.
        let issuer = Issuer::from_ca_cert_pem(&bundle, signer)
            .map_err(|error| TlsError::content(&ca, format!("is no certificate: {error}")))?;
        let key = KeyPair::generate()?;
        let not_after = SystemTime::now() + Duration::from_secs(u64::from(days) * 86_400);
        let certificate = leaf(subject, not_after)?.signed_by(&key, &issuer)?;
        make_folder(folder)?;
        write(&folder.join(CA_FILE), &bundle, PUBLIC)?;
        write(&folder.join(KEY_FILE), &key.serialize_pem(), SECRET)?;
        write(&folder.join(CERTIFICATE_FILE), &certificate.pem(), PUBLIC)?;
        Ok(Issued { folder: folder.to_owned(), subject: subject.clone(), not_after })
    }

    /// Returns the folders of certificates below this one, sorted.
    ///
    /// # Errors  The folder cannot be read.
    pub fn folders(&self) -> Result<Vec<PathBuf>, TlsError> {
        let failed = |source| TlsError::Read { path: self.folder.clone(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.join(CERTIFICATE_FILE).is_file() {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Renews the certificate of a folder for the same subject.
    ///
    /// # Errors  The folder has no certificate, or one without an identity.
    pub fn renew(&self, folder: &Path, days: u32) -> Result<Issued, TlsError> {
        let path = folder.join(CERTIFICATE_FILE);
        let there = Folder::new(folder).certificate()?;
        let there = there.ok_or_else(|| {
            TlsError::content(&path, "is missing; `shardfeed tls issue` makes a certificate")
        })?;
        let Certificate { identity, hosts, .. } = there;
        let identity = identity.ok_or_else(|| {
            TlsError::content(&path, "names no identity; renew it where it was made")
        })?;
        self.issue(&Subject { identity, hosts }, days, folder)
    }

    /// Replaces the authority by a new one that signs from now on and updates the folders below.
    ///
    /// Certificates that earlier authorities signed are trusted until [`Authority::forget`].
    ///
    /// # Errors  A folder cannot be written.
    pub fn replace(&self, name: &str) -> Result<(), TlsError> {
        let path = self.folder.join(CA_FILE);
        let (certificate, key) = authority(name)?;
        let bundle = certificate + &text(&path)?;
        write(&self.folder.join(CA_KEY_FILE), &key, SECRET)?;
        write(&path, &bundle, PUBLIC)?;
        self.tell(&bundle)
    }

    /// Removes the trust in earlier authorities and updates the folders below.
    ///
    /// # Errors  A folder holds a certificate that an earlier authority signed; it cannot be
    /// written.
    pub fn forget(&self) -> Result<(), TlsError> {
        let path = self.folder.join(CA_FILE);
        let bundle = text(&path)?;
        let end = "-----END CERTIFICATE-----";
        let first = bundle.split_inclusive(end).next().unwrap_or_default().trim().to_owned() + "\n";
        for folder in self.folders()? {
            let certificate = folder.join(CERTIFICATE_FILE);
            if !signed_by(&certificates(&certificate)?[0], &certificates(&path)?[0]) {
                let reason =
                    "was signed by an earlier authority; `shardfeed tls rotate` renews it first";
                return Err(TlsError::content(certificate, reason));
            }
        }
        write(&path, &first, PUBLIC)?;
        self.tell(&first)
    }

    fn tell(&self, bundle: &str) -> Result<(), TlsError> {
        self.folders()?.iter().try_for_each(|folder| write(&folder.join(CA_FILE), bundle, PUBLIC))
    }
}

impl Subject {
    fn check(&self) -> Result<(), TlsError> {
        check_name(&self.identity.name)?;
        let is_coordinator = self.identity.role == Role::Coordinator;
        if is_coordinator && self.hosts.is_empty() {
            let said = "a coordinator is reached at a name or an address, and its certificate must say it; \
                        give --host";
            return Err(TlsError::Subject(said.into()));
        }
        if !is_coordinator && !self.hosts.is_empty() {
            let said = format!("--host: no client connects to a {}", self.identity.role);
            return Err(TlsError::Subject(said));
        }
        if self.hosts.len() > HOSTS_MAX {
            return Err(TlsError::Subject(format!("--host: more than {HOSTS_MAX} of them")));
        }
        Ok(())
    }
}

/// Checks that a name can be used in a certificate and as a folder name.
///
/// # Errors  The name is invalid; the message describes valid names.
pub fn check_name(name: &str) -> Result<(), TlsError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    match begins && name.len() <= NAME_BYTES_MAX && name.chars().all(fits) {
        true => Ok(()),
        false => Err(TlsError::Subject(format!(
            "{name:?} is no name: 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`, the first a \
             letter or digit"
        ))),
    }
}

/// Returns a self-signed certificate and its key in PEM.
fn authority(name: &str) -> Result<(String, String), TlsError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = named(&format!("{name} CA"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = SystemTime::now();
    params.not_before = OffsetDateTime::from(now - BACKDATED);
    params.not_after = OffsetDateTime::from(now + Duration::from_secs(u64::from(CA_DAYS) * 86_400));
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn leaf(subject: &Subject, not_after: SystemTime) -> Result<CertificateParams, TlsError> {
    let Subject { identity, hosts } = subject;
    let mut params = CertificateParams::new(hosts.clone())?;
    let uri = format!("spiffe://{DOMAIN}/{}/{}", identity.role, identity.name);
    params.subject_alt_names.push(SanType::URI(uri.try_into()?));
    params.distinguished_name = named(&identity.to_string());
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match identity.role {
        // A coordinator both accepts connections and connects to the others.
        Role::Coordinator => {
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
        }
        _ => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    params.not_before = OffsetDateTime::from(SystemTime::now() - BACKDATED);
    params.not_after = OffsetDateTime::from(not_after);
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn signed_by(leaf: &[u8], authority: &[u8]) -> bool {
    use x509_parser::extensions::ParsedExtension;
    use x509_parser::prelude::{FromDer, X509Certificate};
    let (Ok((_, leaf)), Ok((_, authority))) =
        (X509Certificate::from_der(leaf), X509Certificate::from_der(authority))
    else {
        return false;
    };
    let by = leaf.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(found) => found.key_identifier.as_ref(),
        _ => None,
    });
    let is =
        authority.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(found) => Some(found),
            _ => None,
        });
    by.is_some() && by == is
}

const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;

fn text(path: &Path) -> Result<String, TlsError> {
    String::from_utf8(read(path)?).map_err(|_| TlsError::content(path, "is no text"))
}

fn make_folder(path: &Path) -> Result<(), TlsError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| TlsError::Write { path: path.to_owned(), source })
}

/// Replaces a file atomically.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let failed = |source| TlsError::Write { path: path.to_owned(), source };
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}
