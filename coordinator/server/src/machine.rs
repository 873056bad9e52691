//! The scheduler's state as the machine that the log drives. Commands, answers and snapshots are JSON.

use shardfeed_raft::{Machine, MachineError};
use shardfeed_scheduler::{Answer, Command, Refusal, State};

/// The state of the coordinators.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    pub(crate) state: State,
}

impl Machine for Scheduler {
    fn apply(&mut self, index: u64, command: &[u8]) -> Vec<u8> {
        let answer = match serde_json::from_slice::<Command>(command) {
            Ok(command) => self.state.apply(index, &command).answer,
            // Every replica says the same; only a later release could have proposed it.
            Err(error) => {
                Err(Refusal::Invalid(format!("this release knows no such command: {error}")))
            }
        };
        encode(&answer)
    }

    fn snapshot(&self) -> Vec<u8> {
        self.state.snapshot()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), MachineError> {
        let state = State::from_snapshot(snapshot);
        self.state = state.map_err(|error| MachineError::new(error.to_string()))?;
        Ok(())
    }
}

fn encode(answer: &Result<Answer, Refusal>) -> Vec<u8> {
    serde_json::to_vec(answer).expect("an answer is plain data with string keys")
}

/// An answer as `apply` gave it.
pub(crate) fn decode(answer: &[u8]) -> Result<Result<Answer, Refusal>, serde_json::Error> {
    serde_json::from_slice(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_command_is_refused_and_changes_nothing() {
        let mut machine = Scheduler::default();
        let before = machine.snapshot();
        for bytes in
            [b"".as_slice(), b"{}", b"\xff", br#"{"principal":"a","now_ms":1,"change":"x"}"#]
        {
            let answer = decode(&machine.apply(1, bytes)).unwrap();
            assert!(matches!(answer, Err(Refusal::Invalid(_))), "{answer:?}");
        }
        assert_eq!(machine.snapshot(), before);
        machine.restore(&before).unwrap();
        assert!(machine.restore(b"{}").is_err());
    }
}
