//! Mapped memory, and the receiver of it before it is unmapped.

use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;

use memmap2::MmapRaw;

/// Memory that nothing views any more. It is unmapped when dropped.
#[derive(Debug)]
pub struct Memory {
    map: MmapRaw,
}

impl Memory {
    pub fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).expect("a mapping is not at address 0")
    }

    pub fn size_bytes(&self) -> usize {
        self.map.len()
    }
}

type Heir = Box<dyn FnOnce(Memory) + Send + Sync>;

/// Memory in use. On drop it is passed to its heir, or unmapped if it has none.
pub(crate) struct Mapped {
    memory: Option<Memory>,
    heir: OnceLock<Heir>,
}

impl Mapped {
    pub(crate) fn new(map: MmapRaw) -> Self {
        Self { memory: Some(Memory { map }), heir: OnceLock::new() }
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("held until dropped")
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.memory().base()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory().size_bytes()
    }

    /// Sets the heir; returns true if there was none before. The first one stays.
    pub(crate) fn bequeath(&self, heir: impl FnOnce(Memory) + Send + Sync + 'static) -> bool {
        self.heir.set(Box::new(heir)).is_ok()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let (Some(heir), Some(memory)) = (self.heir.take(), self.memory.take()) {
            heir(memory);
        }
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("memory", &self.memory).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use memmap2::MmapMut;

    use super::*;

    #[test]
    fn the_first_heir_gets_the_memory_still_mapped() {
        let mapped = Mapped::new(MmapMut::map_anon(4096).unwrap().into());
        let (sender, heirs) = channel();
        let second = sender.clone();
        let base = mapped.base();
        assert!(mapped.bequeath(move |memory| sender.send(("first", memory)).unwrap()));
        assert!(!mapped.bequeath(move |memory| second.send(("second", memory)).unwrap()));
        assert!(heirs.try_recv().is_err(), "it is in use");
        drop(mapped);
        let (who, memory) = heirs.try_recv().unwrap();
        assert_eq!((who, memory.base(), memory.size_bytes()), ("first", base, 4096));
        assert!(heirs.try_recv().is_err());
    }
}
