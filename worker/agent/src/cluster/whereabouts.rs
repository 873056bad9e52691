//! Endpoints of a cluster's coordinators in options: addresses, or a file that contains them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardfeed_proto::Endpoint;

use crate::cluster::address::{Address, Addresses};

/// Maximum bytes read of an endpoint file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Prefix of the path of a file.
const MARK: char = '@';

/// Endpoints of a cluster's coordinators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub enum Whereabouts {
    Listed(Addresses),
    /// An endpoint file, `@PATH`: read on first use, and again when no node answers.
    File(PathBuf),
}

/// The form in option files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    /// Addresses separated by commas, or `@PATH`.
    Text(String),
    List(Vec<String>),
}

/// Knowledge of a cluster before any of its nodes is contacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterEndpoints {
    pub(crate) addresses: Addresses,
    /// Id of the only accepted cluster.
    pub(crate) cluster_id: Option<String>,
}

impl Whereabouts {
    /// Returns the addresses; those of a file are read now, which waits for its disk.
    ///
    /// # Errors  The file cannot be read, or is not an endpoint file.
    pub fn addresses(&self) -> Result<Addresses, String> {
        Ok(self.find()?.addresses)
    }

    /// As [`Whereabouts::addresses`], with the cluster id of a file.
    pub(crate) fn find(&self) -> Result<ClusterEndpoints, String> {
        match self {
            Self::Listed(addresses) => {
                Ok(ClusterEndpoints { addresses: addresses.clone(), cluster_id: None })
            }
            Self::File(path) => read(path),
        }
    }

    /// Returns endpoints that do not depend on the working folder.
    ///
    /// # Errors  The working folder no longer exists.
    pub fn absolute(&self) -> io::Result<Self> {
        match self {
            Self::Listed(addresses) => Ok(Self::Listed(addresses.clone())),
            Self::File(path) => std::path::absolute(path).map(Self::File),
        }
    }

    /// Returns a phrase for sentences: `the coordinator at a:1`.
    pub fn named(&self) -> String {
        match self {
            Self::Listed(addresses) => addresses.named(),
            Self::File(path) => format!("the coordinator that {} names", path.display()),
        }
    }

    /// Returns a sentence that says that no node answers.
    pub(crate) fn are_silent(&self) -> String {
        match self {
            Self::Listed(addresses) if !addresses.is_one() => {
                format!("none of {} answers", addresses.named())
            }
            _ => format!("{} does not answer", self.named()),
        }
    }

    /// Returns the part of the configuration to check when no node answers.
    pub(crate) fn to_check(&self) -> &'static str {
        match self {
            Self::Listed(addresses) if addresses.is_one() => "the address",
            Self::Listed(_) => "the addresses",
            Self::File(_) => "the file",
        }
    }
}

fn read(path: &Path) -> Result<ClusterEndpoints, String> {
    let name = path.display();
    let text = text_of(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let said = Endpoint::from_json(&text).map_err(|error| format!("{name} {error}"))?;
    let addresses = Addresses::new(said.addresses.iter().map(String::as_str));
    let addresses = addresses.map_err(|error| format!("{name} names no coordinator: {error}"))?;
    Ok(ClusterEndpoints {
        addresses,
        cluster_id: Some(said.cluster_id).filter(|id| !id.is_empty()),
    })
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

impl Default for Whereabouts {
    fn default() -> Self {
        Addresses::default().into()
    }
}

impl From<Addresses> for Whereabouts {
    fn from(addresses: Addresses) -> Self {
        Self::Listed(addresses)
    }
}

impl From<Address> for Whereabouts {
    fn from(address: Address) -> Self {
        Addresses::from(address).into()
    }
}

impl FromStr for Whereabouts {
    type Err = String;

    /// Parses addresses with commas between them, or `@PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(MARK) {
            Some("") => Err("write @PATH, the path of a coordinator's --endpoint-file".into()),
            Some(path) => Ok(Self::File(path.into())),
            None => text.parse().map(Self::Listed),
        }
    }
}

impl TryFrom<Written> for Whereabouts {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Text(text) => text.parse(),
            Written::List(texts) => {
                Addresses::new(texts.iter().map(String::as_str)).map(Self::Listed)
            }
        }
    }
}

impl From<Whereabouts> for String {
    fn from(place: Whereabouts) -> Self {
        place.to_string()
    }
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(addresses) => write!(f, "{addresses}"),
            Self::File(path) => write!(f, "{MARK}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_commas_or_are_lists_and_files_have_a_mark() {
        let of = |json: &str| serde_json::from_str::<Whereabouts>(json);
        let list = Whereabouts::Listed("a:1,b:2".parse().unwrap());
        assert_eq!(of(r#"["a:1","b:2","a:1"]"#).unwrap(), list);
        assert_eq!(of(r#""a:1,b:2""#).unwrap(), list);
        let file = of(r#""@run/a,b.json""#).unwrap();
        assert_eq!(file, Whereabouts::File("run/a,b.json".into()));
        assert_eq!(serde_json::to_string(&file).unwrap(), r#""@run/a,b.json""#);
        assert_eq!(file.named(), "the coordinator that run/a,b.json names");
        for refused in [r#"[]"#, r#""""#, r#""@""#, r#""a:1,,b:2""#, r#"["a:1","b"]"#, r#"["@a"]"#]
        {
            assert!(of(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_file_is_read_when_it_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("endpoint.json");
        let place = Whereabouts::File(path.clone());
        let refused = || {
            let reason = place.find().unwrap_err();
            reason.replace(path.to_str().unwrap(), "FILE")
        };
        assert_eq!(refused(), "cannot read FILE: No such file or directory (os error 2)");
        std::fs::write(&path, "{").unwrap();
        let no_json = refused();
        std::fs::write(&path, Endpoint::new("c", 1, vec![]).to_json()).unwrap();
        let said = [no_json, refused(), "@".parse::<Whereabouts>().unwrap_err()];
        assert_eq!(
            said,
            [
                "FILE is not a file that a coordinator writes with --endpoint-file: EOF while \
                 parsing an object at line 1 column 1",
                "FILE names no coordinator: write HOST:PORT, such as 127.0.0.1:7070",
                "write @PATH, the path of a coordinator's --endpoint-file",
            ]
        );

        std::fs::write(&path, Endpoint::new("c", 1, vec!["a:1".into()]).to_json()).unwrap();
        let found = place.find().unwrap();
        assert_eq!(
            (found.addresses.to_string(), found.cluster_id),
            ("a:1".into(), Some("c".into()))
        );
    }
}
