//! Copies from a host slot to the device, and kernels on the copied parts.

use shardfeed_handoff::{BufferLayout, BufferRange};

use crate::kernels::Change;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// First byte in the host's slot.
    pub from: usize,
    /// First byte in the device's slot.
    pub to: usize,
    /// Bytes.
    pub len: usize,
}

/// One kernel launch, with its source and target on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Index of the change.
    pub change: usize,
    /// Index of its pass.
    pub pass: usize,
    /// First byte of the source.
    pub source: usize,
    /// First byte of the target.
    pub target: usize,
    /// Number of values to write.
    pub count: usize,
}

/// Parts of a host's slot to copy, and their positions on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    pub copies: Vec<Copy>,
    /// Kernel launches after the copies, in this order.
    pub launches: Vec<Launch>,
    /// Final position of each part on the device.
    pub places: Vec<BufferRange>,
    /// Bytes of all parts and the gaps between them.
    pub bytes: usize,
}

impl Copies {
    /// Lays out `parts` in sequence, each aligned as on the host.
    ///
    /// Parts with the same distance on host and device are one copy, including the small gap
    /// between them.
    /// - `parts`: for the fewest copies in ascending order of their start; any order is correct.
    pub fn of(parts: &[BufferRange]) -> Self {
        let mut layout = BufferLayout::default();
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
        Self { copies, launches: vec![], places, bytes: layout.bytes() }
    }

    /// As [`Copies::of`], with space for each pass of a change, and the final position of its part.
    pub fn with(parts: &[BufferRange], changes: &[Change]) -> Self {
        let mut found = Self::of(parts);
        let mut layout = BufferLayout::default();
        layout.push(found.bytes);
        for (number, change) in changes.iter().enumerate() {
            let place = &mut found.places[change.part];
            let count = place.len / change.from().bytes();
            for (pass_number, pass) in change.passes().iter().enumerate() {
                let made = layout.push(count * pass.to.bytes());
                let (source, target) = (place.start, made.start);
                found.launches.push(Launch {
                    change: number,
                    pass: pass_number,
                    source,
                    target,
                    count,
                });
                *place = made;
            }
        }
        found.bytes = layout.bytes();
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::{Number, Step};

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
    fn what_is_made_of_a_part_comes_after_all_parts() {
        let steps = [Step::Cast { to: Number::Int8 }, Step::Cast { to: Number::Float32 }];
        let change = Change::new(1, Number::Uint8, &steps);
        let found = Copies::with(&[range(0, 100), range(256, 300)], &[change]);
        assert_eq!(found.copies, [Copy { from: 0, to: 0, len: 556 }]);
        let launch = |pass, source, target| Launch { change: 0, pass, source, target, count: 300 };
        assert_eq!(found.launches, [launch(0, 256, 768), launch(1, 768, 1280)]);
        assert_eq!(found.places, [range(0, 100), range(1280, 1200)]);
        assert_eq!(found.bytes, 1280 + 1200);
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
            let mut host = BufferLayout::default();
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
