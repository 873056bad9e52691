//! The scheduler's state as the machine that the log drives.

use shardfeed_raft::{Machine, MachineError};
use shardfeed_scheduler::{Answer, Command, Refusal, State};

#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    pub(crate) state: State,
}

impl Machine for Scheduler {
    type Answer = Result<Answer, Refusal>;

    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Self::Answer, MachineError> {
        let command = Command::from_bytes(command).map_err(|error| {
            MachineError::new(format!(
                "this release knows no such command ({error}); a later one proposed it: run that \
                 release on this node, too"
            ))
        })?;
        Ok(self.state.apply(index, &command).answer)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_command_changes_nothing_and_says_what_to_do() {
        let mut machine = Scheduler::default();
        let before = machine.snapshot();
        for bytes in
            [b"".as_slice(), b"{}", b"\xff", br#"{"principal":"a","now_ms":1,"change":"x"}"#]
        {
            let error = machine.apply(1, bytes).unwrap_err();
            let (begins, ends) = error.message.split_once(" (").unwrap();
            let (_, ends) = ends.rsplit_once("); ").unwrap();
            assert_eq!(begins, "this release knows no such command", "{error}");
            assert_eq!(
                ends, "a later one proposed it: run that release on this node, too",
                "{error}"
            );
        }
        assert_eq!(machine.snapshot(), before);
        machine.restore(&before).unwrap();
        assert!(machine.restore(b"{}").is_err());
    }
}
