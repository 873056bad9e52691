//! Checks of the certificates and the access token that are presented to or by coordinators.

use std::fs;
use std::time::{Duration, SystemTime};

use shardfeed_agent::{CredentialOptions, Credentials};
use shardfeed_tls::{Folder, KEY_FILE};

use super::{Check, Verdict};
use crate::cluster::secret::is_open;
use crate::output;

/// Certificates that expire within this time are due for renewal.
const DUE: Duration = Duration::from_secs(14 * 86_400);

/// Returns the checks of these credentials; none if there are none.
pub(super) fn checks(options: CredentialOptions, now: SystemTime) -> Vec<Check> {
    let CredentialOptions { tls, token_file, .. } = options;
    let mut checks = Vec::new();
    if let Some(tls) = tls {
        checks.push(folder(&Folder::new(&tls), now));
        let key = tls.join(KEY_FILE);
        checks.extend(is_open(&key).then(|| open("certificate's key", &key)));
    }
    if let Some(path) = token_file {
        let name = path.display();
        let check = |verdict, found| Check::new("access token", verdict, found);
        checks.push(match fs::metadata(&path) {
            Err(error) => check(Verdict::Fail, format!("{name}: {error}")),
            Ok(_) if is_open(&path) => open("access token", &path),
            Ok(_) => check(Verdict::Ok, format!("{name} is its owner's")),
        });
    }
    checks
}

fn open(check: &'static str, file: &std::path::Path) -> Check {
    let name = file.display();
    let found = format!("{name} can be read by everybody on this host");
    Check::new(check, Verdict::Warn, found).hint(format!("chmod 600 {name}"))
}

fn folder(folder: &Folder, now: SystemTime) -> Check {
    let name = folder.path().display();
    let check = |verdict, found| Check::new("certificates", verdict, found);
    let own = folder.certificate();
    let authorities = folder.authorities().unwrap_or_default();
    let both = authorities.iter().chain(own.iter().flatten());
    let ends = both.map(|certificate| certificate.not_after).min();
    let who = match own.iter().flatten().find_map(|own| own.identity.as_ref()) {
        Some(identity) => format!("{name}: {identity}"),
        None => format!("{name}: only ca.crt"),
    };
    let days = |span: Duration| output::counted(span.as_secs() / 86_400, "day");
    if let Some(since) = ends.and_then(|ends| now.duration_since(ends).ok()) {
        return check(Verdict::Fail, format!("{who}, expired {} ago", days(since)))
            .hint("`shardfeed tls rotate` makes new ones; no restart is needed");
    }
    let tls = Some(folder.path().to_owned());
    if let Err(error) = Credentials::read(CredentialOptions { tls, ..Default::default() }) {
        return check(Verdict::Fail, error.message)
            .hint("`shardfeed tls show` lists the contents of the folder");
    }
    let left = ends.and_then(|ends| ends.duration_since(now).ok()).unwrap_or_default();
    let found = format!("{who}, good for {}", days(left));
    match left < DUE {
        true => check(Verdict::Warn, found)
            .hint("`shardfeed tls rotate` makes new ones; no restart is needed"),
        false => check(Verdict::Ok, found),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use expect_test::{Expect, expect};
    use shardfeed_tls::{Authority, Identity, Role, Subject};

    use super::*;

    /// A worker's folder of certificates that are valid for `days` days.
    fn made(home: &Path, days: u32) -> CredentialOptions {
        let authority = Authority::create(home.join("pki"), "test").unwrap();
        let identity = Identity { role: Role::Worker, name: "w".into() };
        let (subject, folder) = (Subject { identity, hosts: vec![] }, home.join("pki/w"));
        authority.issue(&subject, days, &folder).unwrap();
        CredentialOptions { tls: Some(folder), ..CredentialOptions::default() }
    }

    fn said(home: &Path, options: CredentialOptions, later_days: u64, expected: &Expect) {
        let now = SystemTime::now() + Duration::from_secs(later_days * 86_400);
        let line = |check: Check| {
            let hint = check.hint.map(|hint| format!("  {hint}\n")).unwrap_or_default();
            format!("{} {:?}: {}\n{hint}", check.check, check.verdict, check.found)
        };
        let text: String = checks(options, now).into_iter().map(line).collect();
        expected.assert_eq(&text.replace(home.to_str().unwrap(), "$DIR"));
    }

    #[test]
    fn certificates_that_are_over_or_end_soon_are_told() {
        let home = tempfile::tempdir().unwrap();
        let options = made(home.path(), 30);
        let said = |days, expected| said(home.path(), options.clone(), days, expected);
        said(
            0,
            &expect![[r#"
            certificates Ok: $DIR/pki/w: worker:w, good for 29 days
        "#]],
        );
        said(
            20,
            &expect![[r#"
            certificates Warn: $DIR/pki/w: worker:w, good for 9 days
              `shardfeed tls rotate` makes new ones; no restart is needed
        "#]],
        );
        said(
            33,
            &expect![[r#"
            certificates Fail: $DIR/pki/w: worker:w, expired 3 days ago
              `shardfeed tls rotate` makes new ones; no restart is needed
        "#]],
        );
    }

    #[test]
    fn secrets_that_everybody_can_read_are_told() {
        let home = tempfile::tempdir().unwrap();
        let token_file = home.path().join("token");
        fs::write(&token_file, "shardfeed_x_y").unwrap();
        let options =
            CredentialOptions { token_file: Some(token_file.clone()), ..made(home.path(), 365) };
        let set = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
        set(&home.path().join("pki/w/tls.key"), 0o644).unwrap();
        set(&token_file, 0o604).unwrap();
        said(
            home.path(),
            options.clone(),
            0,
            &expect![[r#"
                certificates Ok: $DIR/pki/w: worker:w, good for 364 days
                certificate's key Warn: $DIR/pki/w/tls.key can be read by everybody on this host
                  chmod 600 $DIR/pki/w/tls.key
                access token Warn: $DIR/token can be read by everybody on this host
                  chmod 600 $DIR/token
            "#]],
        );
        set(&home.path().join("pki/w/tls.key"), 0o640).unwrap();
        set(&token_file, 0o600).unwrap();
        said(
            home.path(),
            options,
            0,
            &expect![[r#"
                certificates Ok: $DIR/pki/w: worker:w, good for 364 days
                access token Ok: $DIR/token is its owner's
            "#]],
        );
    }

    #[test]
    fn a_folder_without_what_it_must_have_fails() {
        let home = tempfile::tempdir().unwrap();
        let options = made(home.path(), 365);
        fs::remove_file(home.path().join("pki/w/tls.key")).unwrap();
        said(
            home.path(),
            options,
            0,
            &expect![[r#"
            certificates Fail: tls: $DIR/pki/w/tls.key: is missing: the key of tls.crt beside it
              `shardfeed tls show` lists the contents of the folder
        "#]],
        );
    }
}
