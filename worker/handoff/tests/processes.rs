//! Slots shared between processes: both see the same bytes, and nothing leaks.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardfeed_handoff::{ImportError, Mapping, SharedSlot, SlotPool};

const PART: &str = "SHARDFEED_HANDOFF_TEST_PART";

/// Serializes the tests, as each counts this process's descriptors and mappings.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mapped_regions() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:shardfeed-slot")).count()
}

/// Descriptor and size as a worker sends them, without a socket.
fn announced(slot: &SharedSlot) -> (OwnedFd, u64) {
    let region = slot.region().unwrap();
    (region.fd.unwrap().try_clone_to_owned().unwrap(), region.size_bytes as u64)
}

fn import(slot: &SharedSlot) -> Arc<Mapping> {
    let (fd, size_bytes) = announced(slot);
    Arc::new(Mapping::import(fd, size_bytes).unwrap())
}

fn written(pool: &SlotPool, bytes: &[u8]) -> SharedSlot {
    let mut slot = pool.take(bytes.len()).unwrap();
    slot.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    slot.share()
}

/// Reads a view's bytes through a copy, the only safe way.
fn read(slot: &mut SharedSlot, bytes: usize) -> Vec<u8> {
    let pool = SlotPool::new(1);
    drop(slot.copy_into(&pool, bytes).unwrap());
    pool.take(bytes).unwrap().bytes_mut()[..bytes].to_vec()
}

#[test]
fn an_import_sees_what_the_worker_wrote_and_writes_again() {
    let _alone = alone();
    let pool = SlotPool::sealed(2);
    let slot = written(&pool, b"first");
    let mapping = import(&slot);
    assert_eq!(mapping.size_bytes(), slot.size_bytes());
    let mut view = SharedSlot::imported(Arc::clone(&mapping), || {});
    assert_ne!(view.base(), slot.base());
    assert!(view.region().is_none());
    assert_eq!(read(&mut view, 5), b"first");
    let region = slot.region().unwrap().id;
    drop((view, slot));
    // The next batch in the same region needs no further descriptor, nor the first one.
    let descriptors = open_descriptors();
    let mut slot = written(&pool, b"second");
    slot.close_descriptor();
    assert_eq!(open_descriptors(), descriptors - 1);
    let handle = slot.region().unwrap();
    assert_eq!((handle.id, handle.fd.is_none()), (region, true));
    assert_eq!(read(&mut SharedSlot::imported(mapping, || {}), 6), b"second");
}

#[test]
fn a_dropped_view_tells_once_and_its_memory_outlives_the_worker() {
    let _alone = alone();
    let told = Arc::new(AtomicUsize::new(0));
    let pool = SlotPool::sealed(1);
    let slot = written(&pool, b"bytes");
    let mapping = import(&slot);
    drop((slot, pool));
    let view = |told: &Arc<AtomicUsize>| {
        let told = Arc::clone(told);
        SharedSlot::imported(Arc::clone(&mapping), move || {
            told.fetch_add(1, Ordering::Relaxed);
        })
    };
    let mut first = view(&told);
    assert_eq!(read(&mut first, 5), b"bytes");
    assert_eq!(told.load(Ordering::Relaxed), 0);
    std::thread::spawn(move || drop(first)).join().unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    view(&told).retire();
    assert_eq!(told.load(Ordering::Relaxed), 2);
    assert_eq!(mapped_regions(), 1);
    drop(mapping);
    assert_eq!(mapped_regions(), 0);
}

#[test]
fn a_copy_stays_when_its_source_is_given_back_and_written_again() {
    let _alone = alone();
    let (pool, own) = (SlotPool::sealed(1), SlotPool::new(1));
    let slot = written(&pool, &[7; 100_000]);
    let mut view = SharedSlot::imported(import(&slot), || {});
    let mut copy = view.copy_into(&own, 100_000).unwrap();
    assert!(copy.region().is_none());
    drop((view, slot));
    drop(written(&pool, &[8; 100_000]));
    assert_eq!(read(&mut copy, 100_000), [7; 100_000]);
}

#[test]
fn nothing_is_left_behind_by_a_thousand_slots() {
    let _alone = alone();
    let descriptors = open_descriptors();
    let in_dev_shm = || fs::read_dir("/dev/shm").map(Iterator::count).unwrap_or_default();
    let shm = in_dev_shm();
    let pool = SlotPool::sealed(2);
    let mut retired = 0;
    for round in 0..1000_usize {
        // Many sizes, so that some slots are released.
        let slot = written(&pool, &vec![1; 1 + round * 7919 % 300_000]);
        let other = written(&pool, &[2]);
        let view = SharedSlot::imported(import(&slot), || {});
        assert!(open_descriptors() <= descriptors + 4, "a mapping keeps no descriptor");
        drop((slot, other, view));
        if round % 97 == 0 {
            written(&pool, &[3]).retire();
        }
        retired += pool.take_retired().len() as u64;
    }
    assert_eq!(in_dev_shm(), shm, "there are no names");
    let stats = pool.stats();
    assert_eq!((stats.slots as u64, stats.in_use), (stats.mapped_total - retired, 0));
    assert_eq!(mapped_regions(), stats.slots);
    drop(pool);
    assert_eq!((open_descriptors(), mapped_regions()), (descriptors, 0));
}

#[test]
fn a_refused_descriptor_is_closed() {
    let _alone = alone();
    let descriptors = open_descriptors();
    let slot = written(&SlotPool::sealed(1), b"bytes");
    let (fd, size_bytes) = announced(&slot);
    let error = Mapping::import(fd, size_bytes + 1).unwrap_err();
    assert!(matches!(error, ImportError::Size { .. }), "{error}");
    let file = empty_file();
    let error = Mapping::import(file.into(), 0).unwrap_err();
    assert!(
        matches!(error, ImportError::NotMemfd { .. } | ImportError::Unsealed { .. }),
        "{error}"
    );
    drop(slot);
    assert_eq!(open_descriptors(), descriptors);
}

/// Creates an ordinary empty file.
fn empty_file() -> File {
    let path = std::env::temp_dir().join(format!("shardfeed-handoff-{}", std::process::id()));
    let file = File::create_new(&path).unwrap();
    fs::remove_file(path).unwrap();
    file
}

/// Starts this binary as a trainer whose standard input is the region.
fn trainer(slot: &SharedSlot, part: &str) -> Child {
    let (fd, size_bytes) = announced(slot);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "plays_its_part", "--nocapture"]);
    command.env(PART, format!("{part} {size_bytes}")).stdin(Stdio::from(fd));
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Does nothing unless another test starts this binary with a role.
#[test]
fn plays_its_part() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let (part, size_bytes) = part.split_once(' ').unwrap();
    let fd = rustix::io::dup(std::io::stdin()).unwrap();
    let mapping = Arc::new(Mapping::import(fd, size_bytes.parse().unwrap()).unwrap());
    let mut view = SharedSlot::imported(mapping, || {});
    match part {
        "read" => assert_eq!(read(&mut view, 100_000), [7; 100_000]),
        "truncate" => {
            let truncated = rustix::fs::ftruncate(std::io::stdin(), 0);
            assert_eq!(truncated, Err(rustix::io::Errno::PERM));
        }
        part => panic!("no part {part}"),
    }
}

#[test]
fn another_process_sees_the_slot_and_cannot_cut_it() {
    let _alone = alone();
    let pool = SlotPool::sealed(1);
    let mut slot = written(&pool, &[7; 100_000]);
    for part in ["read", "truncate"] {
        assert!(trainer(&slot, part).wait().unwrap().success(), "{part}");
    }
    assert_eq!(read(&mut slot, 100_000), [7; 100_000]);
    // It would have detected different bytes.
    drop(slot);
    let slot = written(&pool, &[8; 100_000]);
    assert!(!trainer(&slot, "read").wait().unwrap().success());
}

#[test]
fn a_region_does_not_grow_by_writing() {
    let _alone = alone();
    let slot = written(&SlotPool::sealed(1), b"bytes");
    let mut file = File::from(announced(&slot).0);
    file.seek(SeekFrom::End(0)).unwrap();
    assert!(file.write(&[1]).is_err());
}
