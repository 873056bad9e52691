//! Replaces the C library's clocks and randomness in this process.
//!
//! Dependencies of the product use them directly instead of [`shardfeed_host::Host`]: h2 forgets
//! streams that were reset a second ago, hyper writes a `date` header, hash maps draw their keys,
//! openraft its election timeouts.
//! In a simulation all of these must follow the seed.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{SYS_clock_gettime, SYS_getrandom, clockid_t, size_t, ssize_t, syscall, timespec};

use crate::dice::{STEP, mixed};
use crate::sim::host::BEGIN_MS;

/// True while a simulation runs in this process.
static IS_SIMULATED: AtomicBool = AtomicBool::new(false);
/// Milliseconds since the simulation began.
static NOW_MS: AtomicU64 = AtomicU64::new(0);
/// State of the generator behind `getrandom`.
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// Switches this process to simulated clocks and to randomness from `seed`.
pub fn simulate(seed: u64) {
    RANDOM.store(seed, Ordering::SeqCst);
    NOW_MS.store(0, Ordering::SeqCst);
    IS_SIMULATED.store(true, Ordering::SeqCst);
}

/// Sets the simulated clocks to `ms` after the start of the simulation.
pub(super) fn set_ms(ms: u64) {
    NOW_MS.store(ms, Ordering::SeqCst);
}

// SAFETY: replaces the C library's function of this name, with the same type and meaning.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    if !IS_SIMULATED.load(Ordering::SeqCst) {
        // SAFETY: the arguments are the caller's, passed on to the system call behind this
        // function.
        return unsafe { syscall(SYS_clock_gettime, clock, to) } as c_int;
    }
    let ms = BEGIN_MS + NOW_MS.load(Ordering::SeqCst);
    let time = timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 };
    // SAFETY: the caller passes a pointer to a `timespec` that it owns, as the C library's function
    // requires.
    unsafe { to.write(time) };
    0
}

// SAFETY: replaces the C library's function of this name, with the same type and meaning.
#[unsafe(no_mangle)]
extern "C" fn getrandom(to: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !IS_SIMULATED.load(Ordering::SeqCst) {
        // SAFETY: the arguments are the caller's, passed on to the system call behind this
        // function.
        return unsafe { syscall(SYS_getrandom, to, length, flags) } as ssize_t;
    }
    // SAFETY: the caller passes `length` bytes that it owns, as the C library's function requires.
    let to = unsafe { slice::from_raw_parts_mut(to.cast::<MaybeUninit<u8>>(), length) };
    for part in to.chunks_mut(8) {
        let bits = mixed(RANDOM.fetch_add(STEP, Ordering::SeqCst));
        for (byte, drawn) in part.iter_mut().zip(bits.to_le_bytes()) {
            byte.write(drawn);
        }
    }
    length as ssize_t
}
