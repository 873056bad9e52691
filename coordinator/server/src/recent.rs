//! Values that take long to make: the few that were requested last are kept in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// At most `MOST` values, newest last.
#[derive(Debug)]
pub(crate) struct Recent<K, V, const MOST: usize>(Mutex<Vec<(K, Arc<V>)>>);

impl<K, V, const MOST: usize> Default for Recent<K, V, MOST> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V, const MOST: usize> Recent<K, V, MOST> {
    pub(crate) fn get(&self, key: &K) -> Option<Arc<V>> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(known, _)| known == key)?;
        kept[at..].rotate_left(1);
        kept.last().map(|(_, value)| Arc::clone(value))
    }

    pub(crate) fn keep(&self, key: K, value: V) -> Arc<V> {
        let value = Arc::new(value);
        let mut kept = self.kept();
        kept.push((key, Arc::clone(&value)));
        if kept.len() > MOST {
            kept.remove(0);
        }
        value
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(K, Arc<V>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_requested_longest_ago_is_dropped() {
        let recent = Recent::<_, _, 2>::default();
        recent.keep("a", 1);
        recent.keep("b", 2);
        assert_eq!(recent.get(&"a").as_deref(), Some(&1));
        recent.keep("c", 3);
        assert_eq!(recent.get(&"b"), None);
        assert_eq!(["a", "c"].map(|key| *recent.get(&key).unwrap()), [1, 3]);
    }
}
