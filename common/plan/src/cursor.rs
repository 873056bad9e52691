//! Position of one rank: a pure state machine over starts, steps, epochs and states.

use crate::digest::Digest;
use crate::job::{JobIdentity, Mode, Tail};
use crate::segment::{LeftOut, SEGMENTS_MAX, Segment, Steps};
use crate::state::{LoaderState, STATE_FORMAT, StateError};
use crate::{PlanError, check_epoch};

/// Parameters of a rank's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Requested lanes; `None`: those of the state, else the world size.
    pub lanes: Option<u64>,
    /// Samples per rank and step.
    pub batch_size: u64,
    pub rank: u64,
    /// Data-parallel ranks.
    pub world_size: u64,
}

/// The first step that a rank has not consumed, and the segments before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    identity: JobIdentity,
    start: Start,
    position: Position,
    /// Start position of this generation, to compare ranks.
    origin: (u64, Vec<Segment>),
    /// True until the first step or `set_epoch` after a state was loaded.
    just_loaded: bool,
    /// Id of the cluster that keeps the lists of a dynamic job.
    cluster: Option<String>,
}

/// A position of a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Lanes of the job's first segment, as in its identity.
    lanes: u64,
    epoch: u64,
    generation: u64,
    segments: Vec<Segment>,
    /// Steps of the epoch that were left out.
    left_out: LeftOut,
}

impl Cursor {
    /// Returns a cursor at epoch 0, step 0. `identity.lanes` is set from `start`.
    ///
    /// # Errors  `DynamicTail`, `LanesDoNotDivide`, `RankOutOfRange`, `Zero`.
    pub fn new(mut identity: JobIdentity, start: Start) -> Result<Self, PlanError> {
        check_rank(&start)?;
        identity.mode.check_tail(identity.tail)?;
        identity.shuffle.validate()?;
        identity.lanes = match identity.mode {
            Mode::Deterministic => start.lanes.unwrap_or(start.world_size),
            Mode::Dynamic => 1,
        };
        let segments = vec![Segment::start(identity.lanes, start.batch_size, start.world_size)?];
        let (lanes, left_out, origin) = (identity.lanes, LeftOut::default(), (0, segments.clone()));
        let position = Position { lanes, epoch: 0, generation: 0, segments, left_out };
        Ok(Self { identity, start, position, origin, just_loaded: false, cluster: None })
    }

    /// Resumes from a state, as a new generation.
    ///
    /// A change of lanes or of the global batch opens a segment. A state of an uneven job belongs
    /// to one rank and fits only that rank at the same world size; see [`Cursor::resume_uneven`].
    ///
    /// # Errors  The state belongs to another job or does not fit this start; nothing is changed.
    pub fn resume(
        identity: JobIdentity,
        start: Start,
        state: &LoaderState,
    ) -> Result<Self, StateError> {
        check_rank(&start)?;
        state.check_job(&identity)?;
        let mut segments = state.segments.clone();
        let open = segments.last_mut().expect("a state has segments");
        let wanted = wanted(&identity, &start, open);
        if let Some((rank, world_size)) = state.speaks_for {
            let same = wanted.as_ref().is_ok_and(|wanted| {
                wanted.lanes == open.lanes && wanted.global_batch == open.global_batch
            });
            if (rank, world_size) != (start.rank, start.world_size) || !same {
                return Err(StateError::Uneven(format!(
                    "with tail=\"uneven\" a state speaks for one rank: this one is of rank {rank} \
                     of {world_size}, loaded by rank {} of {}; to continue with other ranks or \
                     another batch size pass the states of all {world_size} ranks as a list",
                    start.rank, start.world_size
                )));
            }
        }
        let wanted = wanted?;
        if wanted.lanes != open.lanes || wanted.global_batch != open.global_batch {
            go_on_with(&mut segments, wanted);
        }
        Self::at(identity, start, state, segments)
    }

    /// Resumes from the states of all ranks of an uneven job, at any world size.
    /// - `rank_steps`: steps of each rank in (epoch, segments, world size), from the start of the
    ///   last segment; called for ranks that are already in the next epoch.
    /// - `replay_missing`: ranks without a state deliver their part of the segment again.
    ///
    /// # Errors  As [`Cursor::resume`]; states are missing, duplicated, or several epochs apart.
    pub fn resume_uneven(
        identity: JobIdentity,
        start: Start,
        states: &[LoaderState],
        replay_missing: bool,
        rank_steps: impl Fn(u64, &[Segment], u64) -> Result<Vec<u64>, PlanError>,
    ) -> Result<Self, StateError> {
        check_rank(&start)?;
        let merged = merge(&identity, states, replay_missing, rank_steps)?;
        let mut segments = merged.segments.clone();
        let open = segments.last_mut().expect("a state has segments");
        let wanted = wanted(&identity, &start, open)?;
        let same = wanted.lanes == open.lanes && wanted.global_batch == open.global_batch;
        // Ranks that stopped at the same step continue in the same segment, as in the other modes.
        if !(same && matches!(open.steps, Steps::All(_))) {
            go_on_with(&mut segments, wanted);
        }
        Self::at(identity, start, &merged, segments)
    }

    pub fn epoch(&self) -> u64 {
        self.position.epoch
    }

    /// Returns the next step of the epoch.
    pub fn step(&self) -> u64 {
        self.position.segments.iter().map(|segment| segment.steps.most()).sum()
    }

    /// Returns the generation, which increases along a lineage.
    pub fn generation(&self) -> u64 {
        self.position.generation
    }

    /// Sets the generation that was assigned to this start.
    pub fn set_generation(&mut self, generation: u64) {
        self.position.generation = generation;
    }

    /// Sets the id of the cluster that keeps the lists of this dynamic job.
    pub fn set_cluster(&mut self, cluster: Option<String>) {
        self.cluster = cluster;
    }

    /// Returns the segments of the epoch; the last one is open.
    pub fn segments(&self) -> &[Segment] {
        &self.position.segments
    }

    pub fn left_out(&self) -> &LeftOut {
        &self.position.left_out
    }

    pub fn start(&self) -> &Start {
        &self.start
    }

    pub fn identity(&self) -> &JobIdentity {
        &self.identity
    }

    /// Consumes one step. The epoch ends after `steps`, this rank's number of steps in it.
    pub fn advance(&mut self, steps: u64) {
        self.just_loaded = false;
        let open = self.position.segments.last_mut().expect("a cursor has an open segment");
        open.steps = Steps::All(open.steps.most() + 1);
        if self.step() >= steps {
            self.begin(self.position.epoch.saturating_add(1));
        }
    }

    /// Moves to the next epoch when this rank has no steps left.
    pub fn finish_epoch(&mut self) {
        self.begin(self.position.epoch.saturating_add(1));
    }

    /// Moves to the start of `epoch`, except right after loading a state of it.
    ///
    /// Returns true if the position changed; moving back opens a new generation.
    ///
    /// # Errors  `NoSuchEpoch`; nothing is changed.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<bool, PlanError> {
        check_epoch(epoch)?;
        let stays = self.position.epoch == epoch && (self.just_loaded || self.step() == 0);
        self.just_loaded = false;
        if stays {
            return Ok(false);
        }
        if epoch <= self.position.epoch {
            self.position.generation += 1;
        }
        self.begin(epoch);
        self.origin = (epoch, self.position.segments.clone());
        Ok(true)
    }

    /// Returns the position, from which a state can be made later.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    pub fn state(&self) -> LoaderState {
        self.state_at(&self.position)
    }

    /// Returns the state at an earlier position of this rank.
    pub fn state_at(&self, position: &Position) -> LoaderState {
        let uneven = self.identity.tail == Tail::Uneven;
        let mut identity = self.identity.clone();
        identity.lanes = position.lanes;
        LoaderState {
            format: STATE_FORMAT,
            order: identity.order,
            job: identity.digest(),
            checks: identity.field_checks(),
            lanes: position.lanes,
            epoch: position.epoch,
            generation: position.generation,
            segments: position.segments.clone(),
            speaks_for: uneven.then_some((self.start.rank, self.start.world_size)),
            left_out: position.left_out.clone(),
            records: None,
            cluster: self.cluster.clone(),
            stages: None,
        }
    }

    /// Returns a digest that is equal on ranks with equal job, position, world size, batch, limit.
    pub fn plan_digest(&self, limit: Option<u64>) -> Digest {
        let job = self.identity.digest();
        let (epoch, segments) = &self.origin;
        let segments = in_json(segments);
        let text = format!("{epoch} {segments} {} {limit:?}", self.start.world_size);
        Digest::of_parts([b"shardfeed plan\n".as_slice(), job.as_bytes(), text.as_bytes()])
    }

    fn begin(&mut self, epoch: u64) {
        let open = self.position.segments.pop().expect("a cursor has an open segment");
        (self.position.epoch, self.position.left_out) = (epoch, LeftOut::default());
        self.position.segments = vec![Segment { steps: Steps::All(0), ..open }];
    }

    fn at(
        mut identity: JobIdentity,
        start: Start,
        state: &LoaderState,
        segments: Vec<Segment>,
    ) -> Result<Self, StateError> {
        if segments.len() > SEGMENTS_MAX || !state.left_out.fits_beside(&segments) {
            return Err(PlanError::TooManySegments.into());
        }
        identity.lanes = state.lanes;
        let (origin, cluster) = ((state.epoch, segments.clone()), state.cluster.clone());
        let position = Position {
            lanes: state.lanes,
            epoch: state.epoch,
            generation: state.generation.saturating_add(1),
            segments,
            left_out: state.left_out.clone(),
        };
        Ok(Self { identity, start, position, origin, just_loaded: true, cluster })
    }
}

/// Opens a segment.
///
/// It replaces an open segment without consumed steps, and reopens the one before if that is equal.
fn go_on_with(segments: &mut Vec<Segment>, wanted: Segment) {
    segments.pop_if(|open| open.steps.most() == 0);
    let is_same = |last: &Segment| {
        let alike = (last.lanes, last.global_batch) == (wanted.lanes, wanted.global_batch);
        alike && matches!(last.steps, Steps::All(_))
    };
    if !segments.last().is_some_and(is_same) {
        segments.push(wanted);
    }
}

/// Returns the segment that a start requests. Lanes have no meaning in a dynamic job.
fn wanted(identity: &JobIdentity, start: &Start, open: &Segment) -> Result<Segment, PlanError> {
    let lanes = start.lanes.filter(|_| !identity.is_dynamic()).unwrap_or(open.lanes);
    Segment::start(lanes, start.batch_size, start.world_size)
}

fn check_rank(start: &Start) -> Result<(), PlanError> {
    let Start { rank, world_size, .. } = *start;
    if rank < world_size { Ok(()) } else { Err(PlanError::RankOutOfRange { rank, world_size }) }
}

fn in_json(segments: &[Segment]) -> String {
    serde_json::to_string(segments).expect("segments are plain data")
}

/// Remedy for states that do not fit together.
const SAVED_TOGETHER: &str = "pass the states that all ranks of one run saved at one moment";

/// Merges the states of all ranks of an uneven job into one.
fn merge(
    identity: &JobIdentity,
    states: &[LoaderState],
    replay_missing: bool,
    rank_steps: impl Fn(u64, &[Segment], u64) -> Result<Vec<u64>, PlanError>,
) -> Result<LoaderState, StateError> {
    let uneven = |text: String| Err(StateError::Uneven(text));
    for state in states {
        state.check_job(identity)?;
    }
    let Some(first) = states.iter().min_by_key(|state| state.epoch) else {
        return uneven("the list of states is empty; pass the state of each rank".into());
    };
    let Some((_, world_size)) = first.speaks_for else {
        return uneven("a list of states is for tail=\"uneven\"; pass one state".into());
    };
    let earlier = &first.segments[..first.segments.len() - 1];
    let mut steps: Vec<Option<u64>> = vec![None; world_size as usize];
    let mut most: Option<Vec<u64>> = None;
    for state in states {
        let Some((rank, of)) = state.speaks_for else {
            return uneven(format!("a state of the list speaks for no rank; {SAVED_TOGETHER}"));
        };
        let open = state.open();
        if (open.lanes, open.global_batch) != (first.open().lanes, first.open().global_batch) {
            return uneven(format!(
                "the state of rank {rank} has lanes={} and a global batch of {}, another one \
                 lanes={} and a global batch of {}; {SAVED_TOGETHER}",
                open.lanes,
                open.global_batch,
                first.open().lanes,
                first.open().global_batch
            ));
        }
        let place = match steps.get_mut(rank as usize) {
            Some(place) if of == world_size => place,
            _ => {
                return uneven(format!(
                    "states of {world_size} and of {of} ranks in one list; {SAVED_TOGETHER}"
                ));
            }
        };
        let taken = if state.epoch == first.epoch {
            let history = &state.segments[..state.segments.len() - 1];
            if history != earlier {
                return uneven(format!(
                    "the state of rank {rank} has the earlier segments {}, another one {}; \
                     {SAVED_TOGETHER}",
                    in_json(history),
                    in_json(earlier)
                ));
            }
            open.steps.most()
        } else if state.epoch == first.epoch.saturating_add(1) && open.steps.most() == 0 {
            let most = match &mut most {
                Some(most) => most,
                None => most.insert(rank_steps(first.epoch, &first.segments, world_size)?),
            };
            most[rank as usize]
        } else {
            return uneven(format!(
                "rank {rank} is in epoch {}, another rank in epoch {}; save the states of all \
                 ranks at one moment, best after a barrier at the end of an epoch",
                state.epoch, first.epoch
            ));
        };
        if place.replace(taken).is_some() {
            return uneven(format!("two states of rank {rank} in one list; pass one of each rank"));
        }
    }
    let missing: Vec<usize> = (0..steps.len()).filter(|&rank| steps[rank].is_none()).collect();
    if !missing.is_empty() && !replay_missing {
        return uneven(format!(
            "no state of rank {missing:?} of {world_size}; pass all, or missing=\"replay\" to \
             deliver again the samples those ranks had since their last start"
        ));
    }
    if !missing.is_empty() && first.epoch > 0 && steps.iter().flatten().all(|&taken| taken == 0) {
        return uneven(format!(
            "all states are at the beginning of epoch {}, so rank {missing:?} may have left some \
             of the epoch before; start that epoch again, or pass all states",
            first.epoch
        ));
    }
    let mut merged = first.clone();
    let open = merged.segments.last_mut().expect("a state has segments");
    open.steps = Steps::PerRank(steps.into_iter().map(|s| s.unwrap_or(0)).collect()).normalized();
    merged.generation = states.iter().map(|state| state.generation).max().unwrap_or(0);
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::EPOCHS;
    use crate::job::tests::identity;

    fn start(batch_size: u64, world_size: u64) -> Start {
        Start { lanes: None, batch_size, rank: 0, world_size }
    }

    fn after(cursor: &mut Cursor, steps: u64) -> LoaderState {
        for _ in 0..steps {
            cursor.advance(100);
        }
        cursor.state()
    }

    #[test]
    fn a_step_is_consumed_and_the_last_one_ends_the_epoch() {
        let mut cursor = Cursor::new(identity(), start(4, 2)).unwrap();
        cursor.advance(2);
        assert_eq!((cursor.epoch(), cursor.step()), (0, 1));
        cursor.advance(2);
        assert_eq!((cursor.epoch(), cursor.step()), (1, 0));
    }

    #[test]
    fn each_start_from_a_token_is_the_next_generation() {
        let mut cursor = Cursor::new(identity(), start(4, 2)).unwrap();
        let state = after(&mut cursor, 3);
        for _ in 0..2 {
            let again = Cursor::resume(identity(), start(4, 2), &state).unwrap();
            assert_eq!((again.generation(), again.step()), (1, 3));
        }
    }

    #[test]
    fn set_epoch_stays_right_after_loading_and_moves_otherwise() {
        let mut cursor = Cursor::new(identity(), start(4, 2)).unwrap();
        let state = after(&mut cursor, 3);
        let mut again = Cursor::resume(identity(), start(4, 2), &state).unwrap();
        assert_eq!(again.set_epoch(0), Ok(false));
        assert_eq!(again.step(), 3);
        // Moving back delivers steps again, so it opens a new generation; moving forward does not.
        assert_eq!(again.set_epoch(0), Ok(true));
        assert_eq!((again.epoch(), again.step(), again.generation()), (0, 0, 2));
        assert_eq!(again.set_epoch(5), Ok(true));
        assert_eq!((again.epoch(), again.generation()), (5, 2));
        assert_eq!(again.set_epoch(5), Ok(false));
    }

    #[test]
    fn set_epoch_refuses_what_a_token_of_that_epoch_is_refused_for() {
        let mut cursor = Cursor::new(identity(), start(4, 2)).unwrap();
        let before = cursor.clone();
        for epoch in [EPOCHS, 1 << 62, u64::MAX] {
            let error = cursor.set_epoch(epoch).unwrap_err();
            assert_eq!(error, PlanError::NoSuchEpoch { epoch });
            let state = LoaderState { epoch, ..cursor.state() }.to_json();
            assert_eq!(LoaderState::from_json(&state), Err(StateError::Plan(error)));
        }
        assert_eq!(cursor, before);
        assert_eq!(cursor.set_epoch(EPOCHS - 1), Ok(true));
        assert_eq!(LoaderState::from_json(&cursor.state().to_json()), Ok(cursor.state()));
    }

    #[test]
    fn another_batch_opens_a_segment_and_the_next_epoch_keeps_it() {
        let mut cursor = Cursor::new(identity(), start(4, 2)).unwrap();
        let state = after(&mut cursor, 3);
        let mut again = Cursor::resume(identity(), start(6, 1), &state).unwrap();
        let numbers = |cursor: &Cursor| -> Vec<(u64, u64, u64)> {
            let each = |s: &Segment| (s.lanes, s.global_batch, s.steps.most());
            cursor.segments().iter().map(each).collect()
        };
        assert_eq!(numbers(&again), [(2, 8, 3), (2, 6, 0)]);
        // No step of it was consumed, so a further change replaces it.
        let third = Cursor::resume(identity(), start(4, 1), &again.state()).unwrap();
        assert_eq!(numbers(&third), [(2, 8, 3), (2, 4, 0)]);
        // A change back to the previous values continues the previous segment.
        let back = Cursor::resume(identity(), start(4, 2), &again.state()).unwrap();
        assert_eq!(numbers(&back), [(2, 8, 3)]);
        again.finish_epoch();
        assert_eq!(numbers(&again), [(2, 6, 0)]);
    }

    #[test]
    fn the_same_batch_by_other_ranks_is_the_same_segment() {
        let mut cursor = Cursor::new(identity(), start(4, 2)).unwrap();
        let state = after(&mut cursor, 3);
        for world_size in [1, 2, 4, 8] {
            let again = Cursor::resume(identity(), start(8 / world_size, world_size), &state);
            assert_eq!(again.unwrap().segments(), cursor.segments());
        }
        let error = Cursor::resume(identity(), start(5, 1), &state).unwrap_err();
        assert!(matches!(error, StateError::Plan(PlanError::LanesDoNotDivide { lanes: 2, .. })));
    }

    #[test]
    fn seventeen_segments_are_refused() {
        let mut cursor = Cursor::new(identity(), start(2, 1)).map(|mut c| {
            c.advance(100);
            c
        });
        for batch_size in 2..=17 {
            let state = cursor.as_ref().unwrap().state();
            cursor = Cursor::resume(identity(), start(batch_size * 2, 1), &state)
                .map_err(|_| PlanError::TooManySegments);
            if let Ok(cursor) = &mut cursor {
                cursor.advance(100);
            }
            let many = batch_size == 17;
            assert_eq!(cursor.is_err(), many, "after {batch_size}");
        }
    }

    #[test]
    fn uneven_tokens_merge_to_a_list_of_steps() {
        let mut identity = identity();
        identity.tail = Tail::Uneven;
        let states: Vec<LoaderState> = (0..2)
            .map(|rank| {
                let start = Start { rank, ..start(4, 2) };
                let mut cursor = Cursor::new(identity.clone(), start).unwrap();
                after(&mut cursor, 3 * rank + 1)
            })
            .collect();
        let none = |_: u64, _: &[Segment], _: u64| unreachable!("both are in one epoch");
        let merged = Cursor::resume_uneven(identity, start(3, 4), &states, false, none).unwrap();
        assert_eq!(merged.segments()[0].steps, Steps::PerRank(vec![1, 4]));
    }

    #[test]
    fn every_refused_list_of_tokens_says_why_and_what_to_pass() {
        let uneven = JobIdentity { tail: Tail::Uneven, ..identity() };
        // Returns the state of a rank of `world_size` after `steps` of an epoch.
        let state = |(rank, world_size): (u64, u64), epoch: u64, steps: u64| {
            let start = Start { lanes: Some(2), rank, ..start(8 / world_size, world_size) };
            let mut cursor = Cursor::new(uneven.clone(), start).unwrap();
            cursor.set_epoch(epoch).unwrap();
            after(&mut cursor, steps)
        };
        let (first, second) = (state((0, 2), 0, 1), state((1, 2), 0, 4));
        let changed = |change: &dyn Fn(&mut LoaderState)| {
            let mut state = second.clone();
            change(&mut state);
            state
        };
        let of_no_rank = changed(&|state| state.speaks_for = None);
        let batched = changed(&|state| state.segments[0].global_batch = 16);
        let grown = changed(&|state| state.segments.insert(0, state.segments[0].clone()));
        let lists = [
            ("none", vec![]),
            ("of no rank", vec![of_no_rank.clone()]),
            ("one of no rank", vec![first.clone(), of_no_rank]),
            ("another batch", vec![first.clone(), batched]),
            ("another world", vec![first.clone(), state((3, 4), 0, 4)]),
            ("another history", vec![first.clone(), grown]),
            ("far apart", vec![first.clone(), state((1, 2), 5, 1)]),
            ("one twice", vec![first.clone(), first.clone()]),
            ("one missing", vec![first.clone()]),
            ("one missing that may be behind", vec![state((0, 2), 3, 0)]),
        ];
        let mut said = String::new();
        for (what, states) in lists {
            let unasked = |_: u64, _: &[Segment], _: u64| unreachable!("all are in one epoch");
            let replayed = what.ends_with("behind");
            let start = start(3, 4);
            let refused = Cursor::resume_uneven(uneven.clone(), start, &states, replayed, unasked);
            said += &format!("{what}: {}\n", refused.unwrap_err());
        }
        let one = Cursor::resume(uneven, Start { rank: 1, ..start(4, 2) }, &first).unwrap_err();
        said += &format!("one for another rank: {one}\n");
        expect![[r#"
            none: the list of states is empty; pass the state of each rank
            of no rank: a list of states is for tail="uneven"; pass one state
            one of no rank: a state of the list speaks for no rank; pass the states that all ranks of one run saved at one moment
            another batch: the state of rank 1 has lanes=2 and a global batch of 16, another one lanes=2 and a global batch of 8; pass the states that all ranks of one run saved at one moment
            another world: states of 2 and of 4 ranks in one list; pass the states that all ranks of one run saved at one moment
            another history: the state of rank 1 has the earlier segments [[2,8,4]], another one []; pass the states that all ranks of one run saved at one moment
            far apart: rank 1 is in epoch 5, another rank in epoch 0; save the states of all ranks at one moment, best after a barrier at the end of an epoch
            one twice: two states of rank 0 in one list; pass one of each rank
            one missing: no state of rank [1] of 2; pass all, or missing="replay" to deliver again the samples those ranks had since their last start
            one missing that may be behind: all states are at the beginning of epoch 3, so rank [1] may have left some of the epoch before; start that epoch again, or pass all states
            one for another rank: with tail="uneven" a state speaks for one rank: this one is of rank 0 of 2, loaded by rank 1 of 2; to continue with other ranks or another batch size pass the states of all 2 ranks as a list
        "#]].assert_eq(&said);
    }
}
