//! Jobs that an operator pauses, cancels and resumes, as clients observe them.
//!
//! An acknowledged change must be visible in the answer to every later request.

use std::cell::RefCell;
use std::collections::BTreeMap;

use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError};

use crate::breach::Breaches;
use crate::sim::SimTime;
use crate::world::node::ELECTION_MAX_MS;

/// Time until heartbeat answers must reflect an acknowledged change, ms.
///
/// The leader that answers heartbeats heard from a majority so recently that there is mostly no
/// other leader. A former leader may not know of a change for this long after the other leader
/// acknowledged it.
const HEARD_MS: u64 = 2 * ELECTION_MAX_MS;

/// Operator requests about jobs, and the answers that were observed.
#[derive(Debug)]
pub struct Holds {
    breaches: Breaches,
    time: SimTime,
    jobs: RefCell<BTreeMap<String, Job>>,
    counted: RefCell<BTreeMap<&'static str, u64>>,
}

/// State of a paused or cancelled job, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Paused or cancelled.
    pub hold: wire::Hold,
    /// Reason that the operator gave.
    pub reason: String,
}

#[derive(Clone, Debug, Default)]
struct Job {
    /// Change that was acknowledged last; `None`: the job runs.
    held: Option<Held>,
    since_ms: u64,
    /// True while a request is unanswered.
    is_changing: bool,
    /// Number of requests sent and answers received.
    changes: u64,
}

/// Known state of a job when a request was sent.
#[derive(Clone, Debug)]
pub struct Sure {
    name: String,
    of: Job,
    now_ms: u64,
}

impl Sure {
    fn is_held(&self, hold: wire::Hold) -> bool {
        self.of.held.as_ref().is_some_and(|held| held.hold == hold)
    }

    /// Returns true if heartbeat answers must reflect it as well.
    fn is_heard(&self) -> bool {
        self.of.since_ms + HEARD_MS <= self.now_ms || self.of.changes == 0
    }
}

impl Holds {
    /// Returns a checker without any paused or cancelled jobs.
    pub fn new(breaches: Breaches, time: SimTime) -> Self {
        Self { breaches, time, jobs: RefCell::default(), counted: RefCell::default() }
    }

    /// Returns the number of occurrences of each observed event, by name.
    pub fn counted(&self) -> BTreeMap<&'static str, u64> {
        self.counted.borrow().clone()
    }

    /// Records that an operator is about to send a request about a job.
    pub fn says(&self, job: &str) {
        let mut jobs = self.jobs.borrow_mut();
        let job = jobs.entry(job.to_owned()).or_default();
        (job.is_changing, job.changes) = (true, job.changes + 1);
    }

    /// Records the definite answer to the operator's request.
    pub fn said(&self, job: &str, asked: Option<Held>, answer: &Result<(), WireError>) {
        let mut jobs = self.jobs.borrow_mut();
        let known = jobs.entry(job.to_owned()).or_default();
        (known.is_changing, known.changes) = (false, known.changes + 1);
        let is_cancelled =
            known.held.as_ref().is_some_and(|held| held.hold == wire::Hold::Cancelled);
        let is_paused = asked.as_ref().is_some_and(|asked| asked.hold == wire::Hold::Paused);
        match answer {
            Ok(()) => {
                self.breaches.check(!(is_cancelled && is_paused), "I19", || {
                    format!("{job} was cancelled, and then paused")
                });
                match &asked {
                    Some(held) if held.hold == wire::Hold::Paused => self.count("job-pause"),
                    Some(_) => self.count("job-cancel"),
                    None => {}
                }
                let how = |held: &Option<Held>| held.as_ref().map(|held| held.hold);
                // A request for the current state changes nothing, not even the reason.
                if how(&known.held) != how(&asked) {
                    (known.held, known.since_ms) = (asked, self.time.ms());
                }
            }
            Err(error) => {
                let fine = is_cancelled && is_paused && error.kind == ErrorKind::Cancelled;
                self.breaches.check(fine, "I19", || {
                    format!("{job} is {:?}, and {asked:?} is refused: {error}", known.held)
                });
            }
        }
    }

    /// Records that a request about a job is about to be sent.
    /// - Returns the state to compare the answer with; `None` while a change is unanswered.
    pub fn sends(&self, job: &str) -> Option<Sure> {
        let of = self.jobs.borrow().get(job).cloned().unwrap_or_default();
        let now_ms = self.time.ms();
        (!of.is_changing).then(|| Sure { name: job.to_owned(), of, now_ms })
    }

    /// Checks the answer to a start of a rank.
    pub fn started<T>(&self, sent: Option<Sure>, answer: &Result<T, WireError>) {
        let Some(sure) = self.still(sent) else {
            return;
        };
        let (name, is_cancelled) = (&sure.name, sure.is_held(wire::Hold::Cancelled));
        let says_so = answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Cancelled);
        self.breaches.check(!(is_cancelled && answer.is_ok()), "I19", || {
            format!("{name} was cancelled, and a rank of it got a lease")
        });
        self.breaches.check(is_cancelled || !says_so, "I19", || {
            format!("{name} is not cancelled, and no rank of it gets a lease")
        });
        if is_cancelled && says_so {
            self.count("starts-refused");
        }
    }

    /// Checks the answer to a heartbeat.
    /// - `ended`: reason why the job's reported lease ended, if it did. `note`: reason why the rank
    ///   has to wait.
    pub fn beat(&self, sent: Option<Sure>, ended: Option<ErrorKind>, note: Option<&str>) {
        let Some(sure) = self.still(sent).filter(Sure::is_heard) else {
            return;
        };
        let name = &sure.name;
        let (fine, seen) = match &sure.of.held {
            None => (note.is_none() && ended != Some(ErrorKind::Cancelled), None),
            Some(Held { hold: wire::Hold::Paused, reason }) => {
                let told = note.is_some_and(|note| note.contains(reason.as_str()));
                (ended.is_some() || told, told.then_some("pauses-heard"))
            }
            Some(_) => (ended.is_some(), Some("cancels-heard")),
        };
        self.breaches.check(fine, "I19", || {
            let held = &sure.of.held;
            format!("{name} is {held:?}, and a rank of it receives {note:?}, ended {ended:?}")
        });
        if let Some(seen) = seen {
            self.count(seen);
        }
    }

    /// Checks the answer to a claim of groups.
    /// - `new`: newly granted samples of the rank's list.
    pub fn took(&self, sent: Option<Sure>, new: u64) {
        if let Some(sure) = self.still(sent).filter(Sure::is_heard) {
            let is_cancelled = sure.is_held(wire::Hold::Cancelled);
            self.breaches.check(!is_cancelled || new == 0, "I19", || {
                format!("{} was cancelled, and a rank of it was granted {new} samples", sure.name)
            });
        }
    }

    /// Checks the pause or cancellation that a client read.
    pub fn read(&self, sent: Option<Sure>, held: Option<&wire::Held>) {
        let Some(sure) = self.still(sent) else {
            return;
        };
        let read = held.map(|held| Held { hold: held.hold(), reason: held.reason.clone() });
        self.breaches.check(read == sure.of.held, "I19", || {
            format!("{} is {:?}, but {read:?} is read", sure.name, sure.of.held)
        });
        if read.is_some() {
            self.count("holds-read");
        }
    }

    /// Returns `sent` if no change was requested or answered since then.
    fn still(&self, sent: Option<Sure>) -> Option<Sure> {
        let jobs = self.jobs.borrow();
        let changes = |name: &str| jobs.get(name).map_or(0, |job| job.changes);
        sent.filter(|sure| changes(&sure.name) == sure.of.changes)
    }

    fn count(&self, what: &'static str) {
        *self.counted.borrow_mut().entry(what).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paused() -> Option<Held> {
        Some(Held { hold: wire::Hold::Paused, reason: "why".into() })
    }

    fn cancelled() -> Option<Held> {
        Some(Held { hold: wire::Hold::Cancelled, reason: "why".into() })
    }

    /// Holds a job, waits, and returns the breach that a client's observation causes.
    fn breach(held: Option<Held>, see: impl FnOnce(&Holds, Option<Sure>)) -> Option<&'static str> {
        let (breaches, time) = (Breaches::default(), SimTime::default());
        let holds = Holds::new(breaches.clone(), time.clone());
        let early = holds.sends("job");
        holds.says("job");
        assert!(holds.sends("job").is_none());
        holds.said("job", held, &Ok(()));
        // A request that was sent before the change is not compared.
        holds.read(early, Some(&wire::Held { reason: "other".into(), ..wire::Held::default() }));
        time.set_ms(HEARD_MS);
        see(&holds, holds.sends("job"));
        breaches.first().map(|breach| breach.id)
    }

    #[test]
    fn a_paused_job_is_told_so_and_keeps_its_leases() {
        assert_eq!(breach(paused(), |holds, sent| holds.beat(sent, None, Some("for why"))), None);
        assert_eq!(breach(paused(), |holds, sent| holds.beat(sent, None, None)), Some("I19"));
        let gone = Some(ErrorKind::Fenced);
        assert_eq!(breach(paused(), |holds, sent| holds.beat(sent, gone, None)), None);
        assert_eq!(breach(paused(), |holds, sent| holds.started(sent, &Ok(()))), None);
        assert_eq!(breach(None, |holds, sent| holds.beat(sent, None, None)), None);
        assert_eq!(breach(None, |holds, sent| holds.beat(sent, None, Some("x"))), Some("I19"));
    }

    #[test]
    fn a_cancelled_job_grants_nothing() {
        let no = || Err::<(), _>(WireError::new(ErrorKind::Cancelled, "no"));
        assert_eq!(breach(cancelled(), |holds, sent| holds.started(sent, &no())), None);
        assert_eq!(breach(None, |holds, sent| holds.started(sent, &no())), Some("I19"));
        assert_eq!(breach(cancelled(), |holds, sent| holds.started(sent, &Ok(()))), Some("I19"));
        assert_eq!(breach(cancelled(), |holds, sent| holds.took(sent, 0)), None);
        assert_eq!(breach(cancelled(), |holds, sent| holds.took(sent, 1)), Some("I19"));
        assert_eq!(breach(cancelled(), |holds, sent| holds.beat(sent, None, None)), Some("I19"));
        let pause = |holds: &Holds, _| holds.said("job", paused(), &Ok(()));
        assert_eq!(breach(cancelled(), pause), Some("I19"));
        let refuse = |holds: &Holds, _| holds.said("job", paused(), &no());
        assert_eq!(breach(cancelled(), refuse), None);
    }

    #[test]
    fn what_is_read_is_what_was_acknowledged() {
        let read = |held: Option<Held>, reason: &str| {
            let reason = reason.to_owned();
            breach(held, |holds, sent| {
                let hold = wire::Hold::Paused.into();
                holds.read(sent, Some(&wire::Held { hold, reason, ..wire::Held::default() }));
            })
        };
        assert_eq!(read(paused(), "why"), None);
        assert_eq!(read(paused(), "other"), Some("I19"));
        assert_eq!(read(None, "why"), Some("I19"));
    }
}
