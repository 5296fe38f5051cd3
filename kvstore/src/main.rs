//! `recollectd`: one shard server. Its life: flags, configuration, log, ports, node, serve, drain, end.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use kvstore::config::{Config, Flags, with_negative_numbers};
use kvstore::error::Fatal;
use kvstore::serve::{Ports, stop_signal};
use kvstore::{Node, telemetry};
use std::io::Write;
use std::process::ExitCode;

/// A shard server of Recollect
#[derive(Parser)]
#[command(name = "recollectd", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Hold KV, index it and answer for it until SIGTERM
    Serve {
        #[command(flatten)]
        flags: Flags,
        /// Print the effective configuration as TOML and exit
        #[arg(long)]
        print_config: bool,
    },
}

fn main() -> ExitCode {
    kvstore::allocator::return_freed_rows();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fatal) => {
            eprintln!("error: {fatal}");
            fatal.code()
        }
    }
}

fn run() -> Result<(), Fatal> {
    let Some(cli) = parse()? else {
        return Ok(());
    };
    let Verb::Serve { flags, print_config } = cli.verb;
    let config = Config::load(&flags).map_err(Fatal::Usage)?;
    if print_config {
        let mut out = std::io::stdout().lock();
        return out
            .write_all(config.print().as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| Fatal::Failed(format!("--print-config: {e}")));
    }
    kernels::Kernels::from_env().map_err(|e| Fatal::Usage(format!("RECOLLECT_KERNELS: {e}")))?;
    telemetry::start_log(config.log.format, &config.log.filter).map_err(Fatal::Usage)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Fatal::Failed(format!("cannot start the runtime: {e}")))?;
    let result = runtime.block_on(async {
        let stop = stop_signal().map_err(|e| Fatal::Failed(format!("signals: {e}")))?;
        let ports = Ports::open(&config.server).await?;
        let node = Node::new(config.node()).map_err(|e| match e.is_usage() {
            true => Fatal::Usage(e.to_string()),
            false => Fatal::Failed(e.to_string()),
        })?;
        ports.serve(node, stop).await
    });
    // Streams that outlived the grace period are cut here; nobody waits for their tasks.
    runtime.shutdown_background();
    result
}

/// Flags, or None when help or the version was asked for and printed.
fn parse() -> Result<Option<Cli>, Fatal> {
    use clap::error::ErrorKind;
    let parsed = with_negative_numbers(Cli::command()).try_get_matches();
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => Ok(Some(cli)),
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            e.print().map_err(|e| Fatal::Failed(e.to_string()))?;
            Ok(None)
        }
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Fatal::Usage("a command is needed (see recollectd --help)".into()))
        }
        Err(e) => {
            let text = e.to_string();
            let line = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("bad usage");
            let line = line.trim_start_matches("error: ");
            Err(Fatal::Usage(format!("{line} (see recollectd --help)")))
        }
    }
}
