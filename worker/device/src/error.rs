//! Errors of a device: the failed operation, the driver's answer, and what to do.

/// Reason why a device is unusable, from the start or since a failure.
///
/// `device="cpu"` works without a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "no NVIDIA driver here: libcuda.so.1 was looked for in the system's library folders and in \
         LD_LIBRARY_PATH ({library_path}); install the driver, start the container with its GPUs \
         (docker run --gpus all), or use device=\"cpu\""
    )]
    NoLibrary {
        /// Value of that variable, or that it is not set.
        library_path: String,
    },
    /// The library called libcuda is a different library, or too old.
    #[error(
        "the NVIDIA driver that was found lacks {}; a driver of version 525 or later has all that is \
         used (a stub of the CUDA toolkit in LD_LIBRARY_PATH hides it)",
        .missing.join(", ")
    )]
    Incomplete {
        /// Missing functions.
        missing: Vec<&'static str>,
    },
    #[error(
        "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES: {visible}); give this process or \
         container one, or use device=\"cpu\""
    )]
    NoDevice {
        /// Value of that variable, or that it is not set.
        visible: String,
    },
    #[error(
        "there is no device \"cuda:{ordinal}\": this process sees {count}, counted from 0 \
         (CUDA_VISIBLE_DEVICES: {visible})"
    )]
    NoSuchDevice {
        /// Requested number.
        ordinal: usize,
        count: usize,
        /// Value of that variable, or that it is not set.
        visible: String,
    },
    #[error("{call}: the NVIDIA driver says {name} ({code}){hint}")]
    Call {
        /// Name of the function.
        call: &'static str,
        code: u32,
        /// Driver's name of the error code.
        name: String,
        hint: &'static str,
    },
    #[error(
        "this device is in use by the process that this one was forked from: CUDA does not survive a \
         fork; make the loader after forking, or start processes by \"spawn\""
    )]
    Forked,
    #[error("the loader was closed, and with it the thread that copies to the device")]
    Ended,
    #[error(
        "the thread that copies to the device has not answered for {seconds} s: it waits for the NVIDIA \
         driver; look at dmesg and nvidia-smi, and start the process again"
    )]
    Stuck {
        /// Time without an answer, in seconds.
        seconds: u64,
    },
    #[error("cannot start the thread that copies to the device: {0}")]
    Thread(String),
    #[error(
        "the stream that batches are copied on is part of the capture of a CUDA graph: take \
         batches before the capture or after it, as memory captured now is read again at every \
         launch of the graph"
    )]
    Captured,
    /// An argument is invalid.
    #[error("{0}")]
    Invalid(String),
}

/// Formats the value of an environment variable for a message.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).map_or_else(|_| "not set".into(), |value| format!("{value:?}"))
}

pub(crate) fn hint(call: &str, code: u32) -> &'static str {
    match code {
        712 => {
            "; something else in this process registered (pinned) this memory: leave the arrays of batches as \
             they are"
        }
        713 => {
            "; something else in this process took back the registration (pinning) of this memory: leave the \
             arrays of batches as they are"
        }
        _ if call == "cuMemHostRegister" => {
            "; raise the limit on locked memory (ulimit -l), or give the container memory to lock"
        }
        2 => {
            "; the GPU has no memory left for batches: use a smaller batch_size, or leave it some \
              (JAX: XLA_PYTHON_CLIENT_MEM_FRACTION)"
        }
        3 | 999 => "; the driver does not work in this process: look at nvidia-smi and dmesg",
        34 => {
            "; a stub of the CUDA toolkit was loaded in place of the driver: take its folder out of \
               LD_LIBRARY_PATH"
        }
        46 => "; the GPU is in use by another process alone: see `nvidia-smi -q -d COMPUTE`",
        209 | 218 | 221 | 222 => {
            "; the driver cannot make the kernels of on_device() for this GPU: it has to be of Volta's \
             generation or later, and in a container the driver needs its PTX compiler \
             (NVIDIA_DRIVER_CAPABILITIES=compute,utility); without on_device() the worker does the same on the host"
        }
        700 | 702 | 709 | 710 | 714..=719 => {
            "; something that ran on the GPU failed, here or in the trainer, and nothing can run there \
             any more: start the process again from its last checkpoint"
        }
        900..=908 => {
            "; a CUDA graph was being captured: take batches before the capture or after it, on streams that \
             are not part of it"
        }
        803 | 804 => "; driver and libcuda.so.1 are of different versions: mount the host's driver",
        _ => "",
    }
}
