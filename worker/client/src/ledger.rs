//! Log of every sample that a rank was given, one per line, for external verification.
//!
//! With `SHARDFEED_LEDGER=dir` each rank appends to `dir/rank-R`: one line
//! `start generation epoch step world_size batch_size` when it begins a generation, and one line
//! `generation epoch step shard ordinal valid` for each sample that was handed out. `shard` is the
//! path relative to the dataset; control characters and `%` in it are written as `%XX`. A `start`
//! line is written with the first batch of its generation, so a rank that dies before that writes
//! none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use shardfeed_plan::Cursor;
use shardfeed_source::LoadError;

use crate::contents::Contents;
use crate::head::Head;

/// One rank's ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    file: File,
    text: String,
}

impl Ledger {
    /// Opens the ledger of `rank` if `SHARDFEED_LEDGER` is set.
    ///
    /// # Errors  The file cannot be created.
    pub(crate) fn from_environment(rank: u64) -> Result<Option<Self>, LoadError> {
        let Some(folder) = std::env::var_os("SHARDFEED_LEDGER").filter(|dir| !dir.is_empty())
        else {
            return Ok(None);
        };
        let path = PathBuf::from(folder).join(format!("rank-{rank}"));
        let open = || {
            fs::create_dir_all(path.parent().expect("joined to a folder"))?;
            let mut file = OpenOptions::new().create(true).read(true).append(true).open(&path)?;
            cut_torn_line(&mut file)?;
            Ok(file)
        };
        let file = open().map_err(|source| LoadError::Ledger { path: path.clone(), source })?;
        Ok(Some(Self { path, file, text: String::new() }))
    }

    /// Records that a generation begins at the cursor.
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

    /// Records that a batch is consumed.
    pub(crate) fn hand_out(
        &mut self,
        generation: u64,
        head: &Head,
        contents: &Contents,
    ) -> Result<(), LoadError> {
        use std::fmt::Write as _;
        self.text.clear();
        let Head { epoch, step, .. } = head;
        for planned in &head.samples {
            let path = &contents.shards[planned.sample.shard as usize].path;
            let (ordinal, valid) = (planned.sample.ordinal, u8::from(planned.valid));
            let _ = write!(self.text, "{generation} {epoch} {step} ");
            escape(path, &mut self.text);
            let _ = writeln!(self.text, " {ordinal} {valid}");
        }
        self.append()
    }

    /// Appends the text entirely or not at all.
    ///
    /// A partial write, after a full disk or a kill, is truncated at once or when the ledger is
    /// next opened.
    fn append(&mut self) -> Result<(), LoadError> {
        let written = append_whole(&mut self.file, self.text.as_bytes());
        written.map_err(|source| LoadError::Ledger { path: self.path.clone(), source })
    }
}

fn append_whole(file: &mut File, text: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(text).inspect_err(|_| {
        // If this fails too, the torn line is truncated the next time the ledger is opened.
        let _ = file.set_len(before);
    })
}

/// Truncates a last line that has no line end.
fn cut_torn_line(file: &mut File) -> io::Result<()> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    if whole < text.len() { file.set_len(whole as u64) } else { Ok(()) }
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
    fn a_torn_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0");
        fs::write(&path, "start 0 0 0 1 1\n0 0 0 a 1 1\n0 0 1 a").unwrap();
        let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        cut_torn_line(&mut file).unwrap();
        append_whole(&mut file, b"0 0 1 a 2 1\n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "start 0 0 0 1 1\n0 0 0 a 1 1\n0 0 1 a 2 1\n");
    }

    #[test]
    fn a_path_stays_on_its_line() {
        let mut out = String::new();
        escape("a b/100%\n.tfrecord", &mut out);
        assert_eq!(out, "a b/100%25%0A.tfrecord");
    }
}
