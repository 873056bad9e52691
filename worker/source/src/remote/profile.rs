//! Credentials of `AWS_PROFILE`, as `aws configure` writes them. object_store reads the others.

use std::path::PathBuf;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    key: Option<String>,
    secret: Option<String>,
    token: Option<String>,
    region: Option<String>,
    endpoint: Option<String>,
}

/// Returns the profile that `AWS_PROFILE` names, else `default`, if it has keys.
pub(super) fn from_environment() -> Option<Profile> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let name = set("AWS_PROFILE").unwrap_or_else(|| "default".into());
    let file = |variable, usual: &str| {
        let path = set(variable).map(PathBuf::from);
        let path = path.or_else(|| Some(PathBuf::from(set("HOME")?).join(".aws").join(usual)));
        path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    };
    let keys = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let config = file("AWS_CONFIG_FILE", "config");
    let mut profile = Profile::default();
    let section = if name == "default" { name.clone() } else { format!("profile {name}") };
    profile.read(&config, &section);
    profile.read(&keys, &name);
    (profile.key.is_some() && profile.secret.is_some()).then_some(profile)
}

impl Profile {
    /// Reads the settings in a section of an ini file.
    fn read(&mut self, text: &str, section: &str) {
        let mut inside = false;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                inside = name.trim() == section;
            } else if inside && let Some((name, value)) = line.split_once('=') {
                let field = match name.trim() {
                    "aws_access_key_id" => &mut self.key,
                    "aws_secret_access_key" => &mut self.secret,
                    "aws_session_token" => &mut self.token,
                    "region" => &mut self.region,
                    "endpoint_url" => &mut self.endpoint,
                    _ => continue,
                };
                *field = Some(value.trim().to_owned());
            }
        }
    }

    /// Applies the keys; the region and the endpoint only where the environment sets none.
    pub(super) fn apply(self, mut builder: AmazonS3Builder) -> AmazonS3Builder {
        use AmazonS3ConfigKey::{AccessKeyId, Endpoint, Region, SecretAccessKey, Token};
        let Self { key, secret, token, region, endpoint } = self;
        for (name, value) in [(AccessKeyId, key), (SecretAccessKey, secret), (Token, token)] {
            if let Some(value) = value {
                builder = builder.with_config(name, value);
            }
        }
        for (name, value) in [(Region, region), (Endpoint, endpoint)] {
            if let Some(value) = value
                && builder.get_config_value(&name).is_none()
            {
                builder = builder.with_config(name, value);
            }
        }
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_and_no_other() {
        let text = "[default]\naws_access_key_id = A\n\n[ other ]\n# aws_access_key_id=N\n\
                    aws_access_key_id=B\naws_secret_access_key = s=1\nregion = eu-west-1\n\
                    [third]\nregion = x";
        let mut profile = Profile::default();
        profile.read(text, "other");
        assert_eq!(profile.key.as_deref(), Some("B"));
        assert_eq!(profile.secret.as_deref(), Some("s=1"));
        assert_eq!(profile.region.as_deref(), Some("eu-west-1"));
        assert_eq!(profile.token, None);
    }
}
