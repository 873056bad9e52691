//! The CUDA driver, as far as it is used: a context, streams, events, memory. The only unsafe code of
//! the crate.
//!
//! Everything but [`device_count`] belongs to the thread that [`Driver::open`] was called on.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};
use std::rc::Rc;

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr, CUevent, CUresult, CUstream};
use shardfeed_handoff::Hold;

use crate::copies::Copy;
use crate::error::{DeviceError, hint, variable};
use crate::stream::ConsumerStream;

/// All functions that are used, so that a library without one is refused and not run into.
const FUNCTIONS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuInit",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Registering 512 GiB at once is said to fail.
const REGISTER_BYTES_MAX: usize = 64 << 30;

/// `CU_STREAM_LEGACY`.
const LEGACY: usize = 1;

const PORTABLE: u32 = sys::CU_MEMHOSTREGISTER_PORTABLE;

/// Devices that this process sees.
///
/// # Errors  There is no driver, or none that works, or no device.
pub fn device_count() -> Result<usize, DeviceError> {
    // SAFETY: looks for a library by its usual names; loading the driver runs its initializers, as
    // every program that uses a GPU does.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoLibrary { library_path: variable("LD_LIBRARY_PATH") });
    }
    // SAFETY: it is there (just seen), so that this does not panic; it is never unloaded.
    let library = unsafe { sys::culib() };
    let lacks = |name: &&&'static str| {
        // SAFETY: the symbol is only looked for, not used.
        unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_err()
    };
    let missing: Vec<_> = FUNCTIONS.iter().filter(lacks).copied().collect();
    if !missing.is_empty() {
        return Err(DeviceError::Incomplete { missing });
    }
    let no_device = || DeviceError::NoDevice { visible: variable("CUDA_VISIBLE_DEVICES") };
    let mut count = 0;
    // SAFETY: the functions are there; `count` outlives the call.
    unsafe {
        match sys::cuInit(0) {
            CUresult::CUDA_ERROR_NO_DEVICE => return Err(no_device()),
            other => check("cuInit", other)?,
        }
        check("cuDeviceGetCount", sys::cuDeviceGetCount(&raw mut count))?;
    }
    if count > 0 { Ok(count.unsigned_abs() as usize) } else { Err(no_device()) }
}

fn check(call: &'static str, result: CUresult) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let code = result as u32;
    let mut text = null();
    // SAFETY: `text` outlives the call, after which it is null or a text that the driver never frees.
    let name = unsafe {
        match sys::cuGetErrorName(result, &raw mut text) {
            CUresult::CUDA_SUCCESS if !text.is_null() => {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
            _ => "an error without a name".into(),
        }
    };
    Err(DeviceError::Call { call, code, name, hint: hint(code) })
}

/// A device's primary context, which the trainer's framework uses too, current on this thread.
pub(crate) struct Driver {
    device: i32,
    /// A context is current on one thread.
    _thread: PhantomData<Rc<()>>,
}

impl Driver {
    pub(crate) fn open(ordinal: usize) -> Result<Self, DeviceError> {
        let count = device_count()?;
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(number) = number else {
            let visible = variable("CUDA_VISIBLE_DEVICES");
            return Err(DeviceError::NoSuchDevice { ordinal, count, visible });
        };
        let (mut device, mut context): (i32, CUcontext) = (0, null_mut());
        // SAFETY: the driver is initialized and complete, the results outlive the calls. The context is
        // made current on this thread, which is the caller's own and runs nobody else's code; it is
        // released when `self` is dropped.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, number))?;
            let retained = sys::cuDevicePrimaryCtxRetain(&raw mut context, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
            let driver = Self { device, _thread: PhantomData };
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            Ok(driver)
        }
    }

    /// Waits until nothing runs on the device that was begun before.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is current on this thread.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Makes host memory known to the device, so that copies from it run by themselves.
    pub(crate) fn register(&self, base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        for start in (0..bytes).step_by(REGISTER_BYTES_MAX) {
            let len = REGISTER_BYTES_MAX.min(bytes - start);
            // SAFETY: the caller has the memory mapped, and unregisters it before it is unmapped.
            let result = unsafe {
                let piece = base.as_ptr().add(start).cast::<c_void>();
                sys::cuMemHostRegister_v2(piece, len, PORTABLE)
            };
            if let Err(error) = check("cuMemHostRegister", result) {
                // What was registered before is not kept by halves.
                let _ = self.unregister(base, start);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes that back. No copy from it may be under way.
    pub(crate) fn unregister(&self, base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        for start in (0..bytes).step_by(REGISTER_BYTES_MAX) {
            // SAFETY: this piece was registered, and is still mapped.
            let result =
                unsafe { sys::cuMemHostUnregister(base.as_ptr().add(start).cast::<c_void>()) };
            check("cuMemHostUnregister", result)?;
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`; everything of it was dropped before. A driver that has shut
        // down already, at the process's end, says so and does nothing.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// The stream that copies to the device run on: never waits for the default stream.
pub(crate) struct CopyStream {
    stream: CUstream,
}

impl CopyStream {
    pub(crate) fn new(_driver: &Driver) -> Result<Self, DeviceError> {
        let (mut stream, flags) = (null_mut(), sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: a context is current on this thread (`_driver`), the result outlives the call.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Self { stream })
    }

    /// Waits for all copies.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; work that is queued on it runs on.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}

/// A place in a stream's work.
struct Event {
    event: CUevent,
}

impl Event {
    fn new() -> Result<Self, DeviceError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut event = null_mut();
        // SAFETY: a context is current on this thread, as a `Driver` was given to the slot.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
        Ok(Self { event })
    }

    fn record(&self, stream: CUstream) -> Result<(), DeviceError> {
        // SAFETY: event and stream live, the stream as its owner promises (see `DeviceSlot::lend`).
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.event, stream) })
    }

    /// What is queued on `stream` from here on runs after what was before the event.
    fn hold_back(&self, stream: CUstream) -> Result<(), DeviceError> {
        // SAFETY: as in `record`.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream, self.event, 0) })
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check("cuEventQuery", other).map(|()| true),
        }
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; waits for it that are queued are kept by the driver.
        let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
    }
}

/// Memory on the device.
struct DeviceMemory {
    base: CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    fn new(bytes: usize) -> Result<Self, DeviceError> {
        let mut base = 0;
        // SAFETY: as for `Event::new`.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut base, bytes) })?;
        Ok(Self { base, bytes })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once; the driver waits for what still reads it.
        let _ = unsafe { sys::cuMemFree_v2(self.base) };
    }
}

/// One slot: its memory, and the events that say who is done with it.
pub(crate) struct DeviceSlot {
    memory: Option<DeviceMemory>,
    /// The copy into it is complete.
    ready: Event,
    /// What is being copied.
    sources: Vec<Hold>,
    /// Streams that may read it.
    readers: Vec<ConsumerStream>,
    /// Recorded on the readers' streams when it was given back: these, and then some for reuse.
    free: Vec<Event>,
    draining: usize,
}

impl DeviceSlot {
    pub(crate) fn new(_driver: &Driver) -> Result<Self, DeviceError> {
        let (sources, readers, free) = (vec![], vec![], vec![]);
        Ok(Self { memory: None, ready: Event::new()?, sources, readers, free, draining: 0 })
    }

    /// Gets memory in place of what it has, which nobody uses.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<(), DeviceError> {
        assert!(self.sources.is_empty() && self.draining == 0, "nobody uses the slot");
        self.memory = None;
        self.memory = Some(DeviceMemory::new(bytes)?);
        Ok(())
    }

    pub(crate) fn free(&mut self) {
        assert!(self.sources.is_empty() && self.draining == 0, "nobody uses the slot");
        self.memory = None;
    }

    /// Address of its first byte on the device.
    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.base)
    }

    /// Begins to copy a batch into it, after those who read it last.
    ///
    /// # Panics  If source or target have no such bytes.
    pub(crate) fn fill(
        &mut self,
        source: Hold,
        copies: &[Copy],
        stream: &CopyStream,
    ) -> Result<(), DeviceError> {
        for reader in self.free.iter().take(std::mem::take(&mut self.draining)) {
            reader.hold_back(stream.stream)?;
        }
        let has = self.memory.as_ref().map_or(0, |memory| memory.bytes);
        let fits =
            |Copy { from, to, len }: &Copy| from + len <= source.size_bytes() && to + len <= has;
        assert!(
            copies.iter().all(fits),
            "{copies:?} lie in slots of {} and {has} bytes",
            source.size_bytes()
        );
        let base = self.address();
        // Kept also if one of several copies is refused.
        self.sources.push(source);
        let source = self.sources.last().expect("just added").base();
        for Copy { from, to, len } in copies {
            // SAFETY: both ranges lie in their memory (asserted). The source is mapped while its hold
            // lives, which is kept until `ready` says that the copy is complete, also when the slot is
            // dropped; nobody writes it meanwhile. The target is this slot's own, and whoever read it
            // comes before on the stream.
            let result = unsafe {
                let from = source.as_ptr().add(*from).cast::<c_void>();
                sys::cuMemcpyHtoDAsync_v2(base + *to as u64, from, *len, stream.stream)
            };
            check("cuMemcpyHtoDAsync", result)?;
        }
        self.ready.record(stream.stream)
    }

    /// Whether the copy is complete; the host's slot is let go then.
    pub(crate) fn is_filled(&mut self) -> Result<bool, DeviceError> {
        let is_over = self.sources.is_empty() || self.ready.is_over()?;
        if is_over {
            self.sources.clear();
        }
        Ok(is_over)
    }

    /// The device failed: what was being copied is let go.
    pub(crate) fn abandon(&mut self) {
        if !self.sources.is_empty() {
            // The host's memory must not be used again before; a device that failed copies no more.
            let _ = self.ready.wait();
            self.sources.clear();
        }
    }

    /// From here on `stream` may read it: what is queued there comes after the copy.
    ///
    /// A stream that was named by its handle must live until the slot was given back and this thread has
    /// seen that; the frameworks' streams live as long as the process.
    pub(crate) fn lend(&mut self, stream: ConsumerStream) -> Result<(), DeviceError> {
        if !self.sources.is_empty() {
            match raw(stream) {
                Some(raw) => self.ready.hold_back(raw)?,
                // Its stream cannot be named here, so this thread waits.
                None if stream == ConsumerStream::PerThread => self.ready.wait()?,
                None => {}
            }
        }
        if !self.readers.contains(&stream) {
            self.readers.push(stream);
        }
        Ok(())
    }

    /// Copies bytes of it to addresses on the same device, on the trainer's stream, which need not live
    /// longer than this call.
    ///
    /// # Panics  If it has no such bytes.
    pub(crate) fn copy_out(
        &mut self,
        copies: &[(Copy, u64)],
        stream: ConsumerStream,
    ) -> Result<(), DeviceError> {
        let stream = raw(stream).ok_or_else(|| {
            DeviceError::Invalid("a copy needs a stream that other threads can name".into())
        })?;
        if !self.sources.is_empty() {
            self.ready.hold_back(stream)?;
        }
        let has = self.memory.as_ref().map_or(0, |memory| memory.bytes);
        for (copy, target) in copies.iter().filter(|(copy, _)| copy.len > 0) {
            assert!(copy.from + copy.len <= has, "{copy:?} lies in a slot of {has} bytes");
            // SAFETY: the source lies in this slot (asserted), which is not written before what is
            // queued on this stream is over. The target is memory that the trainer's framework made
            // for this; a wrong address is an error of the driver.
            let result = unsafe {
                let from = self.address() + copy.from as u64;
                sys::cuMemcpyDtoDAsync_v2(target + copy.to as u64, from, copy.len, stream)
            };
            check("cuMemcpyDtoDAsync", result)?;
        }
        self.drains_after(stream)
    }

    /// The slot is read until what is queued on `stream` now is over.
    fn drains_after(&mut self, stream: CUstream) -> Result<(), DeviceError> {
        if self.free.len() == self.draining {
            self.free.push(Event::new()?);
        }
        self.free[self.draining].record(stream)?;
        self.draining += 1;
        Ok(())
    }

    /// The trainer gave it back: whoever reads it is done when what is queued on its stream now is.
    pub(crate) fn give_back(&mut self, driver: &Driver) -> Result<(), DeviceError> {
        for reader in std::mem::take(&mut self.readers) {
            match raw(reader) {
                Some(stream) => self.drains_after(stream)?,
                // Nobody knows on which stream it was read.
                None => driver.synchronize()?,
            }
        }
        Ok(())
    }

    /// Whether nobody reads it any more.
    pub(crate) fn is_drained(&mut self) -> Result<bool, DeviceError> {
        while self.draining > 0 {
            if !self.free[self.draining - 1].is_over()? {
                return Ok(false);
            }
            self.draining -= 1;
        }
        Ok(true)
    }
}

impl Drop for DeviceSlot {
    fn drop(&mut self) {
        self.abandon();
    }
}

fn raw(stream: ConsumerStream) -> Option<CUstream> {
    match stream {
        ConsumerStream::Legacy => Some(LEGACY as CUstream),
        ConsumerStream::Handle(handle) => Some(handle as CUstream),
        ConsumerStream::PerThread | ConsumerStream::Unknown => None,
    }
}
