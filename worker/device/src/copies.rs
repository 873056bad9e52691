//! Which bytes of a slot go where on the device.

use shardfeed_handoff::{BufferRange, Layout};

/// One copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// First byte in the host's slot.
    pub from: usize,
    /// First byte in the device's.
    pub to: usize,
    /// Bytes.
    pub len: usize,
}

/// The parts of a host's slot that go to the device, and their places there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// What is copied.
    pub copies: Vec<Copy>,
    /// Where each part is on the device.
    pub places: Vec<BufferRange>,
    /// Bytes of all parts and the gaps between them.
    pub bytes: usize,
}

impl Copies {
    /// Lays `parts` one after the other, each aligned as on the host. Parts that stand as far apart there
    /// as here are one copy, with what little is between them.
    /// - `parts`: in ascending order of where they start for the fewest copies; any order is right.
    pub fn of(parts: &[BufferRange]) -> Self {
        let mut layout = Layout::default();
        let places: Vec<_> = parts.iter().map(|part| layout.push(part.len)).collect();
        let mut copies: Vec<Copy> = Vec::new();
        for (part, place) in parts.iter().zip(&places).filter(|(part, _)| part.len > 0) {
            if let Some(last) = copies.last_mut()
                && part.start >= last.from + last.len
                && part.start - last.from == place.start - last.to
            {
                last.len = part.start + part.len - last.from;
                continue;
            }
            copies.push(Copy { from: part.start, to: place.start, len: part.len });
        }
        Self { copies, places, bytes: layout.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: usize, len: usize) -> BufferRange {
        BufferRange { start, len }
    }

    #[test]
    fn neighbours_are_one_copy() {
        let found = Copies::of(&[range(256, 100), range(512, 300), range(1024, 8)]);
        assert_eq!(found.copies, [Copy { from: 256, to: 0, len: 776 }]);
        assert_eq!(found.places, [range(0, 100), range(256, 300), range(768, 8)]);
        assert_eq!(found.bytes, 776);
    }

    #[test]
    fn what_stays_on_the_host_is_left_out() {
        let found = Copies::of(&[range(0, 100), range(4096, 300), range(4608, 0)]);
        let apart = [Copy { from: 0, to: 0, len: 100 }, Copy { from: 4096, to: 256, len: 300 }];
        assert_eq!(found.copies, apart);
    }

    proptest! {
        #[test]
        fn each_byte_of_each_part_arrives(lens in prop::collection::vec((0usize..900, any::<bool>()), 0..8)) {
            let mut host = Layout::default();
            let all: Vec<_> = lens.iter().map(|(len, stays)| (host.push(*len), *stays)).collect();
            let parts: Vec<_> = all.iter().filter(|(_, stays)| !stays).map(|(part, _)| *part).collect();
            let source: Vec<u8> = (0..host.bytes()).map(|at| (at * 31 % 251) as u8).collect();
            let found = Copies::of(&parts);
            let mut target = vec![0u8; found.bytes];
            for Copy { from, to, len } in &found.copies {
                target[*to..to + len].copy_from_slice(&source[*from..from + len]);
            }
            for (part, place) in parts.iter().zip(&found.places) {
                prop_assert_eq!(place.start % 256, 0);
                prop_assert_eq!(&target[place.bytes()], &source[part.bytes()]);
            }
        }
    }
}
