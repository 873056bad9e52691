//! Pauses between attempts.

use std::time::Duration;

use uuid::Uuid;

/// Returns between half and all of a pause, so that many clients do not retry at once.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + 0.5 * (Uuid::new_v4().as_u128() as u8 as f64 / 255.0))
}
