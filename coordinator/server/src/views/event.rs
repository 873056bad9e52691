//! Events as messages.

use serde_json::Value;
use shardfeed_proto::coordinator::v1::{Event, ListEventsRequest, ListEventsResponse};
use shardfeed_scheduler::{Event as Known, State};

/// Maximum events in one answer: several hundred bytes each.
const EVENTS_PER_ANSWER_MAX: usize = 5_000;

pub(crate) fn events(state: &State, request: &ListEventsRequest) -> ListEventsResponse {
    let ListEventsRequest { after, most, job, worker, dataset, .. } = request;
    let is_meant = |event: &Event| {
        let is = |asked: &str, of: &str| asked.is_empty() || asked == of;
        is(job, &event.job) && is(worker, &event.worker) && is(dataset, &event.dataset)
    };
    let meant = state.events_after(*after).map(event).filter(is_meant);
    let (mut events, mut last): (Vec<Event>, _) = (vec![], state.last_event());
    match usize::try_from(*most).unwrap_or(usize::MAX) {
        0 => {
            events.extend(meant.take(EVENTS_PER_ANSWER_MAX));
            // The caller continues after the last one.
            let is_full = events.len() == EVENTS_PER_ANSWER_MAX;
            last = events.last().filter(|_| is_full).map_or(last, |event| event.number);
        }
        most => {
            events.extend(meant.rev().take(most.min(EVENTS_PER_ANSWER_MAX)));
            events.reverse();
        }
    }
    let oldest = state.events_after(0).next().map_or(0, |event| event.number);
    ListEventsResponse { events, last, oldest }
}

/// Returns the message: the fields of the event that it has too, and the event's sentence.
fn event(known: &Known) -> Event {
    let Known { number, index, at_ms, principal, what } = known;
    let what_as_json = serde_json::to_value(what).unwrap_or_default();
    let variant = what_as_json.as_object().and_then(|variants| variants.iter().next());
    let (kind, fields) = variant.map_or(("", &Value::Null), |(kind, of)| (kind.as_str(), of));
    let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
    let ranks = match &fields["ranks"] {
        Value::Array(ranks) => ranks.as_slice(),
        _ => std::slice::from_ref(&fields["rank"]),
    };
    Event {
        number: *number,
        index: *index,
        at_ms: *at_ms,
        principal: principal.clone(),
        kind: kind.to_owned(),
        text: what.to_string(),
        job: text("job"),
        worker: text("worker"),
        dataset: text("dataset"),
        generation: fields["generation"].as_u64(),
        ranks: ranks.iter().filter_map(Value::as_u64).collect(),
        epoch: fields["epoch"].as_u64(),
        step: fields["step"].as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_scheduler::{Change, Command, JoinSession};

    use super::*;

    fn busy(workers: u64) -> State {
        let mut state = State::new();
        for index in 1..=workers {
            let change = Change::JoinSession(JoinSession {
                worker: format!("w{index}"),
                host: "h".into(),
                incarnation: "i".into(),
                version: "1".into(),
                in_process: false,
                ttl_ms: 1_000,
                endpoint: String::new(),
                decoders: vec![],
                proved: false,
                data_roots: vec![],
            });
            let (request_id, principal) = (String::new(), "test".to_owned());
            let command = Command { request_id, principal, scope: vec![], now_ms: 1, change };
            assert!(state.apply(index, &command).answer.is_ok());
        }
        state
    }

    fn numbers(answer: &ListEventsResponse) -> Vec<u64> {
        answer.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn who_asks_on_after_the_last_one_gets_every_event_once() {
        let most = EVENTS_PER_ANSWER_MAX as u64;
        let state = busy(most + 7);
        let ask = |after| events(&state, &ListEventsRequest { after, ..Default::default() });
        let first = ask(0);
        assert_eq!((numbers(&first).len() as u64, first.last, first.oldest), (most, most, 1));
        let rest = ask(first.last);
        assert_eq!(numbers(&rest), (most + 1..=most + 7).collect::<Vec<_>>());
        assert_eq!(ask(rest.last).last, rest.last);
        let last = ListEventsRequest { most: 2, ..Default::default() };
        assert_eq!(numbers(&events(&state, &last)), [most + 6, most + 7]);
    }

    #[test]
    fn what_is_not_meant_is_passed_over_to_the_end() {
        let state = busy(9);
        let of = ListEventsRequest { worker: "w3".into(), ..Default::default() };
        let answer = events(&state, &of);
        assert_eq!((numbers(&answer), answer.last), (vec![3], 9));
    }
}
