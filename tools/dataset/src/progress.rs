//! Progress bars on stderr, if it is a terminal.

use std::io::{self, Read};

use indicatif::{ProgressBar, ProgressStyle};
use shardfeed_source::{ScanProgress, ScanStage, StoredFile};

/// Returns a bar over `total` bytes; hidden if stderr is not a terminal.
pub fn bytes_bar(doing: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.with_message(doing)
}

/// Shows the progress of indexing; never cancels it.
pub fn of_scan() -> impl FnMut(ScanProgress) -> bool {
    let mut bar: Option<ProgressBar> = None;
    move |progress| {
        let doing = match progress.stage {
            ScanStage::Waiting => "waiting for another process that indexes",
            ScanStage::Listing => "looking at the files",
            ScanStage::Scanning => "indexing",
            ScanStage::Counting => "filtering",
            ScanStage::Done => {
                bar.take().iter().for_each(ProgressBar::finish_and_clear);
                return true;
            }
        };
        let bar = bar.get_or_insert_with(|| bytes_bar(doing, 0));
        bar.set_message(doing);
        if progress.stage == ScanStage::Scanning {
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes);
        }
        true
    }
}

/// A file that reports to the bar how much was read.
pub(crate) struct Counted<'a> {
    pub(crate) file: StoredFile,
    pub(crate) bar: &'a ProgressBar,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(out)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}
