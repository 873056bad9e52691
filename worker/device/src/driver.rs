//! Bindings to the CUDA driver: context, streams, events, memory and kernels. The only unsafe code
//! of the crate.
//!
//! Everything except [`device_count`] belongs to the thread that called [`Driver::open`].
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmodule,
    CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use shardfeed_handoff::Hold;

use crate::copies::{Copies, Copy, Launch};
use crate::error::{DeviceError, hint, variable};
use crate::kernels::{BLOCK, Change, Kernel, NUMBERS_MAX, PTX, Pass};
use crate::stream::ConsumerStream;

/// Defines `cuda`, the driver functions used here, and the list of their names.
///
/// Functions return a number instead of cudarc's `CUresult`: a newer driver may return codes that
/// are no valid value of this `enum`.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        /// Names of all used functions, so that a library that lacks one is rejected.
        const FUNCTIONS: &[&str] = &["cuGetErrorName", $(stringify!($name)),*];

        #[allow(non_snake_case, clippy::too_many_arguments)]
        mod cuda {
            use super::*;

            $(function!($name($($argument: $type),*));)*
            // The first argument is a return code of the driver.
            function!(cuGetErrorName(code: u32, text: *mut *const c_char));
        }

        // Checks that the argument types equal cudarc's, which were generated from NVIDIA's header.
        $(const _: unsafe fn($($type),*) -> CUresult = sys::$name;)*
    };
}

macro_rules! function {
    ($name:ident($($argument:ident: $type:ty),*)) => {
        pub(super) unsafe fn $name($($argument: $type),*) -> u32 {
            type Function = unsafe extern "C" fn($($type),*) -> u32;
            static FOUND: OnceLock<Function> = OnceLock::new();
            let find = || {
                // SAFETY: the library has the function (checked by `device_count`) and is never
                // unloaded. Its type is that of NVIDIA's header, where `CUresult` is a C `enum`, an
                // unsigned 32-bit integer.
                unsafe {
                    let found = sys::culib().get::<Function>(stringify!($name).as_bytes());
                    *found.expect("callers have opened the driver")
                }
            };
            // SAFETY: the caller fulfils the requirements of this function.
            unsafe { FOUND.get_or_init(find)($($argument),*) }
        }
    };
}

functions! {
    cuCtxSetCurrent(context: CUcontext);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventQuery(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuInit(flags: c_uint);
    cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void
    );
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemHostRegister_v2(base: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister(base: *mut c_void);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    cuModuleUnload(module: CUmodule);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
    cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
}

/// Return codes that are no errors, or have a separate error.
const SUCCESS: u32 = CUresult::CUDA_SUCCESS as u32;
const NO_DEVICE: u32 = CUresult::CUDA_ERROR_NO_DEVICE as u32;
const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;
const CAPTURE_IMPLICIT: u32 = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as u32;

/// Registering 512 GiB at once is reported to fail.
const REGISTER_BYTES_MAX: usize = 64 << 30;

/// `CU_STREAM_LEGACY`.
const LEGACY: usize = 1;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;

const PORTABLE: u32 = sys::CU_MEMHOSTREGISTER_PORTABLE;

/// Returns the number of devices that this process sees.
///
/// # Errors  There is no driver, or none that works, or no device.
pub fn device_count() -> Result<usize, DeviceError> {
    // SAFETY: searches for a library by its usual names; loading the driver runs its initializers,
    // as in every program that uses a GPU.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoLibrary { library_path: variable("LD_LIBRARY_PATH") });
    }
    // SAFETY: the library is present (just checked), so this does not panic; it is never unloaded.
    let library = unsafe { sys::culib() };
    let lacks = |name: &&&'static str| {
        // SAFETY: the symbol is only looked up, not used.
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
        match cuda::cuInit(0) {
            NO_DEVICE => return Err(no_device()),
            other => check("cuInit", other)?,
        }
        check("cuDeviceGetCount", cuda::cuDeviceGetCount(&raw mut count))?;
    }
    if count > 0 { Ok(count.unsigned_abs() as usize) } else { Err(no_device()) }
}

/// Converts a return code to a result.
/// - `answer`: return code of a driver of any version; may be any number.
fn check(call: &'static str, answer: u32) -> Result<(), DeviceError> {
    if answer == SUCCESS {
        return Ok(());
    }
    let mut text = null();
    // SAFETY: `text` outlives the call, which sets it to null or to a text that the driver never
    // frees.
    let name = unsafe {
        match cuda::cuGetErrorName(answer, &raw mut text) {
            SUCCESS if !text.is_null() => CStr::from_ptr(text).to_string_lossy().into_owned(),
            _ => "an error without a name".into(),
        }
    };
    Err(DeviceError::Call { call, code: answer, name, hint: hint(call, answer) })
}

/// A device's primary context, shared with the trainer's framework, current on this thread.
///
/// While it exists, this thread's stream capture mode is relaxed: other threads may capture graphs
/// (torch: `capture_error_mode="global"`), and in the default mode allocating, registering, waiting
/// or querying an event here would then fail and invalidate their graph. No work of this thread
/// belongs to a graph.
pub(crate) struct Driver {
    device: i32,
    /// Previous mode of this thread.
    capture_mode: u32,
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
        // SAFETY: the driver is initialized and complete, the results outlive the calls. The
        // context is made current on this thread, which belongs to the caller and runs no foreign
        // code; it is released when `self` is dropped.
        unsafe {
            check("cuDeviceGet", cuda::cuDeviceGet(&raw mut device, number))?;
            let retained = cuda::cuDevicePrimaryCtxRetain(&raw mut context, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
            let mut driver = Self { device, capture_mode: RELAXED, _thread: PhantomData };
            check("cuCtxSetCurrent", cuda::cuCtxSetCurrent(context))?;
            driver.exchange_capture_mode()?;
            Ok(driver)
        }
    }

    /// Exchanges this thread's stream capture mode with the saved one.
    fn exchange_capture_mode(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the driver is initialized. It reads and writes one 32-bit C `enum` as a number,
        // so that a mode unknown to cudarc is never a value of a Rust `enum`.
        let exchanged =
            unsafe { cuda::cuThreadExchangeStreamCaptureMode((&raw mut self.capture_mode).cast()) };
        check("cuThreadExchangeStreamCaptureMode", exchanged)
    }

    /// True if memory can be allocated and freed in the order of a stream.
    fn has_pools(&self) -> Result<bool, DeviceError> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        let mut value = 0;
        // SAFETY: the driver is initialized, the result outlives the call.
        let asked = unsafe { cuda::cuDeviceGetAttribute(&raw mut value, attribute, self.device) };
        check("cuDeviceGetAttribute", asked)?;
        Ok(value != 0)
    }

    /// Registers host memory with the device, so that copies from it run asynchronously.
    pub(crate) fn register(&self, base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        for start in (0..bytes).step_by(REGISTER_BYTES_MAX) {
            let len = REGISTER_BYTES_MAX.min(bytes - start);
            // SAFETY: the caller has the memory mapped, and unregisters it before it is unmapped.
            let result = unsafe {
                let piece = base.as_ptr().add(start).cast::<c_void>();
                cuda::cuMemHostRegister_v2(piece, len, PORTABLE)
            };
            if let Err(error) = check("cuMemHostRegister", result) {
                // A partial registration is undone.
                let _ = self.unregister(base, start);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Undoes the registration. No copy from the memory may be in progress.
    pub(crate) fn unregister(&self, base: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        for start in (0..bytes).step_by(REGISTER_BYTES_MAX) {
            // SAFETY: this piece was registered, and is still mapped.
            let result =
                unsafe { cuda::cuMemHostUnregister(base.as_ptr().add(start).cast::<c_void>()) };
            check("cuMemHostUnregister", result)?;
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A driver that has already shut down keeps no mode.
        let _ = self.exchange_capture_mode();
        // SAFETY: retained once in `open`; everything in the context was dropped before. A driver
        // that has already shut down, at the end of the process, returns an error and does nothing.
        let _ = unsafe { cuda::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Stream for copies to the device; never waits for the default stream.
pub(crate) struct CopyStream {
    stream: CUstream,
    has_pools: bool,
}

impl CopyStream {
    pub(crate) fn new(driver: &Driver) -> Result<Self, DeviceError> {
        let has_pools = driver.has_pools()?;
        let (mut stream, flags) = (null_mut(), sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: a context is current on this thread (`driver`), the result outlives the call.
        check("cuStreamCreate", unsafe { cuda::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Self { stream, has_pools })
    }

    /// Waits for all copies.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { cuda::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once; work queued on it still completes.
        let _ = unsafe { cuda::cuStreamDestroy_v2(self.stream) };
    }
}

/// A position in a stream's work.
struct StreamEvent {
    event: CUevent,
}

impl StreamEvent {
    fn new() -> Result<Self, DeviceError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        let mut event = null_mut();
        // SAFETY: a context is current on this thread, because the slot was created with a
        // `Driver`.
        check("cuEventCreate", unsafe { cuda::cuEventCreate(&raw mut event, flags) })?;
        Ok(Self { event })
    }

    fn record(&self, stream: CUstream) -> Result<(), DeviceError> {
        // SAFETY: event and stream exist, the stream as its owner guarantees (see
        // `DeviceSlot::lend`).
        check("cuEventRecord", unsafe { cuda::cuEventRecord(self.event, stream) })
    }

    /// Makes work queued on `stream` from now on wait for the work before the event.
    fn hold_back(&self, stream: CUstream) -> Result<(), DeviceError> {
        // SAFETY: as in `record`.
        check("cuStreamWaitEvent", unsafe { cuda::cuStreamWaitEvent(stream, self.event, 0) })
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        // SAFETY: the event lives.
        match unsafe { cuda::cuEventQuery(self.event) } {
            NOT_READY => Ok(false),
            other => check("cuEventQuery", other).map(|()| true),
        }
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe { cuda::cuEventSynchronize(self.event) })
    }
}

impl Drop for StreamEvent {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once; the driver keeps queued waits for it.
        let _ = unsafe { cuda::cuEventDestroy_v2(self.event) };
    }
}

/// Memory on the device. It is dropped before the stream that it was created with.
struct DeviceMemory {
    base: CUdeviceptr,
    bytes: usize,
    /// Stream in whose order it is freed. `None`: the device frees it only after all work of the
    /// context.
    stream: Option<CUstream>,
}

impl DeviceMemory {
    /// Allocates memory for work queued on `stream`, or after that.
    fn new(bytes: usize, stream: &CopyStream) -> Result<Self, DeviceError> {
        let (mut base, stream) = (0, stream.has_pools.then_some(stream.stream));
        // SAFETY: as for `StreamEvent::new`; the stream lives.
        unsafe {
            match stream {
                Some(stream) => {
                    check("cuMemAllocAsync", cuda::cuMemAllocAsync(&raw mut base, bytes, stream))?;
                }
                None => check("cuMemAlloc", cuda::cuMemAlloc_v2(&raw mut base, bytes))?,
            }
        }
        Ok(Self { base, bytes, stream })
    }

    /// Allocates memory that contains these bytes, and waits for the copy.
    fn holding(bytes: &[u8], stream: &CopyStream) -> Result<Self, DeviceError> {
        let memory = Self::new(bytes.len(), stream)?;
        // SAFETY: both have this many bytes; the source is unchanged until the stream is
        // synchronized.
        let result = unsafe {
            let from = bytes.as_ptr().cast::<c_void>();
            cuda::cuMemcpyHtoDAsync_v2(memory.base, from, bytes.len(), stream.stream)
        };
        check("cuMemcpyHtoDAsync", result)?;
        stream.synchronize()?;
        Ok(memory)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once. With a stream it is freed after all work queued
        // there, which is the copies into it and waits for its readers; without one the driver
        // waits for all readers.
        let _ = unsafe {
            match self.stream {
                Some(stream) => cuda::cuMemFreeAsync(self.base, stream),
                None => cuda::cuMemFree_v2(self.base),
            }
        };
    }
}

/// Loaded kernels, and their lookup tables.
pub(crate) struct Kernels {
    module: CUmodule,
    /// In the order of [`Kernel::ALL`].
    functions: Vec<CUfunction>,
    changes: Arc<[Change]>,
    /// Means and deviations, for each pass of each change that normalizes.
    tables: Vec<Vec<Option<DeviceMemory>>>,
}

impl Kernels {
    pub(crate) fn load(stream: &CopyStream, changes: Arc<[Change]>) -> Result<Self, DeviceError> {
        let mut module = null_mut();
        // SAFETY: a context is current on this thread, as a stream exists; the text ends with a
        // zero (checked by a test), the result outlives the call.
        let loaded = unsafe { cuda::cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()) };
        check("cuModuleLoadData", loaded)?;
        let mut kernels = Self { module, functions: vec![], changes, tables: vec![] };
        for kernel in Kernel::ALL {
            let mut function = null_mut();
            // SAFETY: the module was just loaded; name and result outlive the call.
            let found = unsafe {
                cuda::cuModuleGetFunction(&raw mut function, module, kernel.name().as_ptr())
            };
            check("cuModuleGetFunction", found)?;
            kernels.functions.push(function);
        }
        for change in kernels.changes.iter() {
            let table = |pass: &Pass| {
                let normalize = pass.normalize.as_ref();
                normalize.map(|n| DeviceMemory::holding(&n.table, stream)).transpose()
            };
            let tables = change.passes().iter().map(table).collect::<Result<_, _>>()?;
            kernels.tables.push(tables);
        }
        Ok(kernels)
    }

    /// Queues a kernel on a slot.
    /// - `memory`: of the slot.
    ///
    /// # Panics  If the memory is too small for the kernel.
    fn launch(
        &self,
        launch: &Launch,
        memory: &DeviceMemory,
        stream: &CopyStream,
    ) -> Result<(), DeviceError> {
        let pass = &self.changes[launch.change].passes()[launch.pass];
        if launch.count == 0 {
            return Ok(());
        }
        if launch.count >= NUMBERS_MAX {
            return Err(DeviceError::Invalid(format!(
                "operators after on_device() change fewer than {NUMBERS_MAX} numbers of a column at once, and a \
                 batch has {}; use a smaller batch_size, or call them before it",
                launch.count
            )));
        }
        let ends = |start: usize, bytes: usize| start + launch.count * bytes <= memory.bytes;
        assert!(
            ends(launch.source, pass.from.bytes()) && ends(launch.target, pass.to.bytes()),
            "{launch:?} lies in a slot of {} bytes",
            memory.bytes
        );
        let (mut source, mut target) =
            (memory.base + launch.source as u64, memory.base + launch.target as u64);
        let (mut count, mut rows, mut columns) = (launch.count as u32, pass.rows, pass.columns);
        let (mut from, mut to) = (pass.from as u32, pass.to as u32);
        let mut width = pass.from.bytes() as u32;
        let table = self.tables[launch.change][launch.pass].as_ref();
        let mut table = table.map_or(0, |memory| memory.base);
        let normalize = pass.normalize.as_ref();
        let mut channels = normalize.map_or(1, |normalize| normalize.channels);
        let mut is_after = u32::from(normalize.is_some_and(|normalize| normalize.is_after));
        let mut parameters: Vec<*mut c_void> = vec![
            (&raw mut source).cast(),
            (&raw mut target).cast(),
            (&raw mut count).cast(),
            (&raw mut rows).cast(),
            (&raw mut columns).cast(),
        ];
        let kernel = pass.kernel();
        match kernel {
            Kernel::Move => parameters.push((&raw mut width).cast()),
            Kernel::Cast => parameters.extend([(&raw mut from).cast(), (&raw mut to).cast()]),
            Kernel::Normalize32 | Kernel::Normalize64 => {
                parameters.extend::<[*mut c_void; 5]>([
                    (&raw mut from).cast(),
                    (&raw mut to).cast(),
                    (&raw mut table).cast(),
                    (&raw mut channels).cast(),
                    (&raw mut is_after).cast(),
                ]);
            }
        }
        // SAFETY: number and widths of the parameters match the declaration in `kernels.ptx`, and
        // they are read during the call. The kernel reads and writes `count` numbers of the slot,
        // which has them (asserted), after its previous readers in stream order; and it reads
        // within the table.
        let result = unsafe {
            cuda::cuLaunchKernel(
                self.functions[kernel as usize],
                count.div_ceil(BLOCK),
                1,
                1,
                BLOCK,
                1,
                1,
                0,
                stream.stream,
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded once in `load`, unloaded once; no queued work uses it, because the copy
        // stream was synchronized.
        let _ = unsafe { cuda::cuModuleUnload(self.module) };
    }
}

/// One slot: its memory, and the events that mark the end of its use.
pub(crate) struct DeviceSlot {
    memory: Option<DeviceMemory>,
    /// Marks that the copy into it is complete.
    ready: StreamEvent,
    /// Sources of the copy in progress.
    sources: Vec<Hold>,
    /// Streams that may read it, and whose end is not marked by an event yet.
    readers: Vec<ConsumerStream>,
    /// Events recorded on the readers' streams when the slot was returned, followed by unused ones.
    free: Vec<StreamEvent>,
    draining: usize,
}

impl DeviceSlot {
    pub(crate) fn new(_driver: &Driver) -> Result<Self, DeviceError> {
        let (sources, readers, free) = (vec![], vec![], vec![]);
        Ok(Self { memory: None, ready: StreamEvent::new()?, sources, readers, free, draining: 0 })
    }

    /// Allocates memory to replace its current memory, which must be unused.
    pub(crate) fn allocate(
        &mut self,
        bytes: usize,
        stream: &CopyStream,
    ) -> Result<(), DeviceError> {
        self.free();
        self.memory = Some(DeviceMemory::new(bytes, stream)?);
        Ok(())
    }

    pub(crate) fn free(&mut self) {
        let is_used = self.draining > 0 || !(self.sources.is_empty() && self.readers.is_empty());
        assert!(!is_used, "the slot is not in use");
        self.memory = None;
    }

    /// Address of its first byte on the device.
    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.base)
    }

    /// Starts copying a batch into it and running its kernels, after the previous readers.
    /// - `kernels`: for the launches.
    ///
    /// # Panics  If source or target are too small, or kernels are missing for a launch.
    pub(crate) fn fill(
        &mut self,
        source: Hold,
        Copies { copies, launches, .. }: &Copies,
        kernels: Option<&Kernels>,
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
        // Also kept if one of several copies fails.
        self.sources.push(source);
        let source = self.sources.last().expect("just added").base();
        for Copy { from, to, len } in copies {
            // SAFETY: both ranges are within their memory (asserted). The source is mapped while
            // its hold exists, which is kept until `ready` marks the copy as complete, also when
            // the slot is dropped; it is not written in that time. The target belongs to this slot,
            // and its previous readers come before in stream order.
            let result = unsafe {
                let from = source.as_ptr().add(*from).cast::<c_void>();
                cuda::cuMemcpyHtoDAsync_v2(base + *to as u64, from, *len, stream.stream)
            };
            check("cuMemcpyHtoDAsync", result)?;
        }
        if let Some(memory) = self.memory.as_ref().filter(|_| !launches.is_empty()) {
            let kernels = kernels.expect("changes are loaded before a batch is prepared for them");
            for launch in launches {
                kernels.launch(launch, memory, stream)?;
            }
        }
        self.ready.record(stream.stream)
    }

    /// Returns true if the copy is complete; the host's slot is released then.
    pub(crate) fn is_filling(&mut self) -> Result<bool, DeviceError> {
        let is_over = self.sources.is_empty() || self.ready.is_over()?;
        if is_over {
            self.sources.clear();
        }
        Ok(is_over)
    }

    /// Releases the source of a copy after a failure of the device.
    pub(crate) fn abandon(&mut self) {
        if !self.sources.is_empty() {
            // The host's memory must not be reused before that; a failed device stops copying.
            let _ = self.ready.wait();
            self.sources.clear();
        }
    }

    /// Lets `stream` read the slot: work queued there from now on runs after the copy.
    /// - Returns false if the stream cannot wait for the copy, because it belongs to another thread
    ///   or is part of a capture: call again until the copy is complete.
    ///
    /// A stream named by its handle must exist until the slot was returned and this thread has
    /// processed that; the frameworks' streams exist as long as the process.
    pub(crate) fn lend(&mut self, stream: ConsumerStream) -> Result<bool, DeviceError> {
        if !self.sources.is_empty() && stream != ConsumerStream::Unknown {
            match stream {
                ConsumerStream::PerThread => return Ok(false),
                named if is_captured(raw(named))? => return Ok(false),
                named => self.ready.hold_back(raw(named))?,
            }
        }
        if !self.readers.contains(&stream) {
            self.readers.push(stream);
        }
        Ok(true)
    }

    /// Copies bytes of it to addresses on the same device, on the trainer's stream, which need not
    /// exist longer than this call.
    ///
    /// # Panics  If the slot is too small.
    pub(crate) fn copy_out(
        &mut self,
        copies: &[(Copy, u64)],
        reader: ConsumerStream,
    ) -> Result<(), DeviceError> {
        if matches!(reader, ConsumerStream::PerThread | ConsumerStream::Unknown) {
            let message = "a copy needs a stream that other threads can name";
            return Err(DeviceError::Invalid(message.into()));
        }
        let stream = raw(reader);
        if is_captured(stream)? {
            return Err(DeviceError::Captured);
        }
        if !self.sources.is_empty() {
            self.ready.hold_back(stream)?;
        }
        let has = self.memory.as_ref().map_or(0, |memory| memory.bytes);
        for (copy, target) in copies.iter().filter(|(copy, _)| copy.len > 0) {
            assert!(copy.from + copy.len <= has, "{copy:?} lies in a slot of {has} bytes");
            // SAFETY: the source is within this slot (asserted), which is not written before the
            // work queued on this stream is complete. The target is memory that the trainer's
            // framework allocated for this; a wrong address is an error of the driver.
            let result = unsafe {
                let from = self.address() + copy.from as u64;
                cuda::cuMemcpyDtoDAsync_v2(target + copy.to as u64, from, copy.len, stream)
            };
            check("cuMemcpyDtoDAsync", result)?;
        }
        if !self.drains_after(stream)? {
            self.readers.push(reader);
        }
        Ok(())
    }

    /// Marks the slot as being read until the work queued on `stream` now is complete.
    /// - Returns false if no event can mark that, because the stream is part of a capture.
    fn drains_after(&mut self, stream: CUstream) -> Result<bool, DeviceError> {
        if is_captured(stream)? {
            return Ok(false);
        }
        if self.free.len() == self.draining {
            self.free.push(StreamEvent::new()?);
        }
        self.free[self.draining].record(stream)?;
        // An event that became part of a capture, which began in between, would never complete.
        let is_marked = !is_captured(stream)?;
        self.draining += usize::from(is_marked);
        Ok(is_marked)
    }

    /// Takes the slot back: each reader is done when the work queued on its stream now is complete.
    /// - Returns false if a reader's stream is part of a capture: call again until that has ended.
    pub(crate) fn give_back(&mut self) -> Result<bool, DeviceError> {
        for reader in std::mem::take(&mut self.readers) {
            if !self.drains_after(raw(reader))? {
                self.readers.push(reader);
            }
        }
        Ok(self.readers.is_empty())
    }

    /// Returns true if no reader is left.
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
        if let Some(stream) = self.memory.as_ref().and_then(|memory| memory.stream) {
            // Its memory is freed after the remaining readers.
            for reader in self.free.iter().take(self.draining) {
                let _ = reader.hold_back(stream);
            }
        }
    }
}

/// Returns a stream's handle.
///
/// A stream that cannot be named is a default stream, or one that the legacy default stream waits
/// for: `DeviceArray` guarantees no more.
fn raw(stream: ConsumerStream) -> CUstream {
    match stream {
        ConsumerStream::Handle(handle) => handle as CUstream,
        ConsumerStream::Legacy | ConsumerStream::PerThread | ConsumerStream::Unknown => {
            LEGACY as CUstream
        }
    }
}

/// Returns true if a graph is being captured on a stream; for the legacy default stream, on any
/// stream that it waits for. Events of this crate must not enter or leave a graph.
fn is_captured(stream: CUstream) -> Result<bool, DeviceError> {
    let mut status = 0_u32;
    // SAFETY: the stream exists, as its owner guarantees. The result is one 32-bit C `enum`, as a
    // number. This query is permitted at any time and changes no capture.
    let asked = unsafe { cuda::cuStreamIsCapturing(stream, (&raw mut status).cast()) };
    if asked == CAPTURE_IMPLICIT {
        return Ok(true);
    }
    check("cuStreamIsCapturing", asked).map(|()| status != 0)
}
