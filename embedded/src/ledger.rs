//! What a rank was given, line by line, for whoever counts from outside.
//!
//! With `SHARDFEED_LEDGER=dir` each rank appends to `dir/rank-R`: one line
//! `start generation epoch step world_size batch_size` when it begins a generation, and one line
//! `generation epoch step shard ordinal valid` for each sample that was handed out. `shard` is the
//! path relative to the dataset; control characters and `%` in it are written as `%XX`.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use shardfeed_agent::{Dataset, Delivered, LoadError};
use shardfeed_plan::Cursor;

/// One rank's ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    file: File,
    text: String,
}

impl Ledger {
    /// The ledger of `rank`, if the environment asks for one.
    ///
    /// # Errors  The file cannot be made.
    pub(crate) fn from_environment(rank: u64) -> Result<Option<Self>, LoadError> {
        let Some(folder) = std::env::var_os("SHARDFEED_LEDGER").filter(|dir| !dir.is_empty())
        else {
            return Ok(None);
        };
        let path = PathBuf::from(folder).join(format!("rank-{rank}"));
        let open = || {
            fs::create_dir_all(path.parent().expect("joined to a folder"))?;
            OpenOptions::new().create(true).append(true).open(&path)
        };
        let file = open().map_err(|source| LoadError::Ledger { path: path.clone(), source })?;
        Ok(Some(Self { path, file, text: String::new() }))
    }

    /// A generation begins at the cursor.
    pub(crate) fn begin(&mut self, cursor: &Cursor) -> Result<(), LoadError> {
        let start = cursor.start();
        self.text = format!(
            "start {} {} {} {} {}\n",
            cursor.generation(),
            cursor.epoch(),
            cursor.step(),
            start.world_size,
            start.batch_size
        );
        self.append()
    }

    /// A batch is handed out.
    pub(crate) fn hand_out(
        &mut self,
        generation: u64,
        delivered: &Delivered,
        dataset: &Dataset,
    ) -> Result<(), LoadError> {
        use std::fmt::Write as _;
        self.text.clear();
        let Delivered { epoch, step, .. } = delivered;
        for planned in &delivered.samples {
            let path = &dataset.manifest().shards()[planned.sample.shard as usize].path;
            let (ordinal, valid) = (planned.sample.ordinal, u8::from(planned.valid));
            let _ = write!(self.text, "{generation} {epoch} {step} ");
            escape(path, &mut self.text);
            let _ = writeln!(self.text, " {ordinal} {valid}");
        }
        self.append()
    }

    /// One write: a process that is killed leaves whole batches.
    fn append(&mut self) -> Result<(), LoadError> {
        let written = self.file.write_all(self.text.as_bytes());
        written.map_err(|source| LoadError::Ledger { path: self.path.clone(), source })
    }
}

fn escape(path: &str, out: &mut String) {
    for character in path.chars() {
        if character == '%' || character.is_control() {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_on_its_line() {
        let mut out = String::new();
        escape("a b/100%\n.tfrecord", &mut out);
        assert_eq!(out, "a b/100%25%0A.tfrecord");
    }
}
