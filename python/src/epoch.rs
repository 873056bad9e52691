//! One epoch's batches for Python's `for`. A batch is converted before it is consumed, and no
//! Python code runs between consuming and returning it, so an exception leaves the loader at the
//! loop's position.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::prelude::*;
use shardfeed_device::Device;
use shardfeed_embedded::{Commit, Delivery, Loader, Offered};

use crate::batch::NativeBatch;
use crate::device::{device_error, lend};
use crate::errors::named;
use crate::loader::NativeLoader;

/// Interval at which a wait checks for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The rest of one epoch of a loader.
#[pyclass(frozen, subclass, module = "shardfeed._native")]
pub(crate) struct NativeEpoch {
    loader: Py<NativeLoader>,
    #[pyo3(get)]
    number: u64,
    /// Converts a `NativeBatch` for the loop; called again if it was interrupted.
    make: Py<PyAny>,
    /// Called when the loop requests a batch, and when there is none left.
    asked: Option<Py<PyAny>>,
    ended: Option<Py<PyAny>>,
}

#[pymethods]
impl NativeEpoch {
    #[new]
    #[pyo3(signature = (loader, number, make, asked=None, ended=None))]
    fn new(
        loader: Py<NativeLoader>,
        number: u64,
        make: Py<PyAny>,
        asked: Option<Py<PyAny>>,
        ended: Option<Py<PyAny>>,
    ) -> Self {
        Self { loader, number, make, asked, ended }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if let Some(asked) = &self.asked {
            asked.call0(py)?;
        }
        let taken = self.loader.get().take(py, self.number, &self.make)?;
        if let (None, Some(ended)) = (&taken, &self.ended) {
            ended.call0(py)?;
        }
        Ok(taken)
    }
}

/// The number of the offered batch, and the batch if the loader has not handed it out before.
type NumberedOffer = (u64, Option<Offered>);

impl NativeLoader {
    /// Returns the next batch of `epoch`, converted by `make` and consumed; `None` if the loader is
    /// in another epoch. After an exception the next call returns the same batch.
    fn take(&self, py: Python<'_>, epoch: u64, make: &Py<PyAny>) -> PyResult<Option<Py<PyAny>>> {
        self.check_process(py)?;
        let _turn = self.turn.begin(py)?;
        let mut made: Option<(u64, Py<PyAny>)> = None;
        loop {
            py.check_signals()?;
            let number = match self.look(py, epoch)? {
                None | Some(Delivery::EpochEnd { .. }) => return Ok(None),
                Some(Delivery::Pending) => continue,
                Some(Delivery::Batch((number, new))) => {
                    if let Some(offered) = new {
                        let native = NativeBatch::new(offered, self.with_provenance);
                        self.turn.keep(number, Py::new(py, native)?);
                    }
                    number
                }
            };
            let Some(native) = self.turn.kept(py, number) else {
                return Err(named(py, "ShardfeedError", "the loader was closed"));
            };
            let object = match made.take() {
                Some((of, object)) if of == number => object,
                _ => make.call1(py, (native.clone_ref(py),))?,
            };
            py.check_signals()?;
            match self.with(py, Loader::commit)? {
                // From here on nothing may fail, and signals must not be checked.
                Commit::Consumed(_) => {
                    native.get().consumed();
                    self.turn.forget();
                    if let Some(device) = &self.device {
                        device.look();
                    }
                    return Ok(Some(object));
                }
                Commit::Later => {
                    made = Some((number, object));
                    py.detach(|| std::thread::sleep(SIGNALS_EVERY));
                }
                Commit::Withdrawn => self.turn.forget(),
            }
        }
    }

    /// Waits up to 50 ms for the next batch of `epoch`; `None` if the loader is in another epoch.
    fn look(&self, py: Python<'_>, epoch: u64) -> PyResult<Option<Delivery<NumberedOffer>>> {
        let device = self.device.as_ref();
        device.map_or(Ok(()), Device::check).map_err(|error| device_error(py, &error))?;
        self.with(py, |loader| {
            if loader.cursor().epoch() != epoch {
                return Ok(None);
            }
            let number = match loader.offer(SIGNALS_EVERY)? {
                Delivery::Batch(number) => number,
                Delivery::EpochEnd { epoch, steps } => {
                    return Ok(Some(Delivery::EpochEnd { epoch, steps }));
                }
                Delivery::Pending => return Ok(Some(Delivery::Pending)),
            };
            // A GPU may be busy indefinitely, so a signal also ends this wait.
            if let (Some(device), Some(batch)) = (device, loader.offered())
                && !lend(device, &self.made, batch, SIGNALS_EVERY)?
            {
                return Ok(Some(Delivery::Pending));
            }
            Ok(Some(Delivery::Batch((number, loader.take_offered()))))
        })
    }
}

/// The thread that takes the next batch of a loader, and the batch in hand. One thread at a time,
/// as a batch that is converted and not consumed belongs to its thread.
#[derive(Default)]
pub(crate) struct Turn {
    state: Mutex<TurnState>,
    ended: Condvar,
}

#[derive(Default)]
struct TurnState {
    owner: Option<ThreadId>,
    /// The batch in hand, with the number of its offer.
    in_hand: Option<(u64, Py<NativeBatch>)>,
}

/// A thread's turn; ends when dropped.
struct InTurn<'a>(&'a Turn);

impl Drop for InTurn<'_> {
    fn drop(&mut self) {
        self.0.lock().owner = None;
        self.0.ended.notify_one();
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, TurnState> {
        // Every change of the state is complete when the lock is released, even by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread takes a batch.
    fn begin(&self, py: Python<'_>) -> PyResult<InTurn<'_>> {
        let this = std::thread::current().id();
        let mut state = self.lock();
        while let Some(owner) = state.owner {
            drop(state);
            if owner == this {
                let message = "this thread takes a batch of this loader already: a signal handler, \
                               or code that makes batches, must not iterate over it";
                return Err(named(py, "ShardfeedError", message));
            }
            py.detach(|| {
                let taken = |state: &mut TurnState| state.owner.is_some();
                drop(self.ended.wait_timeout_while(self.lock(), SIGNALS_EVERY, taken));
            });
            py.check_signals()?;
            state = self.lock();
        }
        state.owner = Some(this);
        Ok(InTurn(self))
    }

    fn keep(&self, number: u64, batch: Py<NativeBatch>) {
        let before = self.lock().in_hand.replace((number, batch));
        drop(before);
    }

    fn kept(&self, py: Python<'_>, number: u64) -> Option<Py<NativeBatch>> {
        let state = self.lock();
        let (of, batch) = state.in_hand.as_ref()?;
        (*of == number).then(|| batch.clone_ref(py))
    }

    pub(crate) fn forget(&self) {
        let before = self.lock().in_hand.take();
        drop(before);
    }
}
