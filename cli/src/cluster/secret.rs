//! Secrets of access tokens: created here and given only to their holder. Also checks the
//! permissions of files with secrets.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::Context;
use shardfeed_agent::CredentialOptions;
use shardfeed_plan::Digest;
use shardfeed_tls::KEY_FILE;
use uuid::Uuid;

pub(crate) struct Secret {
    /// Id of the token; not secret.
    pub(crate) id: String,
    pub(crate) token: String,
    /// Digest of the secret, which the cluster stores.
    pub(crate) digest: Vec<u8>,
}

impl Secret {
    /// Creates a token with 244 random bits.
    pub(crate) fn new() -> Self {
        let id = Uuid::new_v4().simple().to_string()[..12].to_owned();
        let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let digest = Digest::of_parts([secret.as_bytes()]).as_bytes().to_vec();
        Self { token: format!("shardfeed_{id}_{secret}"), id, digest }
    }

    pub(crate) fn load(path: &Path) -> Option<Self> {
        let token = fs::read_to_string(path).ok()?.trim().to_owned();
        let (id, secret) = token.strip_prefix("shardfeed_")?.split_once('_')?;
        let digest = Digest::of_parts([secret.as_bytes()]).as_bytes().to_vec();
        Some(Self { id: id.to_owned(), digest, token })
    }

    /// Writes the token to a temporary file in the folder of `path`.
    ///
    /// [`Staged::keep`] renames the file to `path`: readers see the whole token, or the old one.
    pub(crate) fn stage(&self, path: &Path) -> anyhow::Result<Staged> {
        let failed = || format!("cannot write {}", path.display());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        // Only its owner may read a temporary file.
        let mut file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
        writeln!(file, "{}", self.token).with_context(failed)?;
        file.as_file().sync_all().with_context(failed)?;
        Ok(Staged { file, path: path.to_owned() })
    }

    /// Writes the token to a file that only its owner can read.
    pub(crate) fn save(&self, path: &Path) -> anyhow::Result<()> {
        self.stage(path)?.keep()
    }
}

/// A temporary file, which is removed unless it is renamed.
pub(crate) struct Staged {
    file: tempfile::NamedTempFile,
    path: PathBuf,
}

impl Staged {
    /// Renames the file to its final path.
    pub(crate) fn keep(self) -> anyhow::Result<()> {
        let Self { file, path } = self;
        let kept = file.persist(&path).map_err(|error| error.error);
        kept.map(drop).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Permissions of all other users on a file.
const EVERYBODY: u32 = 0o007;

/// True if all users of this host have permissions on a file; false if the file does not exist.
pub(crate) fn is_open(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.mode() & EVERYBODY != 0)
}

/// Returns the files with secrets on which all users of this host have permissions.
fn open_files(options: &CredentialOptions) -> Vec<PathBuf> {
    let key = options.tls.as_ref().map(|folder| folder.join(KEY_FILE));
    let files = key.into_iter().chain(options.token_file.clone());
    files.filter(|file| is_open(file)).collect()
}

/// Warns, once in a process, of secrets that other users can read.
pub(crate) fn warn_of_open_files(options: &CredentialOptions) {
    static TOLD: Once = Once::new();
    let files = open_files(options);
    if files.is_empty() {
        return;
    }
    TOLD.call_once(|| {
        for file in files {
            let file = file.display();
            tracing::warn!(%file, "everybody on this host can read this secret; chmod 600 it");
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_that_everybody_can_read_is_found() {
        let home = tempfile::tempdir().unwrap();
        let (key, token_file) = (home.path().join(KEY_FILE), home.path().join("token"));
        let options = CredentialOptions {
            tls: Some(home.path().to_owned()),
            token_file: Some(token_file.clone()),
            token: None,
        };
        assert!(open_files(&options).is_empty(), "nothing is there");
        for file in [&key, &token_file] {
            fs::write(file, "x").unwrap();
        }
        let set = |file: &Path, mode| fs::set_permissions(file, PermissionsExt::from_mode(mode));
        for (of_key, of_token, expected) in [
            (0o600, 0o640, vec![]),
            (0o644, 0o600, vec![key.clone()]),
            (0o604, 0o666, vec![key.clone(), token_file.clone()]),
        ] {
            set(&key, of_key).unwrap();
            set(&token_file, of_token).unwrap();
            assert_eq!(open_files(&options), expected);
        }
        assert!(open_files(&CredentialOptions::default()).is_empty());
    }

    #[test]
    fn secrets_differ_and_only_their_owner_reads_them() {
        let (one, two) = (Secret::new(), Secret::new());
        assert!(one.token != two.token && one.id != two.id && one.digest != two.digest);
        let (_, secret) = one.token.strip_prefix("shardfeed_").unwrap().split_once('_').unwrap();
        assert_eq!(Digest::of_parts([secret.as_bytes()]).as_bytes()[..], one.digest);
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        one.save(&path).unwrap();
        two.save(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().trim(), two.token);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
