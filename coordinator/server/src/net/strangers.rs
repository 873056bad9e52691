//! Unauthenticated peers: connections without a valid request. With too many, the oldest goes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Mark {
    trusted: AtomicBool,
    dismissed: Notify,
}

impl Mark {
    /// Records a valid request: the connection stays.
    pub(crate) fn trust(&self) {
        self.trusted.store(true, Ordering::Relaxed);
    }

    /// Completes when the connection must end.
    pub(crate) async fn dismissed(&self) {
        self.dismissed.notified().await;
    }
}

/// Unauthenticated peers of a port, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    met: Mutex<VecDeque<Weak<Mark>>>,
}

/// Minimum length of the list for removing authenticated and ended ones, each time it has doubled.
const SWEPT_FROM: usize = 1_024;

impl Strangers {
    pub(crate) fn meet(&self) -> Arc<Mark> {
        let mark = Arc::new(Mark::default());
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if met.len() >= SWEPT_FROM && met.len() == met.capacity() {
            met.retain(|mark| {
                mark.upgrade().is_some_and(|mark| !mark.trusted.load(Ordering::Relaxed))
            });
        }
        met.push_back(Arc::downgrade(&mark));
        mark
    }

    /// Evicts the oldest unauthenticated peer, if there is one.
    pub(crate) fn dismiss_oldest(&self) {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mark) = met.pop_front() {
            if let Some(mark) = mark.upgrade().filter(|mark| !mark.trusted.load(Ordering::Relaxed))
            {
                mark.dismissed.notify_one();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_stranger_goes_first_and_known_ones_stay() {
        let strangers = Strangers::default();
        let [gone, known, old, new] = std::array::from_fn(|_| strangers.meet());
        drop(gone);
        known.trust();
        strangers.dismiss_oldest();
        let is_dismissed = |mark: &Arc<Mark>| mark.dismissed().now_or_never().is_some();
        assert_eq!([&known, &old, &new].map(is_dismissed), [false, true, false]);
        strangers.dismiss_oldest();
        strangers.dismiss_oldest();
        assert_eq!([&known, &old, &new].map(is_dismissed), [false, false, true]);
    }

    #[test]
    fn the_list_does_not_grow_with_connections_that_ended() {
        let strangers = Strangers::default();
        for _ in 0..100_000 {
            strangers.meet();
        }
        assert!(strangers.met.lock().unwrap().capacity() <= 8 * SWEPT_FROM);
    }
}
