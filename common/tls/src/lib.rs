//! TLS between shardfeed's processes. A process is given a *folder* with the files that Kubernetes and
//! cert-manager give one: `ca.crt` (whom to believe), `tls.crt` and `tls.key` (who one is). A certificate
//! says who somebody is by a URI among its subject's alternative names, `spiffe://DOMAIN/.../ROLE/NAME`.
//!
//! The files are looked at again before connections are made, so that a renewed certificate is used without
//! a restart. Only TLS 1.3 is spoken. Source: docs/SECURITY.md.
#![forbid(unsafe_code)]

mod authority;
mod error;
mod folder;
mod identity;
mod wire;

pub use authority::{Authority, CA_DAYS, Issued, LEAF_DAYS, LEAF_DAYS_MAX, Subject, check_name};
pub use error::TlsError;
pub use folder::{CA_FILE, CERTIFICATE_FILE, Certificate, Folder, KEY_FILE};
pub use identity::{Identity, Role};
pub use wire::{ClientTls, ServerTls};
