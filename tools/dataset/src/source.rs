//! Sources that a Python module declares.

use std::iter;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use shardfeed_client::{
    EncodedSpec, LoaderOptions, MixtureOptions, MixtureSource, MixtureStage, RecordSpec,
};
use shardfeed_plan::Length;
use shardfeed_source::{Dataset, SharedIndex, SourceVersion};
use shardfeed_tfrecord::CompressionChoice;

use crate::problem::Problem;

/// Module of the Python package that prints the declaration of a source.
const DECLARATION: &str = "shardfeed.declaration";

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A source by its name in a Python module.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Source or mixture that a Python module declares, instead of FILES: MODULE is a module's name
    /// or a .py file, SOURCE a name in it or a function without arguments
    #[arg(long, value_name = "MODULE:SOURCE", conflicts_with_all = ["files", "compression"])]
    source: Option<SourceName>,
    #[command(flatten)]
    python: PythonArgs,
}

/// The interpreter that runs the module of a source.
#[derive(Debug, Args)]
pub struct PythonArgs {
    /// Python interpreter that has shardfeed, for modules
    #[arg(long, value_name = "PATH", default_value = "python3")]
    #[arg(env = "SHARDFEED_PYTHON", hide_env_values = true)]
    python: PathBuf,
}

impl SourceArgs {
    /// Returns the source if one is named, as its module declares it. Runs the module.
    ///
    /// # Errors  It cannot be declared.
    pub fn spec(&self) -> Result<Option<SourceSpec>, Problem> {
        let name = self.source.as_ref();
        name.map(|name| SourceSpec::declared(name, &self.python)).transpose()
    }
}

/// Name of a source: MODULE:SOURCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceName(String);

impl FromStr for SourceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once(':') {
            Some((module, source)) if !module.is_empty() && !source.is_empty() => {
                Ok(Self(text.to_owned()))
            }
            _ => Err("write MODULE:SOURCE, such as train.py:packs".into()),
        }
    }
}

/// A source as its Python module declares it.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// Files or mixture, compression, and record spec of a loader, with its defaults otherwise.
    pub options: LoaderOptions,
    /// Number of records of the files, or of each version of a mixture's sources, if it is known.
    records: Vec<Option<u64>>,
}

impl SourceSpec {
    /// Runs the module in an interpreter, and returns the declaration of the source.
    ///
    /// # Errors  The interpreter cannot be run, or has another shardfeed or none; the module raised,
    /// or has no such source.
    pub fn declared(name: &SourceName, python: &PythonArgs) -> Result<Self, Problem> {
        let python = &python.python;
        let mut command = Command::new(python);
        command.args(["-m", DECLARATION, &name.0]).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| {
            Problem::failed(format!("cannot run the interpreter {}: {error}", python.display()))
                .hint("name one with --python or SHARDFEED_PYTHON")
        })?;
        let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else {
            let what = format!("{} -m {DECLARATION} {}", python.display(), name.0);
            return Err(Problem::failed(format!("`{what}` gave no answer ({})", output.status))
                .hint(install()));
        };
        let there = answer["version"].as_str().unwrap_or("of an unknown version");
        if there != VERSION {
            let python = python.display();
            let what = format!("{python} has shardfeed {there}, and this command is {VERSION}");
            return Err(Problem::failed(what).hint(install()));
        }
        if let Some(error) = answer["error"].as_str() {
            return Err(Problem::failed(error).hint(answer["hint"].as_str().unwrap_or_default()));
        }
        let declared = serde_json::from_value::<Declaration>(answer)
            .map_err(|error| error.to_string())
            .and_then(Declaration::spec);
        declared.map_err(|error| {
            Problem::failed(format!("{}: the declaration is invalid: {error}", name.0))
        })
    }

    /// Rejects files that were cut off between two records, as a loader does.
    pub(crate) fn check_records(&self, dataset: &Dataset) -> Result<(), Problem> {
        let versions: Vec<_> = match dataset.mixed() {
            Some(mixed) => mixed.versions.iter().map(SourceVersion::shards).collect(),
            None => iter::once(0..dataset.files().len() as u32).collect(),
        };
        for (shards, known) in versions.into_iter().zip(&self.records) {
            let files = &dataset.files()[shards.start as usize..shards.end as usize];
            let found: u64 = files.iter().map(|file| file.records).sum();
            if let Some(known) = known.filter(|known| *known != found) {
                let what = format!("the files hold {found} records, but {known} were written");
                return Err(Problem::failed(what)
                    .hint("they were changed, or a copy is not whole: write or copy them again"));
            }
        }
        Ok(())
    }
}

fn install() -> String {
    format!("install shardfeed {VERSION} there, or name another interpreter with --python")
}

/// Answer of the Python package.
#[derive(Deserialize)]
struct Declaration {
    files: Vec<String>,
    compression: String,
    mixture: Option<DeclaredMixture>,
    index: Option<String>,
    /// Of the files, or of each source of the mixture.
    records: Vec<Option<u64>>,
    /// Canonical encoding, in base64.
    record_spec: String,
    /// Digest and path of each table of `lookup`.
    tables: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct DeclaredMixture {
    sources: Vec<DeclaredSource>,
    stages: Vec<DeclaredStage>,
}

/// Name, dataset of a cluster, files, index, compression, record spec as in [`Declaration`].
type DeclaredSource = (String, Option<String>, Vec<String>, Option<String>, String, String);

/// First epoch, length, and index and weight of each source.
type DeclaredStage = (u64, Length, Vec<(usize, String)>);

impl Declaration {
    fn spec(self) -> Result<SourceSpec, String> {
        let spec = record_spec(&self.record_spec, &self.tables)?;
        let mixture = self.mixture.map(|mixture| mixture.options(&self.tables));
        let options = LoaderOptions {
            files: self.files,
            compression: compression(&self.compression)?,
            mixture: mixture.transpose()?,
            index: shared_index(self.index)?,
            records: Some(spec),
            ..LoaderOptions::default()
        };
        Ok(SourceSpec { options, records: self.records })
    }
}

impl DeclaredMixture {
    fn options(self, tables: &[(String, String)]) -> Result<MixtureOptions, String> {
        let source = |(name, dataset, files, index, of_files, records): DeclaredSource| {
            let (index, compression) = (shared_index(index)?, compression(&of_files)?);
            let records = Some(record_spec(&records, tables)?);
            Ok(MixtureSource { name, dataset, files, index, compression, records })
        };
        let stage = |(first_epoch, length, weights)| MixtureStage { first_epoch, length, weights };
        Ok(MixtureOptions {
            sources: self.sources.into_iter().map(source).collect::<Result<_, String>>()?,
            stages: self.stages.into_iter().map(stage).collect(),
        })
    }
}

fn record_spec(encoded: &str, tables: &[(String, String)]) -> Result<RecordSpec, String> {
    let spec = STANDARD.decode(encoded).map_err(|error| error.to_string())?;
    let mut spec = EncodedSpec::decode(&spec).map_err(|error| error.to_string())?;
    for (digest, path) in tables {
        spec.place_table(digest, path);
    }
    Ok(spec)
}

fn shared_index(named: Option<String>) -> Result<Option<SharedIndex>, String> {
    named.map(|named| SharedIndex::parse(&named)).transpose().map_err(|error| error.to_string())
}

fn compression(name: &str) -> Result<CompressionChoice, String> {
    name.parse().map_err(|error: <CompressionChoice as FromStr>::Err| error.to_string())
}
