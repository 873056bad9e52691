//! The trainer's side of a device: its own streams, memory and work, directly on the driver.
#![allow(missing_docs, unreachable_pub)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult, CUstream};
use shardfeed_device::{ConsumerStream, DeviceBatch};

type StandinHurry = unsafe extern "C" fn() -> c_int;
type StandinWork = unsafe extern "C" fn(CUstream, u64, usize, u32) -> c_int;

/// Returns the address of a batch, once it has a slot.
pub fn lent(batch: &mut DeviceBatch) -> u64 {
    loop {
        if let Some(address) = batch.lend(Duration::from_millis(50)).expect("the device works") {
            return address;
        }
    }
}

/// A framework's use of the driver, on the thread that created it.
pub struct Consumer {
    stream: CUstream,
}

fn check(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

impl Consumer {
    pub fn new() -> Self {
        Self::with_flags(0)
    }

    /// Creates a stream that the legacy default stream does not wait for, as torch's are, including
    /// those for captures.
    pub fn non_blocking() -> Self {
        Self::with_flags(1)
    }

    fn with_flags(flags: u32) -> Self {
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: the driver is present; the results outlive the calls.
        unsafe {
            check(sys::cuInit(0));
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0));
            check(sys::cuCtxSetCurrent(context));
            check(sys::cuStreamCreate(&raw mut stream, flags));
        }
        Self { stream }
    }

    /// Begins to capture a graph, in torch's default mode.
    pub fn captures(&self) {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream exists.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) });
    }

    pub fn ends_capture(&self) {
        let mut graph = null_mut();
        // SAFETY: the stream exists; the fake driver's graphs are empty.
        check(unsafe { sys::cuStreamEndCapture(self.stream, &raw mut graph) });
    }

    pub fn stream(&self) -> ConsumerStream {
        ConsumerStream::from_handle(self.stream as u64)
    }

    /// Queues work that reads `bytes` for this number of microseconds.
    pub fn works(&self, address: u64, bytes: usize, microseconds: u32) {
        self.queue(b"standin_work", address, bytes, microseconds);
    }

    /// Queues work that reads `bytes` until this total number of copies from the host is complete.
    pub fn works_until(&self, address: u64, bytes: usize, copies: u32) {
        self.queue(b"standin_work_until", address, bytes, copies);
    }

    fn queue(&self, function: &[u8], address: u64, bytes: usize, number: u32) {
        // SAFETY: the fake driver has these functions, of this type; they check their arguments.
        let result = unsafe {
            let work = sys::culib().get::<StandinWork>(function).expect("it is the stand-in");
            work(self.stream, address, bytes, number)
        };
        assert_eq!(result, 0);
    }

    /// Ends all delays of queued work from now on.
    pub fn hurry(&self) {
        // SAFETY: the fake driver has this function, of this type.
        unsafe {
            sys::culib().get::<StandinHurry>(b"standin_hurry").expect("it is the stand-in")()
        };
    }

    /// Returns the bytes at an address after all queued work is complete.
    pub fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut copy = vec![0; len];
        // SAFETY: the target has `len` bytes and outlives the copy, which is synchronized.
        unsafe {
            let target = copy.as_mut_ptr().cast::<c_void>();
            check(sys::cuMemcpyDtoHAsync_v2(target, address, len, self.stream));
            check(sys::cuStreamSynchronize(self.stream));
        }
        copy
    }

    pub fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the result outlives the call.
        check(unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) });
        address
    }

    pub fn free(&self, address: u64) {
        // SAFETY: the fake driver detects a double free.
        check(unsafe { sys::cuMemFree_v2(address) });
    }

    /// Queues a copy on the default stream, not ordered behind any other work.
    pub fn writes(&self, to: u64, from: u64, bytes: usize) {
        // SAFETY: the fake driver checks the addresses.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, null_mut()) });
    }

    /// Queues a copy of host memory, which the caller leaves unchanged.
    pub fn sends(&self, to: u64, from: &[u8]) {
        let (start, len) = (from.as_ptr().cast::<c_void>(), from.len());
        // SAFETY: the fake driver checks the addresses.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, start, len, self.stream) });
    }

    pub fn pins(&self, bytes: &mut [u8]) {
        // SAFETY: the fake driver checks the addresses.
        let result =
            unsafe { sys::cuMemHostRegister_v2(bytes.as_mut_ptr().cast(), bytes.len(), 1) };
        check(result);
    }

    pub fn unpins(&self, bytes: &mut [u8]) {
        // SAFETY: the fake driver checks the addresses.
        check(unsafe { sys::cuMemHostUnregister(bytes.as_mut_ptr().cast()) });
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and released once.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(0);
        }
    }
}
