//! The binary `recollect`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    worker::cli::main(std::env::args_os()).into()
}
