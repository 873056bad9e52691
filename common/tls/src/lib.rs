//! TLS between shardfeed's processes.
//!
//! Each process gets a *folder* with the files that Kubernetes and cert-manager provide: `ca.crt`
//! (trusted authorities), `tls.crt` and `tls.key` (the process's own identity). A certificate
//! states its holder's identity by a URI among the subject's alternative names,
//! `spiffe://DOMAIN/.../ROLE/NAME`.
//!
//! The files are checked for changes before connections are made, so that a renewed certificate is
//! used without a restart. Only TLS 1.3 is used. Source: docs/OPERATIONS.md, Security.
#![forbid(unsafe_code)]

mod authority;
mod error;
mod folder;
mod identity;
mod watched;
mod wire;

pub use authority::{Authority, CA_DAYS, Issued, LEAF_DAYS, LEAF_DAYS_MAX, Subject, check_name};
pub use error::TlsError;
pub use folder::{CA_FILE, CERTIFICATE_FILE, Certificate, Folder, KEY_FILE};
pub use identity::{Identity, Role};
pub use watched::Watched;
pub use wire::{ClientTls, ServerTls, Stream};
