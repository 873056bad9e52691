//! A scripted control: the rank's reactions to its answers.

use super::*;

fn piece(group: u64, from: u64, to: u64) -> GroupRange {
    GroupRange { group, from, to }
}

/// Returns the first claim of an epoch.
fn first(granted: &Granted) -> Claim {
    granted.due(10, 0, false).expect("nothing is known yet")
}

/// Returns control's answer: the list from the first group range that the rank does not know.
fn told(asked: &Claim, pieces: &[GroupRange]) -> Grant {
    let samples = pieces.iter().map(GroupRange::samples).sum();
    let pieces = pieces[asked.known as usize..].to_vec();
    Grant { first: asked.known, pieces, samples, ..Grant::default() }
}

fn uneven(batch_size: u64) -> Granted {
    Granted::new(batch_size, (0, 0))
}

/// Begins all granted steps; returns them with their contents.
fn begin_all(granted: &mut Granted) -> Vec<(u64, Vec<GroupRange>)> {
    std::iter::from_fn(|| match granted.begin() {
        Some(NextStep::Step(step)) => Some((step.step, step.pieces)),
        Some(NextStep::Ended { .. }) | None => None,
    })
    .collect()
}

#[test]
fn batches_begin_as_their_pieces_arrive() {
    let mut granted = uneven(4);
    assert_eq!(granted.upcoming(), None);
    let asked = first(&granted);
    assert_eq!((asked.started, asked.known, asked.wants), (0, 0, 10));
    let list = [piece(0, 0, 5), piece(3, 0, 9)];
    assert_eq!(granted.answer(&asked, &told(&asked, &list[..1])), Ok(true));
    assert_eq!(begin_all(&mut granted), [(0, vec![piece(0, 0, 4)])]);
    assert_eq!(granted.upcoming(), None, "the batch is not whole");
    let asked = granted.due(10, 0, false).unwrap();
    assert_eq!((asked.started, asked.known), (4, 1));
    granted.answer(&asked, &told(&asked, &list)).unwrap();
    let expected = [(1, vec![piece(0, 4, 5), piece(3, 0, 3)]), (2, vec![piece(3, 3, 7)])];
    assert_eq!(begin_all(&mut granted), expected);
    assert_eq!((granted.started, granted.rest()), (12, 2));
}

#[test]
fn the_next_group_is_known_before_its_batch() {
    let mut granted = uneven(4);
    let asked = first(&granted);
    let list = [piece(0, 0, 8), piece(0, 8, 9), piece(3, 2, 9)];
    granted.answer(&asked, &told(&asked, &list)).unwrap();
    let Some(NextStep::Step(step)) = granted.begin() else { panic!() };
    assert_eq!(step.then, Some(piece(3, 2, 9)));
}

#[test]
fn nothing_is_asked_while_enough_is_granted() {
    let mut granted = uneven(4);
    let asked = first(&granted);
    granted.answer(&asked, &told(&asked, &[piece(0, 0, 16)])).unwrap();
    assert_eq!(granted.due(10, 0, false), None);
    assert_eq!(
        granted.due(10, 0, true).map(|take| (take.wants, take.wait.is_zero())),
        Some((0, true))
    );
    granted.begin();
    granted.begin();
    let asked = granted.due(10, 0, false).unwrap();
    assert_eq!((asked.started, asked.wants, asked.wait.is_zero()), (8, 10, false));
}

#[test]
fn a_revocation_in_mid_piece_keeps_the_batches_that_were_begun() {
    let mut granted = uneven(4);
    let asked = first(&granted);
    granted.answer(&asked, &told(&asked, &[piece(0, 0, 20), piece(1, 0, 20)])).unwrap();
    for _ in 0..3 {
        granted.begin();
    }
    let asked = granted.due(10, 0, true).unwrap();
    let grant = Grant { revoke_from: Some(7), ..told(&asked, &[piece(0, 0, 20), piece(1, 0, 20)]) };
    assert_eq!(granted.answer(&asked, &grant), Ok(true));
    assert_eq!((granted.started, granted.rest()), (12, 0), "two of its samples were begun");
    assert_eq!(granted.upcoming(), None);
    let asked = granted.due(10, 0, false).unwrap();
    assert_eq!(
        (asked.released, asked.known, asked.wait.is_zero()),
        (Some(Release { from: 12, version: 0 }), 1, true)
    );
    // The answer is lost; then it arrives.
    assert_eq!(granted.due(10, 0, false), Some(asked.clone()));
    granted.answer(&asked, &told(&asked, &[piece(0, 0, 12), piece(4, 0, 4)])).unwrap();
    assert_eq!(granted.due(10, 0, false).unwrap().released, None);
    assert_eq!(begin_all(&mut granted), [(3, vec![piece(4, 0, 4)])]);
}

#[test]
fn a_revocation_beyond_what_was_begun_keeps_what_comes_before_it() {
    let mut granted = uneven(4);
    let asked = first(&granted);
    let list = [piece(0, 0, 20), piece(1, 0, 20)];
    let grant = Grant { revoke_from: Some(30), ..told(&asked, &list) };
    granted.answer(&asked, &grant).unwrap();
    assert_eq!(granted.due(10, 0, false).unwrap().released, Some(Release { from: 30, version: 0 }));
    assert_eq!(begin_all(&mut granted).len(), 7);
}

#[test]
fn a_closed_run_ends_with_a_short_batch_and_the_next_one_begins_after_it() {
    let mut granted = uneven(4);
    let asked = first(&granted);
    granted.answer(&asked, &told(&asked, &[piece(0, 0, 6)])).unwrap();
    assert_eq!(begin_all(&mut granted).len(), 1);
    let asked = granted.due(10, 0, false).unwrap();
    let closed = Grant { closed: vec![6], ..told(&asked, &[piece(0, 0, 6)]) };
    assert_eq!(granted.answer(&asked, &closed), Ok(true));
    assert_eq!(begin_all(&mut granted), [(1, vec![piece(0, 4, 6)])]);
    assert_eq!(granted.upcoming(), None, "others may leave something");
    let asked = granted.due(10, 0, false).unwrap();
    let again = Grant { closed: vec![6], ..told(&asked, &[piece(0, 0, 6), piece(9, 1, 5)]) };
    granted.answer(&asked, &again).unwrap();
    assert_eq!(begin_all(&mut granted), [(2, vec![piece(9, 1, 5)])]);
    let asked = granted.due(10, 0, false).unwrap();
    let ended = Grant { ended: true, ..again.clone() };
    let ended = Grant { first: asked.known, pieces: vec![], ..ended };
    granted.answer(&asked, &ended).unwrap();
    assert_eq!(granted.begin(), Some(NextStep::Ended { steps: 3 }));
    assert_eq!(granted.due(10, 0, false), None, "nothing more is asked");
}

#[test]
fn it_starts_again_at_an_exact_sample() {
    let list = [piece(0, 0, 6), piece(2, 0, 9), piece(5, 3, 9)];
    let closed = vec![15];
    for from in 0..=5 {
        let mut whole = uneven(4);
        let asked = first(&whole);
        let grant = |asked: &Claim| Grant { closed: closed.clone(), ..told(asked, &list) };
        whole.answer(&asked, &grant(&asked)).unwrap();
        let expected = begin_all(&mut whole).split_off(from as usize);
        let mut again = Granted::new(4, (0, from));
        let asked = first(&again);
        again.answer(&asked, &grant(&asked)).unwrap();
        assert_eq!(begin_all(&mut again), expected, "from step {from}");
    }
}

#[test]
fn a_list_that_is_told_in_parts_places_the_start_when_it_reaches_so_far() {
    let mut granted = Granted::new(4, (0, 3));
    let asked = first(&granted);
    let list = [piece(0, 0, 6), piece(1, 0, 9)];
    let part = Grant { pieces: list[..1].to_vec(), ..told(&asked, &list) };
    granted.answer(&asked, &part).unwrap();
    assert_eq!(granted.upcoming(), None);
    let asked = granted.due(10, 0, false).unwrap();
    assert_eq!((asked.known, asked.wait.is_zero()), (1, true));
    granted.answer(&asked, &told(&asked, &list)).unwrap();
    assert_eq!(granted.started, 12);
}

#[test]
fn steps_of_earlier_generations_count() {
    let mut granted = Granted::new(2, (0, 7));
    let asked = first(&granted);
    let grant = Grant { first_step: 7, ..told(&asked, &[piece(4, 1, 5)]) };
    granted.answer(&asked, &grant).unwrap();
    assert_eq!(begin_all(&mut granted), [(7, vec![piece(4, 1, 3)]), (8, vec![piece(4, 3, 5)])]);
}

#[test]
fn a_list_that_lacks_what_was_consumed_has_lapsed() {
    let mut granted = Granted::new(4, (0, 3));
    let asked = first(&granted);
    assert_eq!(granted.answer(&asked, &told(&asked, &[piece(0, 0, 6)])), Err(Lapsed));
}

#[test]
fn a_list_that_is_told_anew_must_be_the_one_that_was_begun() {
    let begun = || {
        let mut granted = uneven(4);
        let asked = first(&granted);
        granted.answer(&asked, &told(&asked, &[piece(0, 0, 5), piece(0, 5, 9)])).unwrap();
        granted.begin();
        granted.begin();
        granted
    };
    let anew = |pieces: &[GroupRange]| {
        let mut granted = begun();
        let asked = granted.due(10, 0, false).unwrap();
        let samples = pieces.iter().map(GroupRange::samples).sum();
        let grant = Grant { first: 0, pieces: pieces.to_vec(), samples, ..Grant::default() };
        granted.answer(&asked, &grant).map(|_| granted)
    };
    let mut same = anew(&[piece(0, 0, 8), piece(7, 0, 4)]).unwrap();
    assert_eq!(begin_all(&mut same), [(2, vec![piece(7, 0, 4)])]);
    assert!(anew(&[piece(0, 0, 4), piece(7, 0, 8)]).is_err(), "another one");
    assert!(anew(&[piece(0, 0, 4)]).is_err(), "a shorter one");
}

#[test]
fn an_answer_of_another_epoch_changes_nothing() {
    let mut granted = Granted::new(4, (1, 0));
    let asked = Claim { epoch: 0, ..first(&granted) };
    assert_eq!(granted.answer(&asked, &told(&asked, &[piece(0, 0, 8)])), Ok(false));
    assert_eq!(granted.upcoming(), None);
}

#[test]
fn only_what_lies_before_the_horizon_of_this_version_is_open() {
    let mut granted = uneven(4);
    let asked = first(&granted);
    let list = [piece(0, 0, 20)];
    granted.answer(&asked, &Grant { horizon: 4, ..told(&asked, &list) }).unwrap();
    begin_all(&mut granted);
    let open = |granted: &Granted| (0..5).filter(|step| granted.is_open(*step)).count();
    assert_eq!(open(&granted), 1);
    // Less than the threshold is left of the distance: more is claimed at once.
    let asked = granted.due(0, 16, false).unwrap();
    assert_eq!((asked.wants, asked.ahead, asked.wait), (0, 16, Duration::ZERO));
    granted.answer(&asked, &Grant { horizon: 16, ..told(&asked, &list) }).unwrap();
    assert_eq!((open(&granted), granted.due(0, 16, false)), (4, None));
    assert_eq!((granted.consume(3), granted.consume(3), granted.consume(1)), (12, 0, 0));
    assert!(granted.due(0, 16, false).is_some());
    // The list was cut meanwhile: an answer about an older version opens nothing.
    granted.answer(&asked, &Grant { horizon: 16, version: 2, ..told(&asked, &list) }).unwrap();
    granted.answer(&asked, &Grant { horizon: 20, version: 1, ..told(&asked, &list) }).unwrap();
    assert_eq!(open(&granted), 4);
}

#[test]
fn what_is_given_back_is_not_open_when_other_pieces_take_its_place() {
    let mut granted = uneven(4);
    let asked = first(&granted);
    let list = [piece(0, 0, 20)];
    let all = Grant { horizon: 20, revoke_from: Some(8), ..told(&asked, &list) };
    granted.answer(&asked, &all).unwrap();
    let open = |granted: &Granted| (0..5).filter(|step| granted.is_open(*step)).count();
    assert_eq!(open(&granted), 2);
    let asked = granted.due(20, 0, false).unwrap();
    assert_eq!((asked.known, asked.released), (1, Some(Release { from: 8, version: 0 })));
    let other = [piece(0, 0, 8), piece(7, 0, 12)];
    let grant = Grant { horizon: 8, version: 1, ..told(&asked, &other) };
    granted.answer(&asked, &grant).unwrap();
    assert_eq!(open(&granted), 2);
}

#[test]
fn an_epoch_that_others_consumed_has_ended_wherever_the_rank_stands() {
    let mut granted = Granted::new(4, (0, 7));
    let asked = first(&granted);
    granted.answer(&asked, &Grant { ended: true, ..told(&asked, &[]) }).unwrap();
    assert_eq!(granted.begin(), Some(NextStep::Ended { steps: 7 }));
}
