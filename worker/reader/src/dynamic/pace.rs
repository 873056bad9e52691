//! The distance of a rank's horizon from its trainer.

use std::time::{Duration, Instant};

/// Time that the trainer needs at its highest rate to consume up to the horizon; when less is left,
/// the next claim is sent.
const AHEAD: Duration = Duration::from_millis(2_500);

/// Fraction of the requested distance that is still left when the next claim is sent. Samples
/// before the horizon of a lost rank are in doubt, and other ranks wait for the grace before they
/// consume them, so the distance must not be much larger.
const LOW: (u64, u64) = (3, 4);

/// Minimum period of a rate measurement: consumption comes in batches.
const MEASURED: Duration = Duration::from_millis(250);

/// Distance of the horizon, in samples; see the module.
#[derive(Debug)]
pub(crate) struct HorizonDistance {
    batch_size: u64,
    /// Highest rate so far, in samples per second.
    peak: f64,
    /// Start of the measurement, and the samples consumed since then.
    since: Option<(Instant, u64)>,
    /// Minimum distance; doubled whenever a batch had to wait.
    least: u64,
}

impl HorizonDistance {
    /// Creates the pace of a trainer that has consumed nothing: one batch.
    pub(crate) fn new(batch_size: u64) -> Self {
        let batch_size = batch_size.max(1);
        Self { batch_size, peak: 0.0, since: None, least: batch_size }
    }

    pub(crate) fn consumed(&mut self, samples: u64, now: Instant) {
        let Some((since, before)) = self.since else {
            self.since = Some((now, 0));
            return;
        };
        let (samples, over) = (before + samples, now.saturating_duration_since(since));
        if over < MEASURED {
            self.since = Some((since, samples));
            return;
        }
        self.peak = self.peak.max(samples as f64 / over.as_secs_f64());
        self.since = Some((now, 0));
    }

    /// Records that a batch was ready before the horizon allowed it.
    pub(crate) fn was_late(&mut self) {
        self.least = self.least.saturating_mul(2).min(self.most());
    }

    /// Returns the bound of `least`: twice the distance by rate, at least a hundred batches.
    fn most(&self) -> u64 {
        self.by_rate().saturating_mul(2).max(self.batch_size.saturating_mul(100))
    }

    fn by_rate(&self) -> u64 {
        (self.peak * AHEAD.as_secs_f64()) as u64
    }

    /// Returns the distance from the consumed samples to the new horizon, in whole batches.
    pub(crate) fn ahead(&self) -> u64 {
        let (low, whole) = LOW;
        let ahead = (self.by_rate().saturating_mul(whole) / low).max(self.least);
        ahead.div_ceil(self.batch_size).saturating_mul(self.batch_size)
    }
}

/// Returns the remaining samples of `ahead` at which the next claim is sent.
pub(crate) fn low(ahead: u64) -> u64 {
    let (low, whole) = LOW;
    ahead.saturating_mul(low).div_ceil(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_is_ahead_by_time_at_the_highest_rate_and_by_a_batch_at_first() {
        let (mut pace, begun) = (HorizonDistance::new(8), Instant::now());
        assert_eq!(pace.ahead(), 8);
        pace.was_late();
        assert_eq!(pace.ahead(), 16);
        let at = |ms| begun + Duration::from_millis(ms);
        // 8 samples each 10 ms: 800 a second.
        (0..=100).for_each(|step| pace.consumed(8, at(10 * step)));
        assert!((2_650..2_850).contains(&pace.ahead()), "{}", pace.ahead());
        assert!((2_000..2_150).contains(&low(pace.ahead())), "2.5 s of it");
        // A pause does not make it shorter.
        pace.consumed(8, at(60_000));
        assert!(pace.ahead() >= 2_650);
        // The growth by late horizons is bounded.
        (0..100).for_each(|_| pace.was_late());
        assert!(pace.ahead() < 2 * 2_850);
    }
}
