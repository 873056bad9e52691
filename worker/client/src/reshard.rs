//! Moves within an epoch: its rest for another number of ranks, or without the next steps. Pure.

use shardfeed_plan::{Cursor, LEFT_OUT_MAX, SEGMENTS_MAX, Segment, Start, Steps, Tail};
use shardfeed_source::LoadError;

/// Returns the cursor after a reshard from `step` of its epoch on.
/// - `rank`: `None` keeps the cursor's rank.
///
/// # Errors  The numbers do not fit; the message names some that do.
pub(crate) fn reshard(
    cursor: &Cursor,
    step: u64,
    world_size: u64,
    rank: Option<u64>,
) -> Result<Cursor, LoadError> {
    let bad = |message: String| Err(LoadError::Option(message));
    let (epoch, own_step, before) = (cursor.epoch(), cursor.step(), cursor.start());
    if cursor.identity().is_dynamic() {
        return bad(
            "reshard() is for mode=\"deterministic\"; with mode=\"dynamic\" the remaining samples \
             of a lost rank go to the others, or create the loaders again with resume= a state"
                .into(),
        );
    }
    if cursor.identity().tail == Tail::Uneven {
        return bad(
            "reshard() needs steps that are the same on all ranks; with tail=\"uneven\" create \
                    the loaders again with resume= the states of all ranks"
                .into(),
        );
    }
    if step > own_step {
        if own_step == 0 && epoch > 0 {
            return bad(format!(
                "reshard(step={step}) lies beyond this rank: it is at the beginning of epoch \
                 {epoch}; if it is a step of epoch {} that a lost rank did not take, create the \
                 loaders again with resume= a state of that epoch",
                epoch - 1
            ));
        }
        return bad(format!(
            "reshard(step={step}) lies beyond this rank: it is at step {own_step} of epoch {epoch}; \
             pass the least step of all ranks that continue"
        ));
    }
    let global_batch = before.batch_size * before.world_size;
    if world_size == 0 || !global_batch.is_multiple_of(world_size) {
        let sizes = around(global_batch, world_size);
        return bad(format!(
            "reshard(world_size={world_size}) does not divide the global batch of {global_batch}; use a \
             world_size of {sizes}, or create the loaders again with resume= a state and another batch_size"
        ));
    }
    let rank = match rank {
        Some(rank) if rank >= world_size => {
            return bad(format!(
                "reshard(rank={rank}) is not in 0..{world_size}: ranks count from 0 to world_size - 1"
            ));
        }
        Some(rank) => rank,
        None if before.rank >= world_size => {
            return bad(format!(
                "this is rank {}, and reshard(world_size={world_size}) has ranks 0 to {}; pass rank= \
                 with the one that it becomes",
                before.rank,
                world_size - 1
            ));
        }
        None => before.rank,
    };
    let batch_size = global_batch / world_size;
    let mut state = cursor.state();
    let lanes = state.segments.last().map(|open| open.lanes);
    cut(&mut state.segments, step);
    state.left_out.cut(step);
    let start = Start { lanes, batch_size, rank, world_size };
    Ok(Cursor::resume(cursor.identity().clone(), start, &state)?)
}

/// Returns the cursor after the next `steps` steps of its epoch were left out, in a new generation.
/// - `all`: steps of the whole epoch; `None` for a dynamic job.
///
/// # Errors  The ranks have no equal steps, or so many are not left.
pub(crate) fn skip(cursor: &Cursor, steps: u64, all: Option<u64>) -> Result<Cursor, LoadError> {
    let bad = |message: String| Err(LoadError::Option(message));
    let (epoch, step) = (cursor.epoch(), cursor.step());
    let Some(all) = all.filter(|_| cursor.identity().tail != Tail::Uneven) else {
        return bad(format!(
            "skip(steps={steps}) needs steps that are the same on all ranks, and with tail=\"uneven\" \
             or mode=\"dynamic\" they are not; use mode=\"deterministic\" with another tail"
        ));
    };
    let left = all.saturating_sub(step);
    if steps >= left {
        return bad(format!(
            "skip(steps={steps}): epoch {epoch} has {left} more steps, and one must remain; leave out at \
             most {}, or begin the next epoch with set_epoch({})",
            left.saturating_sub(1),
            epoch.saturating_add(1)
        ));
    }
    let mut state = cursor.state();
    let open = state.segments.last_mut().expect("a state has segments");
    open.steps = Steps::All(open.steps.most() + steps);
    state.left_out.add(step, step + steps);
    if !state.left_out.fits_beside(&state.segments) {
        return bad(format!(
            "skip(steps={steps}): a state names at most {LEFT_OUT_MAX} parts of an epoch that are left \
             out, and at most {SEGMENTS_MAX} of these and of its segments, and epoch {epoch} has as many"
        ));
    }
    Ok(Cursor::resume(cursor.identity().clone(), *cursor.start(), &state)?)
}

/// Truncates segments to an earlier step of their epoch.
fn cut(segments: &mut Vec<Segment>, step: u64) {
    let mut left = step;
    for index in 0..segments.len() {
        let steps = segments[index].steps.most();
        if left <= steps {
            segments[index].steps = Steps::All(left);
            return segments.truncate(index + 1);
        }
        left -= steps;
    }
}

/// Names the divisors of a global batch that are nearest to a number that is not one.
fn around(global_batch: u64, number: u64) -> String {
    let divides = |candidate: &u64| global_batch.is_multiple_of(*candidate);
    let below = (1..=global_batch.min(number.saturating_sub(1))).rev().find(divides);
    let above = (number.saturating_add(1)..=global_batch).find(divides);
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} or {above}"),
        (one, other) => one.or(other).unwrap_or(1).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_plan::{Digest, JobIdentity, Mode, ORDER_VERSION, Shuffle};
    use shardfeed_reader::EncodedSpec;

    use super::*;

    fn cursor(rank: u64, steps: u64) -> Cursor {
        let content = Digest::from_bytes([7; 32]);
        let shuffle = Shuffle {
            digest: content,
            seed: 1,
            enabled: true,
            window: 8,
            interleave: 2,
            block_length: 1,
        };
        let (records, decoder) = (EncodedSpec::raw().records(), "none".to_owned());
        let identity = JobIdentity {
            order: ORDER_VERSION,
            content,
            shuffle,
            lanes: 4,
            tail: Tail::Pad,
            records,
            decoder,
            mode: Mode::Deterministic,
        };
        let start = Start { lanes: None, batch_size: 6, rank, world_size: 4 };
        let mut cursor = Cursor::new(identity, start).unwrap();
        (0..steps).for_each(|_| cursor.advance(100));
        cursor
    }

    fn refused(of: &Cursor, step: u64, world_size: u64, rank: Option<u64>) -> String {
        reshard(of, step, world_size, rank).unwrap_err().to_string()
    }

    #[test]
    fn the_global_batch_and_the_lanes_stay() {
        let after = reshard(&cursor(3, 9), 7, 3, Some(2)).unwrap();
        let lanes = Some(4);
        assert_eq!(*after.start(), Start { lanes, rank: 2, world_size: 3, batch_size: 8 });
        assert_eq!((after.epoch(), after.step(), after.generation()), (0, 7, 1));
        let segment = |steps| Segment { lanes: 4, global_batch: 24, steps: Steps::All(steps) };
        assert_eq!(after.segments(), [segment(7)]);
        let again = reshard(&after, 2, 6, None).unwrap();
        assert_eq!(*again.start(), Start { lanes, rank: 2, world_size: 6, batch_size: 4 });
        assert_eq!((again.segments(), again.generation()), (&[segment(2)][..], 2));
    }

    #[test]
    fn a_step_of_an_earlier_segment_is_found() {
        let state = cursor(0, 3).state();
        let start = Start { lanes: Some(2), batch_size: 6, rank: 0, world_size: 2 };
        let mut later = Cursor::resume(cursor(0, 0).identity().clone(), start, &state).unwrap();
        (0..4).for_each(|_| later.advance(100));
        let numbers = |step| {
            let after = reshard(&later, step, 1, None).unwrap();
            assert_eq!(after.step(), step);
            let each = |s: &Segment| (s.lanes, s.global_batch, s.steps.most());
            after.segments().iter().map(each).collect::<Vec<_>>()
        };
        assert_eq!(numbers(5), [(4, 24, 3), (2, 12, 2)]);
        assert_eq!(numbers(3), [(4, 24, 3), (2, 12, 0)]);
        assert_eq!(numbers(2), [(4, 24, 2), (2, 12, 0)]);
        assert_eq!(numbers(0), [(2, 12, 0)]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        let of = cursor(3, 9);
        let mut next = of.clone();
        next.set_epoch(2).unwrap();
        let changed = |change: &dyn Fn(&mut JobIdentity)| {
            let mut identity = of.identity().clone();
            change(&mut identity);
            Cursor::new(identity, *of.start()).unwrap()
        };
        let dynamic = changed(&|identity| {
            (identity.mode, identity.tail) = (Mode::Dynamic, Tail::Uneven);
        });
        let uneven = changed(&|identity| identity.tail = Tail::Uneven);
        let said = [
            refused(&dynamic, 0, 3, Some(0)),
            refused(&uneven, 0, 3, Some(0)),
            refused(&of, 10, 3, Some(0)),
            refused(&next, 10, 3, Some(0)),
            refused(&of, 9, 5, Some(0)),
            refused(&of, 9, 0, None),
            refused(&of, 9, 30, None),
            refused(&of, 9, 3, None),
            refused(&of, 9, 3, Some(3)),
        ];
        assert_eq!(
            said,
            [
                "reshard() is for mode=\"deterministic\"; with mode=\"dynamic\" the remaining \
                 samples of a lost rank go to the others, or create the loaders again with resume= \
                 a state",
                "reshard() needs steps that are the same on all ranks; with tail=\"uneven\" create \
                 the loaders again with resume= the states of all ranks",
                "reshard(step=10) lies beyond this rank: it is at step 9 of epoch 0; pass the least \
                 step of all ranks that continue",
                "reshard(step=10) lies beyond this rank: it is at the beginning of epoch 2; if it \
                 is a step of epoch 1 that a lost rank did not take, create the loaders again with \
                 resume= a state of that epoch",
                "reshard(world_size=5) does not divide the global batch of 24; use a world_size of \
                 4 or 6, or create the loaders again with resume= a state and another batch_size",
                "reshard(world_size=0) does not divide the global batch of 24; use a world_size of \
                 1, or create the loaders again with resume= a state and another batch_size",
                "reshard(world_size=30) does not divide the global batch of 24; use a world_size of \
                 24, or create the loaders again with resume= a state and another batch_size",
                "this is rank 3, and reshard(world_size=3) has ranks 0 to 2; pass rank= with the \
                 one that it becomes",
                "reshard(rank=3) is not in 0..3: ranks count from 0 to world_size - 1",
            ]
        );
    }
}
