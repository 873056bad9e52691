//! Small values that commands, events and refusals share.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessRole {
    /// Read-only.
    Viewer,
    /// Viewer, plus manages jobs, datasets and workers.
    Operator,
    /// Operator, plus manages cluster members and access tokens.
    Admin,
    /// Reads data for trainers.
    Worker,
    /// Trains, and reads its own data.
    Trainer,
}

impl AccessRole {
    pub const ALL: [Self; 5] =
        [Self::Viewer, Self::Operator, Self::Admin, Self::Worker, Self::Trainer];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cordon {
    /// The worker may receive any work.
    #[default]
    Open,
    /// The worker receives no new scan, rank or group.
    Cordoned,
    /// As `Cordoned`; the worker also gives back scans, and groups that it has not begun.
    Draining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The ranks keep their leases and get no batches.
    Paused,
    /// The ranks have ended, and none may start.
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    Left,
    /// The session was not renewed in time.
    Expired,
    /// Another incarnation of the worker began a session.
    Replaced,
}

/// Policy for samples in doubt whose trainer does not come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InDoubt {
    /// Other ranks get them: none is lost, and those that the trainer consumed are delivered twice.
    #[default]
    Redeliver,
    /// No rank gets them: none is delivered twice, and those not consumed are lost.
    Drop,
}

/// Displays values by the words that stored data has for them.
macro_rules! displayed {
    ($($value:ty),*) => {$(
        impl fmt::Display for $value {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )*};
}

displayed!(AccessRole, Cordon, Hold, InDoubt);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubtPolicy {
    pub in_doubt: InDoubt,
    /// Time for which an epoch waits only for samples in doubt before the policy decides, ms.
    pub grace_ms: u64,
}

impl DoubtPolicy {
    pub(crate) fn grace_text(&self) -> String {
        format!("{} s", self.grace_ms as f64 / 1e3)
    }
}

impl Default for DoubtPolicy {
    fn default() -> Self {
        Self { in_doubt: InDoubt::default(), grace_ms: 60_000 }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}
