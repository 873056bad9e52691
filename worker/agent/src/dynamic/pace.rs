//! How far the horizon of a rank shall be ahead of its trainer.

use std::time::{Duration, Instant};

/// At its highest rate the trainer does not reach the horizon for so long; when it would, more is asked for.
const AHEAD: Duration = Duration::from_millis(2_500);

/// Of what is asked for so much is still ahead when the next request goes out. What lies before the horizon of a
/// rank that is lost is in doubt, and the others consume it after the grace, so it must not be much more.
const LOW: (u64, u64) = (3, 4);

/// A rate is measured over so much at least: consumption comes in batches.
const MEASURED: Duration = Duration::from_millis(250);

/// See the module. All in samples.
#[derive(Debug)]
pub(crate) struct Pace {
    batch_size: u64,
    /// Highest rate so far, a second.
    peak: f64,
    /// What was consumed since then.
    since: Option<(Instant, u64)>,
    /// At least so much ahead; doubled whenever a batch had to wait.
    least: u64,
}

impl Pace {
    /// A trainer that has consumed nothing: one batch.
    pub(crate) fn new(batch_size: u64) -> Self {
        let batch_size = batch_size.max(1);
        Self { batch_size, peak: 0.0, since: None, least: batch_size }
    }

    /// The trainer consumed so much more.
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

    /// A batch was ready before the horizon was.
    pub(crate) fn was_late(&mut self) {
        self.least = self.least.saturating_mul(2).min(self.most());
    }

    /// What is known of the rate bounds how much a surprise adds: until a rate is known, a hundred batches.
    fn most(&self) -> u64 {
        self.by_rate().saturating_mul(2).max(self.batch_size.saturating_mul(100))
    }

    fn by_rate(&self) -> u64 {
        (self.peak * AHEAD.as_secs_f64()) as u64
    }

    /// Samples that shall lie between what was consumed and the horizon after a request, in whole batches.
    pub(crate) fn ahead(&self) -> u64 {
        let (low, whole) = LOW;
        let ahead = (self.by_rate().saturating_mul(whole) / low).max(self.least);
        ahead.div_ceil(self.batch_size).saturating_mul(self.batch_size)
    }
}

/// Of so many samples ahead at least so many are left when the next request goes out.
pub(crate) fn low(ahead: u64) -> u64 {
    let (low, whole) = LOW;
    ahead.saturating_mul(low).div_ceil(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_is_ahead_by_time_at_the_highest_rate_and_by_a_batch_at_first() {
        let (mut pace, begun) = (Pace::new(8), Instant::now());
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
        // Surprises are bounded.
        (0..100).for_each(|_| pace.was_late());
        assert!(pace.ahead() < 2 * 2_850);
    }
}
