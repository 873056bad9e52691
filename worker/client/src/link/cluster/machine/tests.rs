//! One test for each row of the table.

use shardfeed_plan::{Intent, LeftOut, Sample};
use shardfeed_proto::trainer::v1 as wire;

use super::*;

const WORKER: [State; 3] = [State::Idle, State::Starting, State::Running];
const NO_WORKER: [State; 4] =
    [State::Connecting, State::Opening, State::InProcess, State::Returning];
const OVER: [ErrorKind; 4] =
    [ErrorKind::Superseded, ErrorKind::Fenced, ErrorKind::Replaced, ErrorKind::Conflict];
const TIMEOUT: Duration = Duration::from_secs(5);

/// A machine that has asked for batches once and has no batch in hand.
fn machine(state: State) -> Machine<u64> {
    let rules = Rules { fallback: true, timeout: TIMEOUT, is_dynamic: false };
    let worker = Some(PathBuf::from("w.sock"));
    Machine { start: 1, ..Machine::new(rules, state, worker) }
}

fn dynamic(state: State) -> Machine<u64> {
    let mut machine = machine(state);
    machine.rules.is_dynamic = true;
    machine
}

fn without_fallback(state: State) -> Machine<u64> {
    let mut machine = machine(state);
    machine.rules.fallback = false;
    machine
}

fn all() -> impl Iterator<Item = State> {
    WORKER.into_iter().chain(NO_WORKER)
}

/// Puts batch 7 in hand, an earlier one on offer, and confirms the lease.
fn fill(machine: &mut Machine<u64>) -> LeaseTime {
    let (origin, now) = (machine.origin(), LeaseTime::now());
    let (epoch, step, batch, skipped) = (0, 1, Some(7), vec![]);
    machine.queue.push_back(Queued { origin, epoch, step, batch, skipped });
    machine.offer(origin);
    let number = machine.validity.due_request(now).unwrap();
    machine.validity.answered(number, Some(Duration::from_secs(60)));
    now
}

fn is_filling(machine: &Machine<u64>) -> bool {
    let filled = (machine.in_hand(), machine.is_offered());
    assert!(filled == (1, true) || filled == (0, false), "{filled:?}");
    filled.1
}

/// Processes an input that has no reply; returns the effect.
fn effect(machine: &mut Machine<u64>, input: Input<u64>) -> Option<Effect> {
    let step = machine.on(input, Instant::now());
    assert!(matches!(step.reply, Ok(None)), "{:?}", step.reply);
    step.effect
}

/// Processes an input that is refused; returns the error and the effect.
fn refused(machine: &mut Machine<u64>, input: Input<u64>) -> (String, Option<Effect>) {
    let step = machine.on(input, Instant::now());
    (step.reply.unwrap_err().to_string(), step.effect)
}

fn heard(machine: &mut Machine<u64>, heard: Heard<u64>) -> Option<Effect> {
    effect(machine, Input::Heard(heard))
}

fn wire_error(kind: ErrorKind) -> WireError {
    WireError::new(kind, "the reason")
}

fn failed(start: u64, kind: ErrorKind) -> Heard<u64> {
    Heard::Failed { start, error: wire_error(kind) }
}

fn batch(start: u64, skipped: Vec<Skipped>) -> Heard<u64> {
    Heard::Batch { start, epoch: 0, step: 2, batch: Some(8), skipped }
}

fn skipped(ordinal: u64) -> Skipped {
    Skipped {
        sample: Sample { shard: 0, ordinal },
        record: ordinal,
        offset: 0,
        reason: "torn".into(),
    }
}

fn started(start: u64) -> Heard<u64> {
    Heard::Started(wire::Started { start, generation: 3, hold_max: 4, ..Default::default() })
}

fn position() -> StartPosition {
    let intent = Intent::Reconnect { generation: 0, epoch: 0, step: 0 };
    StartPosition {
        intent,
        left: None,
        left_out: LeftOut::default(),
        epoch: 0,
        segments: vec![],
        step: 0,
    }
}

fn connect(patience: Duration) -> Option<Effect> {
    Some(Effect::Connect { path: Some("w.sock".into()), patience })
}

fn kept(machine: &Machine<u64>) -> Option<String> {
    machine.failure.as_ref().map(ToString::to_string)
}

#[test]
fn a_connected_worker_is_idle() {
    let mut machine = machine(State::Connecting);
    fill(&mut machine);
    assert_eq!(effect(&mut machine, Input::Connected), None);
    assert_eq!(machine.state(), State::Idle);
    assert!(is_filling(&machine));
}

#[test]
fn a_missing_or_cordoned_worker_is_replaced() {
    for error in [Unavailable::Absent("x".into()), Unavailable::Cordoned("x".into())] {
        let mut machine = machine(State::Connecting);
        fill(&mut machine);
        assert_eq!(effect(&mut machine, Input::NotConnected(error)), Some(Effect::Open));
        assert_eq!(machine.state(), State::Opening);
        assert!(is_filling(&machine));
    }
}

#[test]
fn a_refused_connection_is_an_error_and_tried_again() {
    let absent = || Unavailable::Absent("the reason".into());
    let refusal = Unavailable::Refused(wire_error(ErrorKind::Changed).into());
    let cases = [
        (machine(State::Connecting), refusal, connect(RETURN_WAIT)),
        (without_fallback(State::Connecting), absent(), connect(TIMEOUT)),
    ];
    for (mut machine, error, expected) in cases {
        machine.fail_later(LoadError::ReaderLost);
        let (said, effect) = refused(&mut machine, Input::NotConnected(error));
        assert_eq!((said.as_str(), effect), ("the reason", expected));
        assert_eq!((machine.state(), kept(&machine)), (State::Connecting, None));
    }
}

#[test]
fn an_opened_process_reads_and_reports_skipped_records() {
    let mut machine = machine(State::Opening);
    assert_eq!(effect(&mut machine, Input::Opened), Some(Effect::ReportSkipped));
    assert_eq!(machine.state(), State::InProcess);
}

#[test]
fn a_process_that_cannot_open_looks_for_a_worker() {
    let mut machine = machine(State::Opening);
    let (said, effect) = refused(&mut machine, Input::NotOpened(LoadError::ReaderLost));
    assert_eq!((said, effect), (LoadError::ReaderLost.to_string(), connect(RETURN_WAIT)));
    assert_eq!(machine.state(), State::Connecting);
}

#[test]
fn a_process_looks_for_a_worker_at_the_end_of_an_epoch() {
    let mut machine = machine(State::InProcess);
    let reconnect = Some(Effect::Reconnect { path: "w.sock".into() });
    assert_eq!(effect(&mut machine, Input::EpochEnded { is_reported: true }), reconnect);
    assert_eq!(machine.state(), State::Returning);
}

#[test]
fn a_process_stays_if_no_worker_may_come_or_its_position_is_unknown() {
    let mut unreported = machine(State::InProcess);
    assert_eq!(effect(&mut unreported, Input::EpochEnded { is_reported: false }), None);
    let mut alone = Machine { worker: None, ..machine(State::InProcess) };
    assert_eq!(effect(&mut alone, Input::EpochEnded { is_reported: true }), None);
    assert_eq!((unreported.state(), alone.state()), (State::InProcess, State::InProcess));
    let mut returning = machine(State::Returning);
    assert_eq!(effect(&mut returning, Input::EpochEnded { is_reported: true }), None);
    assert_eq!(returning.state(), State::Returning);
}

#[test]
fn a_worker_that_is_back_is_idle_on_a_new_connection() {
    let mut machine = machine(State::Returning);
    let before = machine.origin();
    assert_eq!(effect(&mut machine, Input::Reconnected), None);
    assert_eq!(machine.state(), State::Idle);
    assert_ne!(machine.origin(), before);
}

#[test]
fn a_worker_that_is_not_back_is_not_waited_for() {
    let mut machine = machine(State::Returning);
    assert_eq!(effect(&mut machine, Input::NotReconnected), None);
    assert_eq!(machine.state(), State::InProcess);
}

#[test]
fn a_stopped_process_keeps_its_state() {
    for state in [State::InProcess, State::Returning] {
        let mut machine = machine(state);
        let stop = || Some("failure".to_owned());
        let stopped = effect(&mut machine, Input::Stop { failure: stop() });
        assert_eq!(stopped, Some(Effect::Stop { failure: stop() }));
        assert_eq!(machine.state(), state);
    }
}

#[test]
fn an_idle_worker_is_asked_under_a_new_number() {
    let mut machine = machine(State::Idle);
    let expected = Effect::Start { start: 2, position: position() };
    assert_eq!(effect(&mut machine, Input::Ask(position())), Some(expected));
    assert_eq!((machine.state(), machine.start()), (State::Starting, 2));
}

#[test]
fn a_worker_that_reads_is_stopped() {
    for state in [State::Starting, State::Running] {
        let mut machine = machine(state);
        let stopped = effect(&mut machine, Input::Stop { failure: None });
        assert_eq!(stopped, Some(Effect::Stop { failure: None }));
        assert_eq!((machine.state(), machine.start()), (State::Idle, 2));
    }
}

#[test]
fn nothing_that_reads_needs_no_stop() {
    for state in [State::Idle, State::Connecting, State::Opening] {
        let mut machine = machine(state);
        assert_eq!(effect(&mut machine, Input::Stop { failure: None }), None);
        assert_eq!((machine.state(), machine.start()), (state, 1));
    }
}

#[test]
fn a_stop_drops_the_batches_and_the_error_in_hand() {
    for state in all() {
        let mut machine = machine(state);
        let now = fill(&mut machine);
        machine.fail_later(LoadError::ReaderLost);
        let _ = effect(&mut machine, Input::Stop { failure: None });
        assert!(!is_filling(&machine) && !machine.has_failure());
        assert!(!machine.validity.is_valid(now), "the validity was that of another lease");
    }
}

#[test]
fn a_start_is_reported() {
    for state in WORKER {
        let mut machine = machine(state);
        let step = machine.on(Input::Heard(started(1)), Instant::now());
        assert!(matches!(step.reply, Ok(Some(Event::Started { generation: 3 }))));
        assert_eq!((machine.state(), step.effect), (State::Running, None));
        assert_eq!(machine.hold_max(), 4);
    }
}

#[test]
fn a_batch_and_the_end_of_an_epoch_are_queued() {
    for state in WORKER {
        let mut machine = machine(state);
        machine.losses = Some((1, Instant::now()));
        machine.meet(&[skipped(0)]);
        assert_eq!(heard(&mut machine, batch(1, vec![skipped(0), skipped(1)])), None);
        let end = Heard::Batch { start: 1, epoch: 0, step: 3, batch: None, skipped: vec![] };
        assert_eq!(heard(&mut machine, end), None);
        assert_eq!((machine.state(), machine.losses), (state, None));
        assert_eq!(machine.met(), [skipped(1), skipped(0)], "each once, the latest first");
        let next = machine.next(true);
        assert!(matches!(next, Next::Return(Queued { step: 2, batch: Some(8), .. })), "{next:?}");
        let next = machine.next(true);
        assert!(matches!(next, Next::Return(Queued { step: 3, batch: None, .. })), "{next:?}");
    }
}

#[test]
fn batches_that_are_not_valid_any_more_are_dropped() {
    for state in WORKER {
        let mut machine = machine(state);
        fill(&mut machine);
        assert_eq!(heard(&mut machine, Heard::Again { start: 1 }), None);
        assert_eq!((machine.state(), machine.start()), (State::Idle, 1));
        assert!(!is_filling(&machine));
    }
}

#[test]
fn an_answer_about_the_validity_is_kept() {
    for state in WORKER {
        let (mut machine, now) = (dynamic(state), LeaseTime::now());
        let nonce = machine.validity.due_request(now).unwrap();
        let pong = Heard::Pong { nonce, good_for: Some(Duration::from_secs(9)) };
        assert_eq!(heard(&mut machine, pong), None);
        assert_eq!(machine.state(), state);
        assert!(machine.may_return(now + Duration::from_secs(8)));
        assert!(!machine.may_return(now + Duration::from_secs(9)));
    }
}

#[test]
fn a_rank_that_was_started_elsewhere_ends_at_once() {
    for (state, kind) in WORKER.into_iter().flat_map(|state| OVER.map(|kind| (state, kind))) {
        let mut machine = machine(state);
        fill(&mut machine);
        let (said, effect) = refused(&mut machine, Input::Heard(failed(1, kind)));
        assert_eq!((said.as_str(), effect), ("the reason", None));
        assert_eq!((machine.state(), machine.start()), (State::Idle, 2));
        assert!(!is_filling(&machine) && !machine.has_failure());
    }
}

#[test]
fn a_cordoned_worker_is_replaced_and_not_asked_again() {
    for state in WORKER {
        let mut machine = machine(state);
        fill(&mut machine);
        assert_eq!(heard(&mut machine, failed(0, ErrorKind::Cordoned)), Some(Effect::Open));
        assert_eq!((machine.state(), &machine.worker), (State::Opening, &None));
        assert!(is_filling(&machine));
    }
}

#[test]
fn another_failure_is_an_error_after_the_batches_in_hand() {
    for state in WORKER {
        let cases = [
            (machine(state), failed(1, ErrorKind::Corrupt)),
            (machine(state), failed(0, ErrorKind::Corrupt)),
            (without_fallback(state), failed(1, ErrorKind::Cordoned)),
        ];
        for (mut machine, failed) in cases {
            fill(&mut machine);
            assert_eq!(heard(&mut machine, failed), None);
            assert_eq!((machine.state(), machine.start()), (State::Idle, 1));
            assert!(is_filling(&machine));
            assert!(matches!(machine.next(true), Next::Return(_)));
            assert!(matches!(machine.next(true), Next::Fail(_)));
            assert!(matches!(machine.next(true), Next::Ask), "an error is returned once");
        }
    }
}

#[test]
fn a_worker_that_leaves_is_replaced() {
    for state in WORKER {
        let mut machine = machine(state);
        fill(&mut machine);
        let before = machine.origin();
        let goodbye = Heard::Goodbye("it ends".into());
        assert_eq!(heard(&mut machine, goodbye), Some(Effect::Open));
        assert_eq!((machine.state(), machine.losses), (State::Opening, None));
        assert_ne!(machine.origin(), before);
        assert!(is_filling(&machine));
        let mut dynamic = dynamic(state);
        fill(&mut dynamic);
        assert_eq!(heard(&mut dynamic, Heard::Goodbye("it ends".into())), Some(Effect::Open));
        assert!(!is_filling(&dynamic));
    }
}

#[test]
fn a_worker_that_leaves_without_fallback_is_lost() {
    for state in WORKER {
        let mut machine = without_fallback(state);
        let goodbye = Heard::Goodbye("it ends".into());
        assert_eq!(heard(&mut machine, goodbye), connect(TIMEOUT));
        assert_eq!(machine.state(), State::Connecting);
        assert!(machine.losses.is_some());
    }
}

#[test]
fn messages_of_an_earlier_start_are_dropped() {
    for state in WORKER {
        let mut machine = Machine { start: 2, ..machine(state) };
        fill(&mut machine);
        let messages = [
            started(1),
            batch(1, vec![skipped(0)]),
            Heard::Batch { start: 1, epoch: 0, step: 3, batch: None, skipped: vec![] },
            Heard::Again { start: 1 },
            failed(1, ErrorKind::Fenced),
            failed(1, ErrorKind::Corrupt),
            Heard::Other,
        ];
        for message in messages {
            assert_eq!(heard(&mut machine, message), None);
        }
        assert_eq!((machine.state(), machine.start()), (state, 2));
        assert!(is_filling(&machine) && !machine.has_failure() && machine.met().is_empty());
    }
}

#[test]
fn a_lost_worker_is_waited_for() {
    for state in WORKER {
        let mut machine = machine(state);
        fill(&mut machine);
        let before = machine.origin();
        let lost = effect(&mut machine, Input::Gone("it died".into()));
        assert_eq!((lost, machine.state()), (connect(RETURN_WAIT), State::Connecting));
        assert_ne!(machine.origin(), before);
        assert!(is_filling(&machine) && !machine.consume(), "another worker sent it");
        let mut dynamic = dynamic(state);
        let now = fill(&mut dynamic);
        let lost = effect(&mut dynamic, Input::Gone("it died".into()));
        assert_eq!(lost, connect(RETURN_WAIT));
        assert!(!is_filling(&dynamic) && !dynamic.may_return(now));
    }
}

#[test]
fn a_worker_that_is_lost_twice_without_a_batch_is_replaced() {
    let mut machine = machine(State::Running);
    let gone = || Input::Gone("it died".into());
    assert_eq!(effect(&mut machine, gone()), connect(RETURN_WAIT));
    assert_eq!(effect(&mut machine, Input::Connected), None);
    assert_eq!(heard(&mut machine, batch(1, vec![])), None);
    assert_eq!(effect(&mut machine, gone()), connect(RETURN_WAIT), "a batch came in between");
    assert_eq!(effect(&mut machine, Input::Connected), None);
    assert_eq!(effect(&mut machine, gone()), Some(Effect::Open));
    assert_eq!(machine.state(), State::Opening);
}

#[test]
fn without_fallback_a_worker_is_an_error_after_the_timeout() {
    let (mut machine, begun) = (without_fallback(State::Starting), Instant::now());
    let mut lose = |after: Duration| {
        machine.state = State::Starting;
        let step = machine.on(Input::Gone("it died".into()), begun + after);
        assert!(matches!(step.reply, Ok(None)));
        assert_eq!((step.effect, machine.state()), (connect(TIMEOUT), State::Connecting));
        kept(&machine)
    };
    assert_eq!(lose(Duration::ZERO), None);
    assert_eq!(lose(Duration::from_millis(4_900)), None);
    let said = lose(Duration::from_millis(5_500));
    assert_eq!(said.as_deref(), Some("the worker sent no batch in 5.5 s: it died"));
    assert_eq!(machine.losses, None);
}

#[test]
fn a_process_whose_rank_was_started_elsewhere_drops_the_batches_in_hand() {
    for kind in OVER {
        let mut machine = machine(State::InProcess);
        fill(&mut machine);
        let (said, effect) = refused(&mut machine, Input::NotRead(wire_error(kind).into()));
        assert_eq!((said.as_str(), effect), ("the reason", None));
        assert!(!is_filling(&machine) && !machine.has_failure());
        assert_eq!(machine.state(), State::InProcess);
    }
}

#[test]
fn a_process_that_cannot_read_delivers_the_batches_in_hand() {
    let mut machine = machine(State::InProcess);
    fill(&mut machine);
    assert!(machine.may_read_ahead());
    assert_eq!(effect(&mut machine, Input::NotRead(LoadError::ReaderLost)), None);
    assert!(!machine.may_read_ahead(), "the error is returned first");
    assert!(matches!(machine.next(true), Next::Return(_)));
    assert!(matches!(machine.next(true), Next::Fail(LoadError::ReaderLost)));
    assert!(matches!(machine.next(true), Next::Read));
}

#[test]
fn batches_of_a_deterministic_job_need_no_lease() {
    for state in all() {
        let mut machine = machine(state);
        let now = fill(&mut machine);
        machine.validity.forget();
        assert_eq!(effect(&mut machine, Input::Check(now)), None);
        assert!(machine.may_return(now) && is_filling(&machine));
        assert_eq!(machine.state(), state);
    }
}

#[test]
fn the_worker_is_asked_for_the_validity_of_a_dynamic_jobs_batches() {
    let mut machine = dynamic(State::Running);
    let now = fill(&mut machine);
    assert_eq!(effect(&mut machine, Input::Check(now)), None, "the answer is fresh");
    assert!(machine.may_return(now));
    let later = now + Duration::from_secs(40);
    assert_eq!(effect(&mut machine, Input::Check(later)), Some(Effect::Ping(2)));
    assert!(machine.may_return(later));
    let late = now + Duration::from_secs(60);
    assert!(!machine.may_return(late), "the lease may have ended");
    assert!(is_filling(&machine), "the batches wait");
    assert!(matches!(machine.next(false), Next::Hear));
    assert_eq!(machine.state(), State::Running);
}

#[test]
fn batches_of_a_dynamic_job_are_dropped_when_another_reader_starts() {
    for state in [State::Idle, State::Starting, State::InProcess, State::Returning] {
        let mut machine = dynamic(state);
        let now = fill(&mut machine);
        assert_eq!(effect(&mut machine, Input::Check(now)), None);
        assert!(!is_filling(&machine) && !machine.may_return(now));
        assert_eq!(machine.state(), state);
    }
}

#[test]
fn nothing_is_asked_while_no_reader_is_there() {
    for state in [State::Connecting, State::Opening] {
        let mut machine = dynamic(state);
        let now = fill(&mut machine);
        assert_eq!(effect(&mut machine, Input::Check(now)), None);
        assert_eq!(machine.state(), state);
        assert!(is_filling(&machine) && !machine.may_read_ahead());
    }
}

#[test]
fn other_pairs_of_state_and_input_change_nothing() {
    for state in NO_WORKER {
        let mut machine = machine(state);
        assert_eq!(heard(&mut machine, batch(1, vec![])), None);
        assert_eq!(effect(&mut machine, Input::Gone("it died".into())), None);
        assert_eq!(effect(&mut machine, Input::Ask(position())), None);
        assert_eq!((machine.state(), machine.start(), machine.in_hand()), (state, 1, 0));
    }
    let absent = || Unavailable::Absent("x".into());
    let lost = || LoadError::ReaderLost;
    for state in all() {
        let mut inputs = vec![];
        if state != State::Connecting {
            inputs.extend([Input::Connected, Input::NotConnected(absent())]);
        }
        if state != State::Opening {
            inputs.extend([Input::Opened, Input::NotOpened(lost())]);
        }
        if state != State::Returning {
            inputs.extend([Input::Reconnected, Input::NotReconnected]);
        }
        if state != State::InProcess {
            inputs.extend([true, false].map(|is_reported| Input::EpochEnded { is_reported }));
        }
        if state != State::Idle {
            inputs.push(Input::Ask(position()));
        }
        for input in inputs {
            let mut machine = machine(state);
            fill(&mut machine);
            assert_eq!(effect(&mut machine, input), None);
            assert_eq!((machine.state(), machine.start()), (state, 1));
            assert!(is_filling(&machine));
        }
    }
}

#[test]
fn a_batch_is_copied_if_the_trainer_holds_as_many_as_it_may() {
    let mut machine = machine(State::Running);
    let origin = machine.origin();
    machine.on(Input::Heard(started(1)), Instant::now()).reply.unwrap();
    fill(&mut machine);
    // 4 may be held, one is queued, and one is about to be returned.
    assert!(!machine.must_copy(origin, 5));
    assert!(machine.must_copy(origin, 6));
    machine.connection += 1;
    assert!(!machine.must_copy(origin, 6), "slots of a lost worker are not needed any more");
}
