//! The order in which the addresses of a cluster are tried. Pure.

use crate::cluster::address::{Address, Addresses};

/// One round: each address once, the presumed leader first, then hints as they arrive.
#[derive(Clone, Debug)]
pub(super) struct Tour {
    /// Addresses not tried yet, in the order of the list.
    waiting: Vec<Address>,
    asked: Vec<Address>,
    hint: Option<Address>,
}

/// Maximum number of addresses tried in one round: hints may name unlisted ones, and nodes that
/// name each other must not prolong a round endlessly.
const ASKED_MAX: usize = 64;

impl Tour {
    /// - `leader`: tried first, listed or not. `listed`: `None` if the list is not known.
    pub(super) fn new(leader: Option<Address>, listed: Option<&Addresses>) -> Self {
        let waiting = listed.into_iter().flat_map(Addresses::iter).cloned().collect();
        Self { waiting, asked: Vec::new(), hint: leader }
    }

    /// Returns the next address to try; `None` when all were tried.
    pub(super) fn next(&mut self) -> Option<Address> {
        if self.asked.len() >= ASKED_MAX {
            return None;
        }
        let hint = self.hint.take().filter(|hint| !self.asked.contains(hint));
        let next = hint.or_else(|| self.waiting.first().cloned())?;
        self.waiting.retain(|waiting| *waiting != next);
        self.asked.push(next.clone());
        Some(next)
    }

    pub(super) fn hint(&mut self, leader: &Address) {
        self.hint = Some(leader.clone());
    }

    /// Returns the number of known addresses still to be tried, including the current one.
    pub(super) fn left(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn asked(leader: Option<&str>, hints: &[(&str, &str)]) -> Vec<String> {
        let mut tour = Tour::new(leader.map(address), Some(&"a:1,b:1,c:1".parse().unwrap()));
        let mut asked = Vec::new();
        while let Some(next) = tour.next() {
            for (_, to) in hints.iter().filter(|(from, _)| *from == next.as_str()) {
                tour.hint(&address(to));
            }
            asked.push(next.to_string());
        }
        asked
    }

    #[test]
    fn each_address_is_asked_once_the_leader_first() {
        assert_eq!(asked(None, &[]), ["a:1", "b:1", "c:1"]);
        assert_eq!(asked(Some("c:1"), &[]), ["c:1", "a:1", "b:1"]);
        assert_eq!(asked(Some("d:1"), &[]), ["d:1", "a:1", "b:1", "c:1"]);
    }

    #[test]
    fn hints_are_followed_at_once_and_never_in_a_circle() {
        assert_eq!(asked(None, &[("a:1", "c:1")]), ["a:1", "c:1", "b:1"]);
        assert_eq!(asked(None, &[("a:1", "d:1")]), ["a:1", "d:1", "b:1", "c:1"]);
        let circle = [("a:1", "b:1"), ("b:1", "a:1"), ("c:1", "b:1")];
        assert_eq!(asked(None, &circle), ["a:1", "b:1", "c:1"]);
        let mut endless = Tour::new(None, Some(&"a:1".parse().unwrap()));
        let mut port = 1;
        while endless.next().is_some() {
            port += 1;
            endless.hint(&address(&format!("a:{port}")));
        }
        assert_eq!(port, 1 + ASKED_MAX as u32);
    }
}
