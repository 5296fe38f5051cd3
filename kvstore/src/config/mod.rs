//! Configuration: defaults, then a TOML file, then `RECOLLECT__SECTION__KEY`, then flags; checked before a port opens.

mod cgroup;
mod print;
mod size;
mod tiers;

pub use size::{Size, parse_size};
pub use tiers::{Cold, Tiers};
pub use wire::Address;

use crate::telemetry::LogFormat;
use crate::{ArchiveSettings, NodeConfig};
use attention::EXTENT_TOKENS;
use clap::{Args, Command};
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that a memory budget may have.
const MEMORY: RangeInclusive<u64> = 1 << 20..=1 << 50;
/// The budget where nothing limits it.
const DEFAULT_BUDGET: u64 = 4 << 30;
/// Bytes of an extent whose keys and values have 64 elements: a storage that cannot hold one in RAM can move none.
const EXTENT: u64 = EXTENT_TOKENS as u64 * 4 * 64;

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Ports and messages.
    pub server: Server,
    /// The budget.
    pub memory: Memory,
    /// The threads on the path of a step.
    pub attend: Attend,
    /// Index builds.
    pub index: Index,
    /// Sessions.
    pub sessions: Sessions,
    /// The disk.
    pub storage: Storage,
    /// What becomes of spans that nobody asks for.
    pub tiers: Tiers,
    /// An object store for what need not lie on the disk.
    pub archive: Archive,
    /// The log.
    pub log: Log,
}

/// Ports and messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// gRPC.
    pub listen: Address,
    /// Probes, metrics and status.
    pub http: Address,
    /// Largest message taken and sent.
    pub max_message: Size,
    /// Seconds from SIGTERM until streams are cut.
    pub grace_seconds: u64,
}

/// The budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// KV, indexes, working memory and the catalogue's cache together. Default: 4 GiB, but no more than three quarters of
    /// what the process may use: its control group, the machine.
    pub budget: Size,
}

/// The threads on the path of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Attend {
    /// 0: one for each core.
    pub threads: usize,
    /// Tasks (row x KV head) that may wait or run at once.
    pub queue: usize,
}

/// Index builds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Index {
    /// 0: as many as attend, above four half as many.
    pub threads: usize,
    /// Spans below this many tokens get no index.
    pub min_tokens: u64,
    /// Recall that search widths are calibrated for.
    pub recall: f32,
    /// Fresh tokens at which a decoding session seals a span.
    pub seal_tokens: u64,
    /// Whether small spans merge into larger ones in the background.
    pub merge: bool,
}

/// Sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sessions {
    /// Lease of a session that asks for none.
    pub lease_seconds: u64,
}

/// The disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// Where sessions are stored, so that they outlive the process; empty: nowhere.
    pub path: PathBuf,
    /// Bytes that the catalogue may cache, a part of the memory budget; at most a sixteenth of that is used.
    pub catalogue_cache: Size,
}

/// An object store for what need not lie on the disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Archive {
    /// `file:///DIRECTORY` or `s3://BUCKET/PREFIX`; empty: none.
    pub url: String,
    /// Of one request, its answer included.
    pub timeout_seconds: u64,
    /// Tries after the first.
    pub retries: usize,
}

/// The log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// For people or for machines.
    pub format: LogFormat,
    /// A tracing directive: `info`, `kvstore=debug,info`.
    pub filter: String,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: Address::loopback(7420),
            http: Address::loopback(7421),
            max_message: Size(wire::DEFAULT_MAX_MESSAGE_BYTES),
            grace_seconds: 10,
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self { budget: Size(DEFAULT_BUDGET) }
    }
}

impl Memory {
    /// The budget of a process that may use so much.
    fn within(limit: Option<u64>) -> Self {
        let part = limit.map_or(u64::MAX, |limit| (limit / 4 * 3) >> 20 << 20);
        Self { budget: Size(DEFAULT_BUDGET.min(part).max(*MEMORY.start())) }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self { path: PathBuf::new(), catalogue_cache: Size(NodeConfig::default().catalogue_cache_bytes) }
    }
}

impl Default for Archive {
    fn default() -> Self {
        Self { url: String::new(), timeout_seconds: 30, retries: 3 }
    }
}

impl Archive {
    /// None without a URL. Endpoint, region and credentials of S3 come from the variables of the process.
    fn settings(&self) -> Option<ArchiveSettings> {
        let timeout = Duration::from_secs(self.timeout_seconds);
        (!self.url.is_empty()).then(|| ArchiveSettings::new(&self.url, timeout, self.retries))
    }
}

impl Default for Attend {
    fn default() -> Self {
        Self { threads: 0, queue: NodeConfig::default().queue }
    }
}

impl Default for Index {
    fn default() -> Self {
        let node = NodeConfig::default();
        Self {
            threads: 0,
            min_tokens: node.index_min_tokens,
            recall: node.index_recall,
            seal_tokens: node.seal_tokens,
            merge: node.merge,
        }
    }
}

impl Default for Sessions {
    fn default() -> Self {
        Self { lease_seconds: NodeConfig::default().lease.as_secs() }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".into() }
    }
}

/// Flags; each beats the environment and the file.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// gRPC address, HOST:PORT [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<Address>,
    /// Address of /livez /readyz /metrics /status [default: 127.0.0.1:7421]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    /// Memory budget, as 4GiB or 512MiB [default: 4GiB, or three quarters of the machine's memory or of the cgroup's limit if that is less]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Directory where sessions outlive the process [default: none, memory only]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where sealed spans can be archived: file:///DIRECTORY or s3://BUCKET/PREFIX [default: nowhere]
    #[arg(long, value_name = "URL")]
    pub archive: Option<String>,
    /// Threads that attend; 0: one for each core [default: 0]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Log for people or for machines [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl Config {
    /// Reads and checks everything. The error is one line that names the setting.
    pub fn load(flags: &Flags) -> Result<Self, String> {
        Self::load_within(flags, [cgroup::limit(), cgroup::machine()].into_iter().flatten().min())
    }

    /// The same for a process that may use so much memory.
    fn load_within(flags: &Flags, limit: Option<u64>) -> Result<Self, String> {
        let defaults = Config { memory: Memory::within(limit), ..Config::default() };
        let mut figment = Figment::from(Serialized::defaults(defaults));
        let mut file = None;
        if let Some(path) = &flags.config {
            let text =
                std::fs::read_to_string(path).map_err(|e| format!("--config {}: {e}", path.display()))?;
            // Parsed on its own first: figment reports a syntax error over several lines.
            toml_syntax(&text).map_err(|e| format!("--config {}: {e}", path.display()))?;
            figment = figment.merge(Toml::string(&text));
            file = Some(path);
        }
        figment = figment.merge(Env::prefixed("RECOLLECT__").split("__"));
        let mut set = |key: &str, value: Option<figment::value::Value>| {
            if let Some(value) = value {
                figment = std::mem::take(&mut figment).merge(Serialized::default(key, value));
            }
        };
        set("server.listen", flags.listen.as_ref().map(|a| a.to_string().into()));
        set("server.http", flags.http.as_ref().map(|a| a.to_string().into()));
        set("memory.budget", flags.memory.map(|s| s.to_string().into()));
        if let Some(data) = &flags.data {
            let text = data.to_str().ok_or_else(|| format!("--data {}: not UTF-8", data.display()))?;
            if text.is_empty() {
                return Err("--data: a directory is needed".into());
            }
            set("storage.path", Some(text.into()));
        }
        set("archive.url", flags.archive.as_ref().map(|url| url.as_str().into()));
        set("attend.threads", flags.threads.map(Into::into));
        let format = flags.log_format.map(|f| match f {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        });
        set("log.format", format.map(Into::into));
        let config: Config = figment.extract().map_err(|e| explain(e, file.map(PathBuf::as_path)))?;
        config.check()?;
        match limit.filter(|&limit| config.memory.budget.0 > limit) {
            None => Ok(config),
            Some(limit) => Err(format!(
                "memory.budget: {} bytes, more than the {limit} bytes that this process may use (the machine's memory, or the limit of its control group)",
                config.memory.budget.0
            )),
        }
    }

    /// Ranges that the types do not say.
    fn check(&self) -> Result<(), String> {
        let check = |key: &str, value: u64, range: RangeInclusive<u64>| {
            in_range(value, range).map_err(|e| format!("{key}: {e}"))
        };
        check("memory.budget", self.memory.budget.0, MEMORY)?;
        let budget = self.memory.budget.0;
        if !self.storage.path.as_os_str().is_empty() && budget < EXTENT {
            return Err(format!(
                "memory.budget: {budget}, must be at least {EXTENT}, one extent, with storage.path"
            ));
        }
        check("archive.timeout_seconds", self.archive.timeout_seconds, 1..=3600)?;
        check("archive.retries", self.archive.retries as u64, 0..=100)?;
        if let Some(settings) = self.archive.settings() {
            settings.check().map_err(|e| e.to_string())?;
            if self.storage.path.as_os_str().is_empty() {
                return Err("archive.url: needs storage.path (--data), from where spans are archived".into());
            }
        }
        self.tiers.check(&self.storage, &self.archive)?;
        check("storage.catalogue_cache", self.storage.catalogue_cache.0, 64 << 10..=1 << 40)?;
        check("server.max_message", self.server.max_message.0, 64 << 10..=2 << 30)?;
        check("server.grace_seconds", self.server.grace_seconds, 0..=3600)?;
        check("attend.threads", self.attend.threads as u64, 0..=4096)?;
        check("attend.queue", self.attend.queue as u64, 1..=1 << 20)?;
        check("index.threads", self.index.threads as u64, 0..=4096)?;
        check("index.min_tokens", self.index.min_tokens, 1..=1 << 40)?;
        check("index.seal_tokens", self.index.seal_tokens, 1..=1 << 40)?;
        check("sessions.lease_seconds", self.sessions.lease_seconds, 1..=24 * 3600)?;
        if !(self.index.recall > 0.0 && self.index.recall <= 1.0) {
            return Err(format!("index.recall: {}, must be in (0, 1]", self.index.recall));
        }
        let (a, b) = (&self.server.listen, &self.server.http);
        if a == b && a.port() != 0 {
            return Err(format!("server.http: {b} is also server.listen"));
        }
        self.log
            .filter
            .parse::<tracing_subscriber::EnvFilter>()
            .map_err(|e| format!("log.filter: {:?}: {e}", self.log.filter))?;
        Ok(())
    }

    /// The part that concerns the node.
    pub fn node(&self) -> NodeConfig {
        let some = |n: usize| (n > 0).then_some(n);
        NodeConfig {
            memory_bytes: self.memory.budget.0,
            threads: some(self.attend.threads),
            queue: self.attend.queue,
            index_threads: some(self.index.threads),
            index_min_tokens: self.index.min_tokens,
            index_recall: self.index.recall,
            seal_tokens: self.index.seal_tokens,
            merge: self.index.merge,
            lease: Duration::from_secs(self.sessions.lease_seconds),
            max_message_bytes: self.server.max_message.0,
            storage: Some(self.storage.path.clone()).filter(|p| !p.as_os_str().is_empty()),
            catalogue_cache_bytes: self.storage.catalogue_cache.0,
            archive: self.archive.settings(),
            cooling: self.tiers.cooling(),
        }
    }
}

/// A value that begins with a minus is a value, so that its refusal names the flag and the limit.
pub fn with_negative_numbers(command: Command) -> Command {
    command.allow_negative_numbers(true).mut_subcommands(with_negative_numbers)
}

/// Reads a memory budget as `recollectd serve --memory` does: a size, in bytes, within the same limits.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    in_range(bytes, MEMORY).map(|()| bytes)
}

fn in_range(value: u64, range: RangeInclusive<u64>) -> Result<(), String> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(format!("{value}, must be in {}..={}", range.start(), range.end())),
    }
}

fn toml_syntax(text: &str) -> Result<(), String> {
    let parsed = Figment::from(Toml::string(text)).extract::<figment::value::Dict>();
    parsed.map(drop).map_err(|e| one_line(&e.to_string()))
}

/// One line: the key, what is wrong with it, and the file or the variable that says so.
fn explain(error: figment::Error, file: Option<&Path>) -> String {
    use figment::error::Kind;
    let one = |e: figment::Error| {
        let what = match &e.kind {
            Kind::UnknownField(_, known) => format!("no such setting; there are {}", known.join(", ")),
            kind => one_line(&kind.to_string()),
        };
        let source = e.metadata.as_ref().map_or("", |m| m.name.as_ref());
        let source = match file {
            _ if source.contains("environment variable") => {
                format!(" (RECOLLECT__{})", e.path.join("__").to_uppercase())
            }
            Some(file) if source.contains("TOML") => format!(" (in --config {})", file.display()),
            _ => String::new(),
        };
        format!("{}: {what}{source}", e.path.join("."))
    };
    error.into_iter().map(one).collect::<Vec<_>>().join("; ")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
