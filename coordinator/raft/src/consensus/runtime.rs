//! tokio as openraft requires it, with randomness that a simulation can control.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use openraft::impls::TokioRuntime;
use openraft::{AsyncRuntime, OptionalSend};
use rand_core::TryRng;
use uuid::Uuid;

thread_local! {
    /// State of this thread's generator, once it is seeded.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Derives all random draws of this thread's nodes, which are their election timeouts, from `seed`.
///
/// For simulations, which run in one thread; other threads still use the system's randomness.
pub fn seed_randomness(seed: u64) {
    SEED.set(Some(seed));
}

/// SplitMix64 of Steele, Lea and Flood: every seed is a good one.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Random number generator for one or a few draws; never used for secrets.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    fn of_this_thread() -> Self {
        let seeded = SEED.get().map(|mut state| {
            let drawn = next(&mut state);
            SEED.set(Some(state));
            drawn
        });
        Self(seeded.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().1))
    }
}

impl TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((next(&mut self.0) >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(next(&mut self.0))
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&next(&mut self.0).to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

/// tokio, except for the random number generator.
#[derive(Debug)]
pub(crate) struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> =
        <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = Dice;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(error)
    }

    fn thread_rng() -> Dice {
        Dice::of_this_thread()
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

#[cfg(test)]
mod tests {
    use openraft::testing::runtime::Suite;

    use super::*;

    fn draws(count: usize) -> Vec<u64> {
        let draw = |_| Dice::of_this_thread().try_next_u64().unwrap();
        (0..count).map(draw).collect()
    }

    #[test]
    fn a_seed_decides_all_draws_of_its_thread() {
        let seeded = |seed| {
            let thread = std::thread::spawn(move || {
                seed_randomness(seed);
                draws(8)
            });
            thread.join().unwrap()
        };
        assert_eq!(seeded(1), seeded(1));
        assert_ne!(seeded(1), seeded(2));
        assert_ne!(draws(8), draws(8));
    }

    #[test]
    fn openraft_finds_its_runtime_in_order() {
        Suite::<Runtime>::test_all();
    }
}
