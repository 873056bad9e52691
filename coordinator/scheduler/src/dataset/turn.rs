//! Scheduling of scans: the sessions that may scan a dataset, and the order of the datasets.

use std::collections::BTreeMap;

use shardfeed_plan::{fixed_folder, is_below};

use super::{Dataset, Datasets, bounded};
use crate::log::{
    Answer, Cordon, Failure, LeasedScan, SESSION_SCANS_OF_ONE_MAX, STALLS_MAX, ScanRef, SessionId,
};
use crate::session::Session;
use crate::state::{Moment, State};

impl State {
    /// Frees scans that made no progress, for other sessions.
    ///
    /// A dataset fails if no session makes progress with it.
    pub(crate) fn release_scans(&mut self, moment: Moment, scans: &[LeasedScan]) -> Answer {
        for LeasedScan { dataset: name, part, fencing } in scans {
            let Some(dataset) = self.datasets.by_name.get_mut(name) else {
                continue;
            };
            let Some(lease) = dataset.lease_of(*part).filter(|lease| lease.fencing == *fencing)
            else {
                continue;
            };
            let session = lease.session;
            let live = |id: &SessionId, _: &mut u32| self.sessions.live.contains_key(id);
            dataset.stalls.retain(live);
            *dataset.stalls.entry(session).or_default() += 1;
            let scan = ScanRef { dataset: name.clone(), part: *part };
            self.datasets.free(&scan);
            self.sessions.drop_scan(session, &scan);
            let dataset = &self.datasets.by_name[name];
            if self.readers(dataset).all(|session| dataset.stalls_of(session.id) >= STALLS_MAX) {
                let failure = no_progress(dataset, &self.sessions.worker_of(session));
                self.fail(moment, name, failure);
            }
        }
        Answer::Done
    }

    /// Sessions that may list and scan a dataset: workers, or limited principals' if no worker may.
    fn readers<'a>(&'a self, dataset: &'a Dataset) -> impl Iterator<Item = &'a Session> {
        let has_worker = self.has_worker(dataset);
        let live = self.sessions.live.values();
        live.filter(move |session| {
            may_scan(session, dataset) && !(has_worker && session.is_limited())
        })
    }

    /// True if an unlimited session may list and scan the dataset now.
    fn has_worker(&self, dataset: &Dataset) -> bool {
        let mut live = self.sessions.live.values();
        live.any(|session| {
            let is_open = || self.sessions.cordon(session.id) == Cordon::Open;
            !session.is_limited() && may_scan(session, dataset) && is_open()
        })
    }

    /// True if any session may list and scan the dataset now.
    pub fn has_reader(&self, dataset: &Dataset) -> bool {
        self.readers(dataset).next().is_some()
    }

    /// Returns the datasets that a session may claim work of, in fair order.
    pub(super) fn fair_share(&self, id: SessionId) -> FairShare {
        let mut fair = FairShare::default();
        let Some(session) = self.sessions.live.get(&id) else {
            return fair;
        };
        let by = |scan: &ScanRef| Some(self.datasets.by_name.get(&scan.dataset)?.principal());
        for scan in self.sessions.live.values().flat_map(|session| &session.scans) {
            if let Some(by) = by(scan) {
                *fair.running.entry(by.to_owned()).or_default() += 1;
            }
        }
        for by in session.scans.iter().filter_map(by) {
            *fair.own.entry(by.to_owned()).or_default() += 1;
        }
        for (order, name) in &self.datasets.with_work {
            let dataset = &self.datasets.by_name[name];
            if self.may_take(session, dataset) {
                fair.free.insert((dataset.principal().to_owned(), *order), name.clone());
            }
        }
        fair
    }

    /// True if a session may claim work of a dataset.
    ///
    /// It has at most one scan of a dataset at a time, unless it claimed several together.
    fn may_take(&self, session: &Session, dataset: &Dataset) -> bool {
        if !may_scan(session, dataset) || session.is_limited() && self.has_worker(dataset) {
            return false;
        }
        let first = ScanRef { dataset: dataset.name.clone(), part: None };
        if session.scans.range(first..).next().is_some_and(|scan| scan.dataset == dataset.name) {
            return false;
        }
        // Other sessions come first, as long as one of them has fewer stalls.
        let stalls = dataset.stalls_of(session.id);
        stalls == 0 || self.readers(dataset).all(|other| dataset.stalls_of(other.id) >= stalls)
    }

    /// True if there is work that a session may list or scan.
    pub fn has_scans_for(&self, session: SessionId) -> bool {
        let Some(session) = self.sessions.live.get(&session) else {
            return false;
        };
        let mut free = self.datasets.with_work.values();
        free.any(|name| self.may_take(session, &self.datasets.by_name[name]))
    }
}

/// Datasets with free work; the principal with the fewest running scans is served first.
#[derive(Debug, Default)]
pub(super) struct FairShare {
    /// Datasets by the principal that added them, oldest first.
    free: BTreeMap<(String, u64), String>,
    /// Number of running scans of all sessions, by the principal that added their datasets.
    running: BTreeMap<String, usize>,
    /// Number of this session's scans, likewise.
    own: BTreeMap<String, usize>,
}

impl FairShare {
    pub(super) fn next(&mut self, datasets: &Datasets) -> Option<String> {
        let has_work = |name: &String| datasets.by_name.get(name).is_some_and(Dataset::has_work);
        self.free.retain(|_, name| has_work(name));
        let count = |of: &BTreeMap<String, usize>, by: &str| of.get(by).copied().unwrap_or(0);
        let may = |((by, _), _): &(&(String, u64), &String)| {
            count(&self.own, by) < SESSION_SCANS_OF_ONE_MAX
        };
        let rank =
            |((by, order), _): &(&(String, u64), &String)| (count(&self.running, by), *order);
        let ((by, _), name) = self.free.iter().filter(may).min_by_key(rank)?;
        *self.running.entry(by.clone()).or_default() += 1;
        Some(name.clone())
    }
}

/// True if a session may list and scan a dataset.
///
/// A limited session may scan only datasets of the same scope. Datasets of limited principals may
/// be scanned only by sessions of their scope, and by workers whose data roots contain them.
fn may_scan(session: &Session, dataset: &Dataset) -> bool {
    let is_trainer = session.scope.first().is_some_and(|name| name == ANY);
    let is_own = match (session.scope.is_empty() || is_trainer, dataset.scope.is_empty()) {
        (true, true) => true,
        (false, true) => false,
        (_, false) => session.scope == dataset.scope,
    };
    let roots = &session.join.data_roots;
    let is_below = || match dataset.root() {
        Some(root) => is_below(roots, root),
        None => dataset.patterns.iter().all(|pattern| is_below(roots, fixed_folder(pattern))),
    };
    match (is_own, roots.is_empty()) {
        (true, true) => true,
        (true, false) => is_below(),
        (false, false) => session.scope.is_empty() && is_below(),
        (false, true) => false,
    }
}

fn no_progress(dataset: &Dataset, worker: &str) -> Failure {
    let (doing, place) = match dataset.root() {
        Some(root) => ("scanning", root.to_owned()),
        None => ("listing", dataset.patterns.join(", ")),
    };
    let message = format!(
        "{doing} {place} made no progress on any worker, the last one was `{worker}`; check the mount or the \
         store there, then add the dataset again"
    );
    bounded(&Failure { kind: "ERROR_KIND_UNREACHABLE".to_owned(), message, ..Failure::default() })
}

/// First entry of the scope of a trainer without limits; its name follows.
const ANY: &str = "*";

#[cfg(test)]
mod tests {
    use super::*;
    use shardfeed_plan::Digest;

    use crate::fixture::{DATASET, Fixture, add, add_dataset, join};
    use crate::{
        AddDataset, Change, Command, JoinSession, Listing, PARTS_MAX, Part, Phase, Refusal,
    };

    /// Applies a change of a principal that is limited to names.
    fn by(
        fixture: &mut Fixture,
        (principal, scope): (&str, &[&str]),
        change: Change,
    ) -> Result<Answer, Refusal> {
        let scope = scope.iter().map(|&name| name.to_owned()).collect();
        let principal = principal.to_owned();
        let command = Command { principal, scope, ..fixture.command(change) };
        let answer = fixture.state.apply(fixture.state.applied() + 1, &command).answer;
        assert_eq!(fixture.state.check(), Ok(()));
        answer
    }

    fn session(fixture: &mut Fixture, name: &str, scope: &[&str], roots: &[&str]) -> SessionId {
        let data_roots = roots.iter().map(|&root| root.to_owned()).collect();
        let join = Change::JoinSession(JoinSession { data_roots, ..join(name, "i1") });
        match by(fixture, (name, scope), join).unwrap() {
            Answer::Joined { session } => session,
            other => panic!("{other:?}"),
        }
    }

    fn add_of(fixture: &mut Fixture, who: (&str, &[&str]), name: &str, pattern: &str) {
        let (name, patterns) = (name.to_owned(), vec![pattern.to_owned()]);
        let add = AddDataset { name, patterns, ..add_dataset() };
        by(fixture, who, Change::AddDataset(add)).unwrap();
    }

    fn names(fixture: &mut Fixture, session: SessionId, most: u32) -> Vec<String> {
        fixture.take(session, most).into_iter().map(|task| task.dataset).collect()
    }

    #[test]
    fn a_limited_session_scans_its_own_and_workers_below_their_roots() {
        let mut fixture = Fixture::default();
        let team: &[&str] = &["nightly-*"];
        let worker = session(&mut fixture, "worker", &[], &[]);
        let rooted = session(&mut fixture, "rooted", &[], &["/data"]);
        let trainer = session(&mut fixture, "trainer", &["*"], &[]);
        let limited = session(&mut fixture, "limited", team, &[]);
        let other = session(&mut fixture, "other", &["daily-*"], &[]);
        add_of(&mut fixture, ("operator", &[]), "theirs", "/data/x*");
        add_of(&mut fixture, ("limited", team), "inside", "/data/*");
        add_of(&mut fixture, ("limited", team), "outside", "/etc/*");
        add_of(&mut fixture, ("limited", team), "sneaky", "/data/../etc/*");
        add_of(&mut fixture, ("trainer", &["*"]), "trainers", "/home/*");
        let may = |id: SessionId| {
            let session = fixture.state.session(id).unwrap();
            let datasets = fixture.state.datasets();
            let may = datasets.filter(|dataset| may_scan(session, dataset));
            may.map(|dataset| dataset.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(may(worker), ["theirs"]);
        assert_eq!(may(rooted), ["inside", "theirs"]);
        assert_eq!(may(trainer), ["theirs", "trainers"]);
        assert_eq!(may(limited), ["inside", "outside", "sneaky"]);
        assert_eq!(may(other), [""; 0]);
        assert!(!fixture.state.has_scans_for(other) && fixture.state.has_scans_for(rooted));
        assert_eq!(names(&mut fixture, other, 9), [""; 0]);
        // No trainer scans a dataset that a worker may scan, unless the worker receives no new
        // work.
        assert_eq!(names(&mut fixture, trainer, 9), ["trainers"]);
        for worker in ["worker", "rooted"] {
            assert!(!fixture.state.has_scans_for(trainer), "{worker}");
            let (worker, state) = (worker.to_owned(), Cordon::Cordoned);
            fixture.done(Change::CordonWorker { worker, state });
        }
        assert_eq!(names(&mut fixture, trainer, 9), ["theirs"]);
    }

    #[test]
    fn a_peer_scans_no_other_trainers_dataset() {
        let mut fixture = Fixture::default();
        let (tom, mallory): (&[&str], &[&str]) = (&["*", "trainer:tom"], &["*", "trainer:mallory"]);
        let toms = session(&mut fixture, "trainer:tom", tom, &[]);
        let mallorys = session(&mut fixture, "trainer:mallory", mallory, &[]);
        add_of(&mut fixture, ("trainer:tom", tom), "toms", "/home/*");
        assert!(!fixture.state.has_scans_for(mallorys));
        assert_eq!(names(&mut fixture, mallorys, 9), [""; 0]);
        assert_eq!(names(&mut fixture, toms, 9), ["toms"]);
    }

    #[test]
    fn one_principal_leaves_turns_for_others() {
        let mut fixture = Fixture::default();
        let (a, b) = (fixture.join("a"), fixture.join("b"));
        for number in 0..10 {
            let who = format!("flood (token {number})");
            add_of(&mut fixture, (&who, &[]), &format!("flood-{number}"), "/f/*");
        }
        add_of(&mut fixture, ("late", &[]), "late", "/l/*");
        let flood: Vec<_> = (0..3).flat_map(|_| names(&mut fixture, a, 1)).collect();
        // The second turn goes to the principal with fewer running scans.
        assert_eq!(flood, ["flood-0", "late", "flood-1"]);
        assert_eq!(names(&mut fixture, a, 1), ["flood-2"]);
        assert_eq!(names(&mut fixture, a, 1), [""; 0], "its fourth turn is for others");
        assert!(fixture.state.has_scans_for(b));
    }

    #[test]
    fn a_scan_without_progress_goes_to_another_session_and_in_the_end_fails() {
        let mut fixture = Fixture::default();
        let (a, b) = (fixture.join("a"), fixture.join("b"));
        fixture.done(add());
        let release = |fixture: &mut Fixture, fencing| {
            let (dataset, part) = (DATASET.to_owned(), None);
            let scans = vec![LeasedScan { dataset, part, fencing }];
            fixture.done(Change::ReleaseScans { scans });
        };
        let first = fixture.take(a, 1).remove(0).fencing;
        release(&mut fixture, first - 1);
        assert_eq!(fixture.take(b, 1), [], "another lease's stall changes nothing");
        release(&mut fixture, first);
        assert_eq!(fixture.take(a, 1), [], "others come first");
        for _ in 0..2 {
            for session in [b, a] {
                let fencing = fixture.take(session, 1).remove(0).fencing;
                release(&mut fixture, fencing);
            }
        }
        let fencing = fixture.take(b, 1).remove(0).fencing;
        release(&mut fixture, fencing);
        let Phase::Failed { failure, .. } = &fixture.state.dataset(DATASET).unwrap().phase else {
            panic!("it waits for ever");
        };
        assert!(failure.message.contains("made no progress on any worker"), "{failure:?}");
        // A dataset that is added again starts a new attempt.
        fixture.done(add());
        assert_eq!(fixture.take(a, 1).len(), 1);
    }

    #[test]
    fn limited_principals_have_quotas() {
        let mut fixture = Fixture::default();
        let who: (&str, &[&str]) = ("mallory", &["nightly-*"]);
        for number in 0..crate::PRINCIPAL_SCANS_MAX {
            add_of(&mut fixture, who, &format!("nightly-{number}"), "/x");
        }
        let one_more =
            |name: &str| Change::AddDataset(AddDataset { name: name.to_owned(), ..add_dataset() });
        let refusal = by(&mut fixture, who, one_more("nightly-x")).unwrap_err();
        assert!(
            refusal.to_string().contains("datasets of mallory that are not ready"),
            "{refusal}"
        );
        by(&mut fixture, ("operator", &[]), one_more("a")).unwrap();
    }

    #[test]
    fn at_its_quota_of_datasets_a_principal_adds_a_failed_one_again() {
        let mut fixture = Fixture::default();
        let scope: &[&str] = &["nightly-*"];
        add_of(&mut fixture, ("trainer:tom (token 1)", scope), "nightly-0", "/x");
        let datasets = &mut fixture.state.datasets.by_name;
        let failed = datasets.get_mut("nightly-0").unwrap();
        failed.phase = Phase::Failed { failure: Failure::default(), failed_ms: 0 };
        let failed = failed.clone();
        for number in 1..crate::PRINCIPAL_DATASETS_MAX {
            let name = format!("nightly-{number}");
            datasets.insert(name.clone(), Dataset { name, ..failed.clone() });
        }
        fixture.state.index();
        // Another token of the same name is the same principal.
        let tom = ("trainer:tom (token 2)", scope);
        let add = |name: &str| {
            let (name, patterns) = (name.to_owned(), vec!["/x".to_owned()]);
            Change::AddDataset(AddDataset { name, patterns, ..add_dataset() })
        };
        let refusal = by(&mut fixture, tom, add("nightly-x")).unwrap_err().to_string();
        assert!(refusal.contains("datasets of trainer:tom: at most 1000"), "{refusal}");
        by(&mut fixture, tom, add("nightly-0")).unwrap();
        assert_eq!(fixture.state.dataset("nightly-0").unwrap().attempt, 2);
    }

    #[test]
    fn parts_of_limited_principals_are_bounded_together() {
        let mut fixture = Fixture::default();
        let who: (&str, &[&str]) = ("mallory", &["nightly-*"]);
        let part = Part { chunk: Digest::from_bytes([1; 32]), files: 1, bytes: 1 };
        let mut listed = |who, root: &str| {
            let listing = Listing { root: root.to_owned(), parts: vec![part.clone(); PARTS_MAX] };
            let name = format!("nightly-{root}");
            let add =
                AddDataset { name, patterns: vec![], listing: Some(listing), ..add_dataset() };
            by(&mut fixture, who, Change::AddDataset(add))
        };
        for root in ["/a", "/b", "/c", "/d"] {
            listed(who, root).unwrap();
        }
        let who = ("mallory (token 2)", who.1);
        let refusal = listed(who, "/e").unwrap_err().to_string();
        assert!(refusal.contains("parts of datasets of mallory"), "{refusal}");
        listed(("operator", &[]), "/f").unwrap();
    }

    #[test]
    fn at_its_quota_of_sessions_a_limited_principal_stops_nobody_else() {
        let mut fixture = Fixture::default();
        let join_as = |fixture: &mut Fixture, who: &str, scope: &[&str], worker: &str| {
            let (scope, principal) =
                (scope.iter().map(|&name| name.to_owned()).collect(), who.to_owned());
            let change = Change::JoinSession(join(worker, "i1"));
            let command = Command { principal, scope, ..fixture.command(change) };
            fixture.state.apply(fixture.state.applied() + 1, &command).answer
        };
        let team: &[&str] = &["nightly-*"];
        for number in 0..crate::PRINCIPAL_SESSIONS_MAX {
            // Another token of the same name is the same principal.
            let who = format!("trainer:mallory (token {})", number % 2);
            join_as(&mut fixture, &who, team, &format!("m{number}")).unwrap();
        }
        let full = |answer: Result<Answer, Refusal>| answer.unwrap_err().to_string();
        let said = full(join_as(&mut fixture, "trainer:mallory (token 2)", team, "one more"));
        assert!(said.contains("live sessions of trainer:mallory: at most 25000"), "{said}");
        join_as(&mut fixture, "trainer:tom", team, "toms").unwrap();
        let worker = join_as(&mut fixture, "worker:w", &[], "w").unwrap();
        // A session that ends makes room, also after a restart.
        fixture.state = State::from_snapshot(&fixture.state.snapshot()).unwrap();
        full(join_as(&mut fixture, "trainer:mallory", team, "one more"));
        let first = fixture.state.sessions.by_worker["m0"];
        fixture.apply(Change::LeaveSession { session: first }).unwrap();
        join_as(&mut fixture, "trainer:mallory", team, "one more").unwrap();
        assert!(matches!(worker, Answer::Joined { .. }));
    }

    #[test]
    fn limited_principals_keep_no_names_from_the_whole_cluster() {
        let mut fixture = Fixture::default();
        let mallory: (&str, &[&str]) = ("mallory", &["nightly-*"]);
        let operator: (&str, &[&str]) = ("operator", &[]);
        let joins = |incarnation| {
            Change::JoinSession(JoinSession { proved: true, ..join("w7", incarnation) })
        };
        by(&mut fixture, mallory, joins("of mallory")).unwrap();
        by(&mut fixture, operator, joins("of the host")).unwrap();
        let refusal = by(&mut fixture, mallory, joins("again")).unwrap_err();
        assert!(matches!(refusal, Refusal::Denied(_)), "{refusal}");
        add_of(&mut fixture, mallory, "nightly-a", "/x");
        let same = AddDataset {
            name: "nightly-a".to_owned(),
            patterns: vec!["/x".to_owned()],
            ..add_dataset()
        };
        let refusal = by(&mut fixture, operator, Change::AddDataset(same)).unwrap_err().to_string();
        assert!(refusal.contains("was added by mallory"), "{refusal}");
    }
}
