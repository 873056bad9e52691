//! `shardfeed-chaos`: runs seeds and reports the results. See `make chaos`.
#![forbid(unsafe_code)]

#[cfg(tokio_unstable)]
mod command;

use std::process::ExitCode;

#[cfg(tokio_unstable)]
fn main() -> ExitCode {
    command::main()
}

#[cfg(not(tokio_unstable))]
fn main() -> ExitCode {
    use std::io::Write;
    // Ignore errors: the reader of stderr may have exited.
    let _ = std::io::stderr().write_all(
        b"error: this build cannot simulate\nhint: run `make chaos`, which builds with --cfg tokio_unstable\n",
    );
    ExitCode::FAILURE
}
