//! Memory of one slot: private to this process, or a sealed memfd that another process may map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapMut, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::memory::Mapped;

/// Name of a region in `/proc/PID/maps` and `ls -l /proc/PID/fd`. It is in no file system.
const MEMFD_NAME: &str = "shardfeed-slot";

/// Id of a region of a sealed pool. Unique in the process that created it, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u64);

/// Information that another process needs to map a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionHandle<'a> {
    /// Id to announce it by; a descriptor needs to be sent only once.
    pub id: RegionId,
    /// Size in bytes, to be announced with it; it never changes.
    pub size_bytes: usize,
    /// The memfd; `None` once it was [closed](crate::SharedSlot::close_descriptor).
    pub fd: Option<BorrowedFd<'a>>,
}

/// Kind of memory of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Private pages of this process.
    Anonymous,
    /// A memfd for each region, of a sealed size.
    Sealed,
}

/// Memory that on drop is unmapped, or passed to its heir; its descriptor is closed.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    pub(crate) mapped: Mapped,
    sealed: Option<(RegionId, Option<OwnedFd>)>,
}

impl MemoryRegion {
    pub(crate) fn new(backing: Backing, size_bytes: usize) -> io::Result<Self> {
        match backing {
            Backing::Anonymous => {
                let mapped = Mapped::new(MmapMut::map_anon(size_bytes)?.into());
                Ok(Self { mapped, sealed: None })
            }
            Backing::Sealed => {
                let fd = sealed_memfd(size_bytes)?;
                let mapped = Mapped::new(MmapRaw::map_raw(&fd)?);
                Ok(Self { mapped, sealed: Some((next_id(), Some(fd))) })
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.mapped.len()
    }

    pub(crate) fn id(&self) -> Option<RegionId> {
        self.sealed.as_ref().map(|(id, _)| *id)
    }

    pub(crate) fn handle(&self) -> Option<RegionHandle<'_>> {
        let (id, fd) = self.sealed.as_ref()?;
        let fd = fd.as_ref().map(AsFd::as_fd);
        Some(RegionHandle { id: *id, size_bytes: self.len(), fd })
    }

    /// Closes the descriptor; the mapping keeps the memory, and the peer has its own mapping.
    pub(crate) fn close_descriptor(&mut self) {
        if let Some((_, fd)) = &mut self.sealed {
            *fd = None;
        }
    }
}

fn next_id() -> RegionId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    RegionId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Creates a memfd of a size that no holder can change, so that reads never fail with SIGBUS.
fn sealed_memfd(size_bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match memfd_create(MEMFD_NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag; some hosts require it for any memfd.
        Err(Errno::INVAL) => memfd_create(MEMFD_NAME, flags)?,
        other => other?,
    };
    ftruncate(&fd, size_bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{fcntl_get_seals, fstat};

    use super::*;

    #[test]
    fn a_sealed_region_can_neither_shrink_nor_grow_nor_be_sealed_further() {
        let region = MemoryRegion::new(Backing::Sealed, 100_000).unwrap();
        let handle = region.handle().unwrap();
        assert_eq!((handle.size_bytes, region.len()), (100_000, 100_000));
        let fd = handle.fd.unwrap();
        assert_eq!(fstat(fd).unwrap().st_size, 100_000);
        let seals = fcntl_get_seals(fd).unwrap();
        assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        assert_eq!(ftruncate(fd, 1), Err(Errno::PERM));
        assert_eq!(ftruncate(fd, 200_000), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn ids_are_unique_and_private_regions_have_none() {
        let sealed = || MemoryRegion::new(Backing::Sealed, 1).unwrap().id().unwrap();
        assert_ne!(sealed(), sealed());
        assert!(MemoryRegion::new(Backing::Anonymous, 1).unwrap().handle().is_none());
    }
}
