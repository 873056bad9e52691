//! A region of another process's pool, mapped here.

use std::io;
use std::os::fd::OwnedFd;

use memmap2::MmapRaw;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

use crate::memory::Mapped;

/// A region that a worker announced.
///
/// Slots that view it come from [`SharedSlot::imported`](crate::SharedSlot::imported). It is
/// unmapped when they and all other holders are dropped, even if the worker ended long before.
#[derive(Debug)]
pub struct Mapping {
    pub(crate) mapped: Mapped,
}

/// Reason why a descriptor was not mapped.
///
/// Each means that the sender is a broken or another version's worker: close the connection.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The descriptor is not a file.
    #[error("read the size of a slot's descriptor: {source}")]
    Stat { source: io::Error },
    #[error("a slot was announced with {announced_bytes} bytes, its descriptor has {actual_bytes}")]
    Size {
        /// Size announced by the worker, in bytes.
        announced_bytes: u64,
        actual_bytes: u64,
    },
    #[error("a slot's descriptor is no memfd that can be sealed: {source}")]
    NotMemfd { source: io::Error },
    /// Its size may change: reading beyond its end would kill this process.
    #[error(
        "a slot's memfd is not sealed against growing and shrinking (its seals: {seals:#x}), \
         so the worker could end this process by truncating it"
    )]
    Unsealed {
        /// The seals, `F_SEAL_*`.
        seals: u32,
    },
    /// There is not enough memory to map it, or it is not writable.
    #[error("map a slot of {size_bytes} bytes: {source}")]
    Map { size_bytes: u64, source: io::Error },
}

impl Mapping {
    /// Maps the region behind `fd` for reading and writing, and closes `fd`.
    /// - `size_bytes`: announced by the worker.
    ///
    /// # Errors  The region has another size, or its size is not sealed; see [`ImportError`].
    pub fn import(fd: OwnedFd, size_bytes: u64) -> Result<Self, ImportError> {
        let stat = fstat(&fd).map_err(|errno| ImportError::Stat { source: errno.into() })?;
        let actual_bytes = stat.st_size.cast_unsigned();
        if actual_bytes != size_bytes {
            return Err(ImportError::Size { announced_bytes: size_bytes, actual_bytes });
        }
        let seals =
            fcntl_get_seals(&fd).map_err(|errno| ImportError::NotMemfd { source: errno.into() })?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(ImportError::Unsealed { seals: seals.bits() });
        }
        let map =
            MmapRaw::map_raw(&fd).map_err(|source| ImportError::Map { size_bytes, source })?;
        // The mapping keeps the memory; keeping a descriptor per slot would use up the limit.
        drop(fd);
        Ok(Self { mapped: Mapped::new(map) })
    }

    pub fn size_bytes(&self) -> usize {
        self.mapped.len()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn memfd(size: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("shardfeed-test", flags).unwrap();
        ftruncate(&fd, size).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn a_region_of_another_size_is_refused() {
        let both = SealFlags::SHRINK | SealFlags::GROW;
        for size in [0, 4095, 4097] {
            let error = Mapping::import(memfd(size, both), 4096).unwrap_err();
            let ImportError::Size { announced_bytes, actual_bytes } = error else {
                panic!("{error:?}");
            };
            assert_eq!((announced_bytes, actual_bytes), (4096, size));
        }
        assert_eq!(Mapping::import(memfd(4096, both), 4096).unwrap().size_bytes(), 4096);
    }

    #[test]
    fn a_region_that_could_change_its_size_is_refused() {
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW | SealFlags::SEAL] {
            let error = Mapping::import(memfd(4096, seals), 4096).unwrap_err();
            assert!(matches!(error, ImportError::Unsealed { .. }), "{error:?}");
        }
    }

    #[test]
    fn what_is_no_memfd_or_not_writable_is_refused() {
        let (read, _write) = io::pipe().unwrap();
        let error = Mapping::import(read.into(), 0).unwrap_err();
        assert!(matches!(error, ImportError::NotMemfd { .. }), "{error:?}");
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        let error = Mapping::import(memfd(4096, seals), 4096).unwrap_err();
        assert!(matches!(error, ImportError::Map { size_bytes: 4096, .. }), "{error:?}");
    }
}
