//! The command line: one verb per file, logs on stderr, one line for an error, and its exit code.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kvstore::config::with_negative_numbers;
use tracing_subscriber::EnvFilter;

use crate::model::ModelError;

mod bench;
mod capture;
mod demo;
mod fidelity;
mod generate;
pub(crate) mod input;
mod inspect;
mod inspect_file;
pub mod model;
pub(crate) mod print;
pub mod service;
mod session_id;
mod snapshot;
pub mod spending;
mod study;
mod tier;

/// Long-context inference over shard servers that hold the keys and values.
#[derive(Parser, Debug)]
#[command(name = "recollect", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Continue a prompt, with its keys and values on shards
    Generate(generate::GenerateArgs),
    /// Answer questions over a long document of the demo's own making
    Demo(demo::DemoArgs),
    /// Compare with full attention, teacher-forced over the end of a context
    Fidelity(fidelity::FidelityArgs),
    /// Measure on captured keys, values and queries
    Bench(bench::BenchArgs),
    /// Write the keys, values and queries of chosen layers and heads of a text as capture files
    Capture(capture::CaptureArgs),
    /// Show what a running shard holds (sessions, spans, index kinds, heads below their recall target), an extent file or a snapshot
    Inspect(inspect::InspectArgs),
    /// Move the rows of sealed spans from a shard's RAM to its files, from which they are searched, or to its archive
    Evict(tier::EvictArgs),
    /// Copy rows that lie in a shard's files or its archive back into its RAM
    Promote(tier::TierArgs),
    /// Keep what sessions have in a shard's RAM there
    Pin(tier::TierArgs),
    /// Take a pin back
    Unpin(tier::TierArgs),
    /// Copy a session from shards into a directory, or bring one from there into other shards
    Snapshot(snapshot::SnapshotArgs),
    /// Measure where retrieval holds and where not: per layer and head, and per place in a document
    Study(study::StudyArgs),
}

/// Something the caller asked for that cannot be: exit code 64.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// An error of usage or configuration.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// Runs one command line; the exit code is 0 done, 1 failed, 64 bad usage or configuration, 69 unavailable.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> u8 {
    let parsed = with_negative_numbers(Cli::command()).try_get_matches_from(arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!("error: a command is needed (see --help)");
            return 64;
        }
        Err(error) if error.use_stderr() => {
            eprintln!("{}", one_line(&error.to_string()));
            return 64;
        }
        // --help and --version; a closed pipe is no reason to fail.
        Err(help) => {
            help.print().ok();
            return 0;
        }
    };
    let filter = match log_filter() {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("error: {error}");
            return 64;
        }
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    if let Err(error) = kernels::Kernels::from_env() {
        eprintln!("error: RECOLLECT_KERNELS: {error}");
        return 64;
    }
    let done = match &cli.verb {
        Verb::Generate(args) => generate::run(args),
        Verb::Demo(args) => demo::run(args),
        Verb::Fidelity(args) => fidelity::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Capture(args) => capture::run(args),
        Verb::Inspect(args) => inspect::run(args),
        Verb::Evict(args) => tier::evict(args),
        Verb::Promote(args) => tier::run(tier::Verb::Promote, args),
        Verb::Pin(args) => tier::run(tier::Verb::Pin, args),
        Verb::Unpin(args) => tier::run(tier::Verb::Unpin, args),
        Verb::Snapshot(args) => snapshot::run(args),
        Verb::Study(args) => study::run(args),
    };
    match done {
        Ok(()) => 0,
        // Whoever read this has gone, as `head` does; a shell's code for it.
        Err(error) if is_broken_pipe(&error) => 141,
        Err(error) => {
            eprintln!("error: {}", said(&error));
            exit_code(&error)
        }
    }
}

/// What the log says; RECOLLECT_LOG, else `info`.
fn log_filter() -> Result<EnvFilter, String> {
    match std::env::var("RECOLLECT_LOG") {
        Err(_) => Ok(EnvFilter::new("info")),
        Ok(text) => EnvFilter::try_new(&text).map_err(|e| format!("RECOLLECT_LOG {text:?}: {e}")),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(is))
}

/// The chain of causes on one line; a cause that the message before it has quoted is not said again.
fn said(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
    }
    line.replace('\n', " ")
}

/// The code that the first cause with an opinion asks for.
fn exit_code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<Usage>() {
            return 64;
        }
        if let Some(error) = cause.downcast_ref::<ModelError>() {
            return match error {
                error if error.is_usage() => 64,
                error if error.is_unavailable() => 69,
                _ => 1,
            };
        }
        if let Some(error) = cause.downcast_ref::<client::Error>() {
            return match error.kind() {
                client::Kind::Usage => 64,
                client::Kind::Unavailable => 69,
                client::Kind::Failed => 1,
            };
        }
    }
    1
}

/// The first paragraph of a message, on one line.
fn one_line(message: &str) -> String {
    let paragraph = message.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::model::{Loaded, Precision, RopeScaling};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_usage_is_one_line_and_64() {
        assert_eq!(main(["recollect", "capture", "--layers", "x"]), 64);
        let parse =
            |arguments: &[&str]| with_negative_numbers(Cli::command()).try_get_matches_from(arguments);
        let error =
            parse(&["recollect", "bench", "appends", "--capture", "x", "--appended", "-5"]).unwrap_err();
        let line = one_line(&error.to_string());
        assert!(line.contains("'-5' for '--appended") && !line.contains('\n'), "{line}");
        assert_eq!(main(["recollect", "no-such-verb"]), 64);
        assert_eq!(main(["recollect"]), 64);
        assert_eq!(main(["recollect", "bench"]), 64);
        assert_eq!(main(["recollect", "--version"]), 0);
        let error = Cli::try_parse_from(["recollect", "capture"]).unwrap_err();
        let line = one_line(&error.to_string());
        assert!(line.starts_with("error: ") && line.contains("--text") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn codes_follow_the_cause() {
        assert_eq!(exit_code(&usage("no").context("more")), 64);
        assert_eq!(exit_code(&anyhow::anyhow!("no")), 1);
        let absent = Loaded::load(Some(Path::new("no/such/model.gguf")), Precision::Half, RopeScaling::Auto);
        let error = anyhow::Error::from(absent.err().unwrap());
        assert!(error.to_string().starts_with("no/such/model.gguf: "));
        assert_eq!(said(&error).matches("os error").count(), 1, "{}", said(&error));
        assert_eq!(said(&usage("no").context("more")), "more: no");
        assert_eq!(exit_code(&error), 64);
    }
}
