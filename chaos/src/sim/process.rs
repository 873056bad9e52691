//! The clocks and the randomness of this process, in the place of the C library's.
//!
//! Libraries below the product read them past [`shardfeed_host::Host`]: h2 forgets a stream that was reset a second
//! ago, hyper writes a `date` header, hash maps draw their keys. In a simulation all of that must follow the seed.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{SYS_clock_gettime, SYS_getrandom, clockid_t, size_t, ssize_t, syscall, timespec};

use crate::dice::{STEP, mixed};
use crate::sim::host::BEGIN_MS;

/// Whether a simulation runs in this process.
static IS_SIMULATED: AtomicBool = AtomicBool::new(false);
/// Milliseconds since it began.
static NOW_MS: AtomicU64 = AtomicU64::new(0);
/// The state of the generator behind `getrandom`.
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// From here on this process reads simulated clocks, and draws its randomness from `seed`.
pub fn simulate(seed: u64) {
    RANDOM.store(seed, Ordering::SeqCst);
    NOW_MS.store(0, Ordering::SeqCst);
    IS_SIMULATED.store(true, Ordering::SeqCst);
}

/// Sets the simulated clocks to `ms` after the begin of the simulation.
pub(super) fn set_ms(ms: u64) {
    NOW_MS.store(ms, Ordering::SeqCst);
}

// SAFETY: takes the place of the C library's function of this name, with its type and meaning.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    if !IS_SIMULATED.load(Ordering::SeqCst) {
        // SAFETY: the arguments are the caller's, for the system call behind the function that it calls.
        return unsafe { syscall(SYS_clock_gettime, clock, to) } as c_int;
    }
    let ms = BEGIN_MS + NOW_MS.load(Ordering::SeqCst);
    let time = timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 };
    // SAFETY: the caller gives a pointer to a `timespec` that it owns, as the function of the C library asks.
    unsafe { to.write(time) };
    0
}

// SAFETY: takes the place of the C library's function of this name, with its type and meaning.
#[unsafe(no_mangle)]
extern "C" fn getrandom(to: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !IS_SIMULATED.load(Ordering::SeqCst) {
        // SAFETY: the arguments are the caller's, for the system call behind the function that it calls.
        return unsafe { syscall(SYS_getrandom, to, length, flags) } as ssize_t;
    }
    // SAFETY: the caller gives `length` bytes that it owns, as the function of the C library asks.
    let to = unsafe { slice::from_raw_parts_mut(to.cast::<MaybeUninit<u8>>(), length) };
    for part in to.chunks_mut(8) {
        let bits = mixed(RANDOM.fetch_add(STEP, Ordering::SeqCst));
        for (byte, drawn) in part.iter_mut().zip(bits.to_le_bytes()) {
            byte.write(drawn);
        }
    }
    length as ssize_t
}
