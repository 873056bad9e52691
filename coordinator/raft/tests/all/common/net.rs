//! In-memory network that loses, delays and cuts. An address leads to the node plugged in there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use shardfeed_raft::{Node, Peer, PeerError, Peers};

use super::Ledger;

#[derive(Debug, Clone, Default)]
pub(crate) struct Net {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    plugged: BTreeMap<String, (u64, Node<Ledger>)>,
    /// Messages from the first to the second are lost.
    cut: BTreeSet<(u64, u64)>,
    lost_percent: u64,
    delay_ms_max: u64,
    dice: u64,
    calls: usize,
}

impl State {
    fn roll(&mut self, sides: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.dice >> 33) % sides.max(1)
    }

    fn loses(&mut self, from: u64, to: u64) -> bool {
        self.cut.contains(&(from, to)) || self.roll(100) < self.lost_percent
    }
}

impl Net {
    pub(crate) fn peers(&self, from: u64) -> Arc<dyn Peers> {
        Arc::new(Plug { net: self.clone(), from })
    }

    pub(crate) fn plug(&self, address: &str, number: u64, node: &Node<Ledger>) {
        self.state.lock().unwrap().plugged.insert(address.to_owned(), (number, node.clone()));
    }

    pub(crate) fn unplug(&self, address: &str) {
        let removed = self.state.lock().unwrap().plugged.remove(address);
        drop(removed);
    }

    /// Loses messages in one direction; the other direction is not affected.
    pub(crate) fn cut(&self, from: u64, to: u64) {
        self.state.lock().unwrap().cut.insert((from, to));
    }

    /// Cuts a node off from all of `others`, in both directions.
    pub(crate) fn isolate(&self, node: u64, others: &[u64]) {
        for &other in others.iter().filter(|other| **other != node) {
            self.cut(node, other);
            self.cut(other, node);
        }
    }

    pub(crate) fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        state.cut.clear();
        (state.lost_percent, state.delay_ms_max) = (0, 0);
    }

    pub(crate) fn disturb(&self, lost_percent: u64, delay_ms_max: u64) {
        let mut state = self.state.lock().unwrap();
        (state.lost_percent, state.delay_ms_max) = (lost_percent, delay_ms_max);
    }

    /// Returns the number of messages sent so far.
    pub(crate) fn calls(&self) -> usize {
        self.state.lock().unwrap().calls
    }

    async fn call(self, from: u64, to: Peer, message: Vec<u8>) -> Result<Vec<u8>, PeerError> {
        let (found, lost, delay_ms) = {
            let mut state = self.state.lock().unwrap();
            state.calls += 1;
            let delay = state.delay_ms_max;
            let delay = state.roll(delay + 1);
            (state.plugged.get(&to.address).cloned(), state.loses(from, to.node), delay)
        };
        let Some((number, node)) = found else {
            let reason = "no node listens there".to_owned();
            return Err(PeerError::Unreachable { node: to.node, reason });
        };
        if lost {
            return std::future::pending().await;
        }
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        let answer = node.handle(from, &message).await;
        drop(node);
        if self.state.lock().unwrap().loses(number, from) {
            return std::future::pending().await;
        }
        answer
    }
}

#[derive(Debug)]
struct Plug {
    net: Net,
    from: u64,
}

impl Peers for Plug {
    fn call(
        &self,
        to: &Peer,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, PeerError>> {
        let (net, from, to) = (self.net.clone(), self.from, to.clone());
        async move {
            let node = to.node;
            let call = net.call(from, to, message);
            let late = |_| PeerError::Unreachable { node, reason: "lost on the way".to_owned() };
            tokio::time::timeout(deadline, call).await.map_err(late)?
        }
        .boxed()
    }
}
