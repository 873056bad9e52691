//! Identity that a certificate states.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Role of a certificate's holder in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A node of the cluster.
    Coordinator,
    /// A process that reads data for trainers.
    Worker,
    /// A process that trains and reads data for itself.
    Trainer,
    /// A user with read-only access.
    Viewer,
    /// A user who also manages jobs, datasets and workers.
    Operator,
    /// A user who also manages the membership of the cluster.
    Admin,
}

impl Role {
    pub const ALL: [Self; 6] =
        [Self::Coordinator, Self::Worker, Self::Trainer, Self::Viewer, Self::Operator, Self::Admin];

    /// Returns the name used in certificates.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
            Self::Trainer => "trainer",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let role = Self::ALL.into_iter().find(|role| role.name() == text);
        let names = || Self::ALL.map(Self::name).join(", ");
        role.ok_or_else(|| format!("there is no role `{text}`; there are: {}", names()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub role: Role,
    /// Name within the role.
    pub name: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.role, self.name)
    }
}

/// Maximum length of a name in bytes: it appears in every log line.
pub(crate) const NAME_BYTES_MAX: usize = 100;

impl Identity {
    /// Parses a URI `spiffe://DOMAIN/.../ROLE/NAME`; `None` for any other URI.
    pub(crate) fn of_uri(uri: &str) -> Option<Self> {
        let path = uri.strip_prefix("spiffe://")?.split_once('/')?.1;
        let (above, name) = path.rsplit_once('/')?;
        let role = above.rsplit('/').next()?.parse().ok()?;
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(fits);
        is_name.then(|| Self { role, name: name.to_owned() })
    }

    /// Returns the identity in a certificate: its first matching URI. `None` if there is none.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()??;
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(uri) => Self::of_uri(uri),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_ends_with_the_role_and_the_name() {
        let said = |uri: &str| Identity::of_uri(uri).map(|identity| identity.to_string());
        assert_eq!(said("spiffe://shardfeed/worker/w-1").unwrap(), "worker:w-1");
        assert_eq!(said("spiffe://c.example/ns/ml/admin/ada").unwrap(), "admin:ada");
        for uri in [
            "",
            "spiffe://shardfeed",
            "spiffe://shardfeed/worker",
            "spiffe://worker/w",
            "spiffe://shardfeed/worker/",
            "spiffe://shardfeed/root/w",
            "https://shardfeed/worker/w",
            "spiffe://shardfeed/worker/w w",
            "spiffe://shardfeed/worker/w\n",
            "spiffe://shardfeed/worker/w/x",
        ] {
            assert_eq!(said(uri), None, "{uri}");
        }
        let long = format!("spiffe://d/worker/{}", "x".repeat(NAME_BYTES_MAX + 1));
        assert_eq!(said(&long), None);
    }
}
