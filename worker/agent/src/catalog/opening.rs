//! Requests to open a dataset. If several ranks open one dataset at once, one of them examines the
//! files, and the others share the result.

use std::sync::{Arc, Condvar};
use std::time::Duration;

use shardfeed_plan::{ContentDigest, Corrupt};
use shardfeed_proto::WireError;
use shardfeed_source::{
    Dataset, FileRules, LoadError, Lock, OnProgress, OpenProgress, User, wait_for,
};

/// Interval at which a waiting caller reports the progress of the active one.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Samples that a trainer requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleSource {
    pub source: Source,
    /// Encoded part of a record spec that makes samples of them; empty: each record is one.
    pub program: Vec<u8>,
    /// The trainer's policy for damaged records.
    pub corrupt: Corrupt,
    /// Name of the dataset that it is if its files are gone.
    pub kept: Option<String>,
}

/// Dataset that a trainer requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Named(String),
    /// Files, which become a dataset of that content.
    Files {
        /// Absolute paths, globs or URLs.
        patterns: Vec<String>,
        /// Compression of the files, and the parts of damaged files to leave out.
        rules: FileRules,
    },
}

#[derive(Clone, Debug)]
pub struct Opened {
    pub name: String,
    /// Rules for reading its files, as registered.
    pub rules: FileRules,
    pub content: ContentDigest,
    pub dataset: Arc<Dataset>,
    /// Reason why its files were not found, if they were not.
    pub missing: Option<String>,
}

/// Requested dataset and the requesting user; access of one user implies nothing for another.
pub(crate) type Wanted = (SampleSource, Option<User>);

/// Datasets that are being opened.
#[derive(Debug, Default)]
pub(crate) struct Openings(Lock<Vec<(Wanted, Arc<Opening>)>>);

#[derive(Debug, Default)]
struct Opening {
    state: Lock<OpeningState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct OpeningState {
    /// `None`: the active caller has reported nothing yet.
    told: Option<OpenProgress>,
    end: Option<End>,
}

#[derive(Clone, Debug)]
enum End {
    Opened(Opened),
    Failed(WireError),
    /// The active caller cancelled; another one opens the dataset.
    GaveUp,
}

impl Openings {
    /// Opens `wanted` by `open`, or waits for another caller that does.
    ///
    /// # Errors  The errors of `open`; `Interrupted`.
    pub(crate) fn open(
        &self,
        wanted: &Wanted,
        progress: OnProgress<'_>,
        mut open: impl FnMut(OnProgress<'_>) -> Result<Opened, LoadError>,
    ) -> Result<Opened, LoadError> {
        loop {
            let mut all = self.0.lock();
            let other = all.iter().find(|(of, _)| of == wanted).map(|(_, one)| Arc::clone(one));
            let Some(other) = other else {
                let opening = Arc::<Opening>::default();
                all.push((wanted.clone(), Arc::clone(&opening)));
                drop(all);
                let _end = Leader { openings: self, opening: &opening };
                let mut is_cancelled = false;
                let opened = open(&mut |told: &OpenProgress| {
                    opening.state.lock().told = Some(told.clone());
                    let goes_on = progress(told);
                    is_cancelled |= !goes_on;
                    goes_on
                });
                opening.state.lock().end = match &opened {
                    Ok(opened) => Some(End::Opened(opened.clone())),
                    // A cancelled call to a coordinator has another error.
                    Err(_) if is_cancelled => None,
                    Err(LoadError::Interrupted) => None,
                    Err(error) => Some(End::Failed(error.to_wire())),
                };
                return opened;
            };
            drop(all);
            match other.wait(progress)? {
                End::Opened(opened) => return Ok(opened),
                End::Failed(error) => return Err(error.into()),
                End::GaveUp => {}
            }
        }
    }
}

impl Opening {
    fn wait(&self, progress: OnProgress<'_>) -> Result<End, LoadError> {
        let mut state = self.state.lock();
        loop {
            if let Some(end) = state.end.clone() {
                return Ok(end);
            }
            let told = state.told.clone().unwrap_or_else(|| OpenProgress::waiting(""));
            drop(state);
            if !progress(&told) {
                return Err(LoadError::Interrupted);
            }
            state = wait_for(&self.ended, self.state.lock(), TELL_EVERY);
        }
    }
}

/// Ends an opening, also when the active caller panics.
struct Leader<'a> {
    openings: &'a Openings,
    opening: &'a Arc<Opening>,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.openings.0.lock().retain(|(_, opening)| !Arc::ptr_eq(opening, self.opening));
        self.opening.state.lock().end.get_or_insert(End::GaveUp);
        self.opening.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use shardfeed_source::{CacheChoice, ScanProgress, ScanStage};

    use super::*;
    use crate::cluster::coordinator::gave_up;

    const RANKS: usize = 8;

    fn progress() -> OpenProgress {
        let stage = ScanStage::Scanning;
        let scan = ScanProgress { stage, files: 1, files_total: 2, bytes: 0, bytes_total: 0 };
        OpenProgress { note: String::new(), scan }
    }

    fn wanted(user: Option<User>) -> Wanted {
        (
            SampleSource {
                source: Source::Named("x".into()),
                program: vec![],
                corrupt: Corrupt::Error,
                kept: None,
            },
            user,
        )
    }

    fn opened() -> Opened {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tfrecord");
        std::fs::write(&path, b"").unwrap();
        let rules = FileRules::default();
        let patterns = [path.display().to_string()];
        let dataset =
            Dataset::open(&patterns, rules, None, &CacheChoice::Off.into(), &mut |_| true);
        let dataset = Arc::new(dataset.unwrap());
        Opened { name: "x".into(), rules, content: dataset.content(), dataset, missing: None }
    }

    #[test]
    fn ranks_that_open_the_same_at_once_open_it_once() {
        let (openings, source) = (Openings::default(), wanted(None));
        let (waiting, opens) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let made = opened();
        std::thread::scope(|scope| {
            for _ in 0..RANKS {
                scope.spawn(|| {
                    let mut is_told = false;
                    let told = &mut |_: &OpenProgress| {
                        waiting.fetch_add(usize::from(!is_told), Ordering::Relaxed);
                        is_told = true;
                        true
                    };
                    let opened = openings.open(&source, told, |progress_of| {
                        opens.fetch_add(1, Ordering::Relaxed);
                        // Continues until all waiting ranks have received progress.
                        while waiting.load(Ordering::Relaxed) < RANKS {
                            assert!(progress_of(&progress()));
                            std::thread::yield_now();
                        }
                        Ok(made.clone())
                    });
                    assert!(Arc::ptr_eq(&opened.unwrap().dataset, &made.dataset));
                });
            }
        });
        assert_eq!(opens.into_inner(), 1);
        assert!(openings.0.lock().is_empty());
    }

    #[test]
    fn another_user_does_not_get_what_the_first_one_may_open() {
        let openings = Openings::default();
        let user = |uid| wanted(Some(User { uid, gid: 100, groups: vec![] }));
        let first = openings.open(&user(1), &mut |_| true, |_| {
            for other in [user(2), wanted(None)] {
                let other = openings.open(&other, &mut |_| true, |_| {
                    Err(LoadError::NotFound("it is not there for you".into()))
                });
                assert!(other.is_err());
            }
            Ok(opened())
        });
        assert_eq!(first.unwrap().name, "x");
        assert!(openings.0.lock().is_empty());
    }

    #[test]
    fn when_the_one_who_opens_gives_up_or_panics_another_one_does() {
        let (openings, source) = (Openings::default(), wanted(None));
        let waits = AtomicUsize::new(0);
        let made = opened();
        for (panics, is_wanted) in [(false, true), (false, false), (true, true)] {
            waits.store(0, Ordering::Relaxed);
            std::thread::scope(|scope| {
                let (begun, begin) = std::sync::mpsc::sync_channel(0);
                let (openings, source, waits) = (&openings, &source, &waits);
                let first = scope.spawn(move || {
                    openings.open(source, &mut |_| is_wanted, |progress_of| {
                        // Another one waits, and may cancel, before there is anything to report.
                        begun.send(()).unwrap();
                        while waits.load(Ordering::Relaxed) == 0 {
                            std::thread::yield_now();
                        }
                        assert!(!panics, "the first one panics");
                        match progress_of(&progress()) {
                            true => Err(LoadError::Interrupted),
                            false => Err(gave_up().into()),
                        }
                    })
                });
                begin.recv().unwrap();
                let told = &mut |_: &OpenProgress| {
                    waits.store(1, Ordering::Relaxed);
                    true
                };
                let second = openings.open(source, told, |_| Ok(made.clone()));
                assert_eq!(second.unwrap().name, "x");
                assert_eq!(first.join().is_err(), panics);
            });
        }
    }
}
