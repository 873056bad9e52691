//! `shardfeed tls`: certificates, and an authority that signs them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_tls::{
    Authority, CA_FILE, Certificate, Folder, Identity, Issued, LEAF_DAYS, Role, Subject, check_name,
};

use crate::duration::unix_ms;
use crate::error::Problem;
use crate::host::host_name;
use crate::output::words::{clock, text};
use crate::output::{self, Format, Grid, Report};

const EXAMPLES: &str = "\
A folder of certificates has three files: ca.crt (trusted authorities), tls.crt and tls.key (the \
identity), as Kubernetes and cert-manager name them. Processes reload them automatically: a \
renewed certificate needs no restart. Keep the authority's folder, with ca.key, where certificates \
are made, and copy out only what a host needs.

Examples:
  shardfeed tls init ./pki --coordinator head-1 --coordinator head-2 --coordinator head-3
  shardfeed tls issue ./pki worker rack-7
  shardfeed tls issue ./pki coordinator head-4 --host head-4.example --host 10.0.0.4
  shardfeed tls show ./pki/head-1
  shardfeed tls rotate ./pki                    # new certificates for all folders below
  shardfeed tls rotate ./pki --ca               # a new authority; copy ca.crt everywhere,
  shardfeed tls rotate ./pki                    # then new certificates; copy them,
  shardfeed tls rotate ./pki --forget-old-ca    # then trust only the new one";

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum TlsCommand {
    #[command(after_help = EXAMPLES)]
    Init(InitArgs),
    #[command(after_help = EXAMPLES)]
    Issue(IssueArgs),
    Rotate(RotateArgs),
    /// Show the contents of a folder of certificates
    Show {
        /// Folder with ca.crt, and optionally tls.crt and tls.key
        dir: PathBuf,
    },
}

/// Create an authority and initial certificates
///
/// In DIR: ca.crt and ca.key; a folder for each coordinator, one for workers (`worker`) and one for
/// an admin (`admin`), each with ca.crt, tls.crt and tls.key.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Folder of the authority; created if it is missing
    dir: PathBuf,
    /// Host of a coordinator, as others reach it; repeatable [default: this host]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    coordinator: Vec<String>,
    /// Name of the cluster, for people
    #[arg(long, value_name = "NAME", default_value = "shardfeed")]
    cluster_name: String,
    /// Validity of the certificates, in days
    #[arg(long, value_name = "DAYS", default_value_t = LEAF_DAYS)]
    days: u32,
}

/// Create a certificate
#[derive(Debug, Args)]
pub(crate) struct IssueArgs {
    /// Folder of the authority
    dir: PathBuf,
    /// Role: coordinator, worker, trainer, viewer, operator or admin
    role: Role,
    /// Name of the certificate's owner
    name: String,
    /// Name or address of a coordinator; repeatable [default: NAME, for coordinators]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    host: Vec<String>,
    /// Validity of the certificate, in days
    #[arg(long, value_name = "DAYS", default_value_t = LEAF_DAYS)]
    days: u32,
    /// Folder for the certificate [default: DIR/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Renew the certificates below DIR, or the authority
///
/// The order for a new authority: --ca, copy ca.crt to every host; without options, copy tls.crt
/// and tls.key; --forget-old-ca, copy ca.crt again. Nothing is interrupted meanwhile.
#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// Folder of the authority
    dir: PathBuf,
    /// Replace the authority; certificates of the old one stay valid for now
    #[arg(long, conflicts_with = "forget_old_ca")]
    ca: bool,
    /// Trust only certificates signed by the new authority
    #[arg(long)]
    forget_old_ca: bool,
    /// Renew only certificates that expire within this many days [default: all]
    #[arg(long, value_name = "DAYS", conflicts_with_all = ["ca", "forget_old_ca"])]
    within: Option<u32>,
    /// Name of the cluster, for people, in a new authority
    #[arg(long, value_name = "NAME", default_value = "shardfeed")]
    cluster_name: String,
    /// Validity of the new certificates, in days
    #[arg(long, value_name = "DAYS", default_value_t = LEAF_DAYS)]
    days: u32,
}

/// Result of commands that create certificates.
#[derive(Debug, Serialize)]
struct MadeReport {
    /// Folder of the authority.
    authority: String,
    /// Certificates that were created.
    made: Vec<MadeOne>,
    #[serde(skip)]
    told: Option<String>,
}

#[derive(Debug, Serialize)]
struct MadeOne {
    folder: String,
    role: &'static str,
    name: String,
    hosts: Vec<String>,
    expires_ms: u64,
}

#[derive(Debug, Serialize)]
struct FolderReport {
    folder: String,
    /// Certificates in `ca.crt`.
    authorities: Vec<CertificateReport>,
    /// Certificate in `tls.crt`; `null`: there is none.
    certificate: Option<CertificateReport>,
    /// Permissions of the key's file, in octal.
    key_mode: Option<String>,
}

#[derive(Debug, Serialize)]
struct CertificateReport {
    /// Role of the holder; `null`: none, as of an authority.
    role: Option<&'static str>,
    /// Name of the holder; `null`: none, as of an authority.
    name: Option<String>,
    hosts: Vec<String>,
    /// Begin of its validity, Unix ms.
    from_ms: u64,
    expires_ms: u64,
    /// Serial number, hexadecimal.
    serial: String,
}

impl TlsCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Init(args) => init(args, format),
            Self::Issue(args) => issue(args, format),
            Self::Rotate(args) => rotate(args, format),
            Self::Show { dir } => show(dir, format),
        }
    }
}

fn init(args: &InitArgs, format: Format) -> anyhow::Result<()> {
    let hosts = match args.coordinator.is_empty() {
        true => vec![host_name()],
        false => args.coordinator.clone(),
    };
    // Nothing is created before all names are checked.
    let named = |host: &String| {
        let name: String = host.chars().map(|c| if ":[]".contains(c) { '-' } else { c }).collect();
        let name = name.trim_matches('-').to_owned();
        check_name(&name).map(|()| name)
    };
    let names = hosts.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let authority = Authority::create(&args.dir, &args.cluster_name)?;
    let mut made = Vec::new();
    for (name, host) in names.into_iter().zip(hosts) {
        let host = host.trim_matches(['[', ']']).to_owned();
        let hosts = beside_itself(host);
        made.push((Role::Coordinator, name, hosts));
    }
    made.push((Role::Worker, "worker".to_owned(), vec![]));
    made.push((Role::Admin, "admin".to_owned(), vec![]));
    let issued = made.into_iter().map(|(role, name, hosts)| {
        let folder = args.dir.join(&name);
        let subject = Subject { identity: Identity { role, name }, hosts };
        authority.issue(&subject, args.days, &folder)
    });
    let issued = issued.collect::<Result<Vec<_>, _>>()?;
    let dir = args.dir.display();
    let told = format!("keep {dir}/ca.key where certificates are made; no other host needs it");
    Ok(format.print(&MadeReport::new(&args.dir, issued, Some(told)))?)
}

/// Adds the loopback names: on its own host a coordinator is also reached at these.
fn beside_itself(host: String) -> Vec<String> {
    let mut hosts = vec![host];
    for own in ["localhost", "127.0.0.1", "::1"] {
        if !hosts.iter().any(|host| host == own) {
            hosts.push(own.to_owned());
        }
    }
    hosts
}

fn issue(args: &IssueArgs, format: Format) -> anyhow::Result<()> {
    let IssueArgs { dir, role, name, host, days, out } = args;
    check_name(name)?;
    let authority = Authority::open(dir)?;
    let hosts = match (role, host.is_empty()) {
        (Role::Coordinator, true) => beside_itself(name.clone()),
        _ => host.clone(),
    };
    let subject = Subject { identity: Identity { role: *role, name: name.clone() }, hosts };
    let folder = out.clone().unwrap_or_else(|| dir.join(name));
    let issued = authority.issue(&subject, *days, &folder)?;
    Ok(format.print(&MadeReport::new(dir, vec![issued], None))?)
}

fn rotate(args: &RotateArgs, format: Format) -> anyhow::Result<()> {
    let authority = Authority::open(&args.dir)?;
    let dir = args.dir.display();
    if args.ca {
        authority.replace(&args.cluster_name)?;
        let told = format!(
            "copy {dir}/{CA_FILE} to every host, then run `shardfeed tls rotate {dir}`: the new authority \
             signs from now on"
        );
        return Ok(format.print(&MadeReport::new(&args.dir, vec![], Some(told)))?);
    }
    if args.forget_old_ca {
        authority.forget()?;
        let told =
            format!("copy {dir}/{CA_FILE} to every host: only the new authority is believed");
        return Ok(format.print(&MadeReport::new(&args.dir, vec![], Some(told)))?);
    }
    let until =
        args.within.map(|days| SystemTime::now() + Duration::from_secs(u64::from(days) * 86_400));
    let mut issued = Vec::new();
    for folder in authority.folders()? {
        let ends = Folder::new(&folder).certificate()?.map(|certificate| certificate.not_after);
        if until.is_none_or(|until| ends.is_none_or(|ends| ends <= until)) {
            issued.push(authority.renew(&folder, args.days)?);
        }
    }
    let told = match issued.is_empty() {
        true => "no certificate is due",
        false => "copy each folder to its host; processes take it within a second or two",
    };
    Ok(format.print(&MadeReport::new(&args.dir, issued, Some(told.to_owned())))?)
}

fn show(dir: &Path, format: Format) -> anyhow::Result<()> {
    let folder = Folder::new(dir);
    let authorities = folder.authorities()?.into_iter().map(CertificateReport::new).collect();
    let certificate = folder.certificate()?.map(CertificateReport::new);
    let key_mode = folder.key_mode().map(|mode| format!("{mode:04o}"));
    let report =
        FolderReport { folder: dir.display().to_string(), authorities, certificate, key_mode };
    format.print(&report)?;
    let Some(certificate) = &report.certificate else {
        return Ok(());
    };
    Ok(check_expiry(certificate.expires_ms, unix_ms(SystemTime::now()))?)
}

/// Checks that a certificate has not expired. Both times are Unix ms.
fn check_expiry(expires_ms: u64, now_ms: u64) -> Result<(), Problem> {
    match expires_ms <= now_ms {
        true => Err(Problem::failed("the certificate has expired")
            .hint("`shardfeed tls rotate` makes a new one")),
        false => Ok(()),
    }
}

impl MadeReport {
    fn new(dir: &Path, issued: Vec<Issued>, told: Option<String>) -> Self {
        let one = |issued: Issued| MadeOne {
            folder: issued.folder.display().to_string(),
            role: issued.subject.identity.role.name(),
            name: issued.subject.identity.name,
            hosts: issued.subject.hosts,
            expires_ms: unix_ms(issued.not_after),
        };
        let made = issued.into_iter().map(one).collect();
        Self { authority: dir.display().to_string(), made, told }
    }
}

impl CertificateReport {
    fn new(certificate: Certificate) -> Self {
        let Certificate { identity, hosts, not_before, not_after, serial, .. } = certificate;
        Self {
            role: identity.as_ref().map(|identity| identity.role.name()),
            name: identity.map(|identity| identity.name),
            hosts,
            from_ms: unix_ms(not_before),
            expires_ms: unix_ms(not_after),
            serial,
        }
    }
}

impl Report for MadeReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("made", "folder"));

    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        if !self.made.is_empty() {
            let mut grid = Grid::new(&["FOLDER", "ROLE", "NAME", "HOSTS", "EXPIRES"]);
            for made in &self.made {
                let (folder, name) = (made.folder.clone(), made.name.clone());
                let hosts = text(&made.hosts.join(","));
                grid.row([folder, made.role.to_owned(), name, hosts, clock(made.expires_ms)]);
            }
            write!(out, "{grid}")?;
        }
        match &self.told {
            Some(told) => writeln!(out, "{}", output::printable(told)),
            None => Ok(()),
        }
    }
}

impl Report for FolderReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let mut grid = Grid::new(&["FILE", "ROLE", "NAME", "HOSTS", "EXPIRES", "SERIAL"]);
        let own = self.certificate.iter().map(|certificate| ("tls.crt", certificate));
        for (file, shown) in self.authorities.iter().map(|found| (CA_FILE, found)).chain(own) {
            let role = match file {
                CA_FILE => "authority",
                _ => shown.role.unwrap_or("-"),
            };
            let hosts = text(&shown.hosts.join(","));
            let name = text(shown.name.as_deref().unwrap_or_default());
            let (file, role) = (file.to_owned(), role.to_owned());
            grid.row([file, role, name, hosts, clock(shown.expires_ms), shown.serial.clone()]);
        }
        write!(out, "{grid}")?;
        match &self.key_mode {
            Some(mode) => writeln!(out, "tls.key has the rights {mode}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_certificate_that_has_expired_fails() {
        assert!(check_expiry(2, 1).is_ok());
        let expired = check_expiry(1, 1).unwrap_err();
        expect![[r#"
            error: the certificate has expired
            hint: `shardfeed tls rotate` makes a new one
        "#]]
        .assert_eq(&crate::error::text(&expired.into()));
    }
}
