//! All counters of a shard in one struct, rendered for Prometheus; and the log.
//!
//! Each [`crate::Node`] has a recorder of its own, so that several nodes of one process (embedded shards, tests) never
//! add to each other's figures.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use wire::names;

/// Every figure that a shard counts; [`wire::names`] has a sentence on each.
pub struct Metrics {
    handle: PrometheusHandle,
    /// From receipt to answer of an attend message.
    pub attend_seconds: Histogram,
    /// Rows answered.
    pub attend_rows_ok: Counter,
    /// Rows refused or failed.
    pub attend_rows_error: Counter,
    /// Visible tokens declared missing.
    pub attend_missing: Counter,
    /// Messages refused because the queue was full.
    pub attend_refused: Counter,
    /// Tokens times heads stored by `Append`.
    pub appended: Counter,
    /// Tokens times heads stored by `Attend`.
    pub decoded: Counter,
    /// Chunks stored.
    pub chunks_ok: Counter,
    /// Chunks refused.
    pub chunks_error: Counter,
    /// Sessions opened.
    pub opened: Counter,
    /// Sessions closed by their worker.
    pub closed: Counter,
    /// Sessions whose lease ran out.
    pub expired: Counter,
    /// Requests refused for want of memory.
    pub memory_refused: Counter,
    /// Spans sealed.
    pub sealed: Counter,
    /// Indexes published.
    pub builds_ok: Counter,
    /// Builds that failed or found no memory.
    pub builds_failed: Counter,
    /// Builds whose span was gone before they began.
    pub builds_cancelled: Counter,
    /// Indexes that a start read from their files.
    pub indexes_loaded: Counter,
    /// Duration of a build.
    pub build_seconds: Histogram,
    /// Merges that took effect.
    pub merges_ok: Counter,
    /// Merges that found no memory.
    pub merges_refused: Counter,
    /// Merges whose index could not be built.
    pub merges_failed: Counter,
    /// Merges whose spans went away or into a larger merge.
    pub merges_cancelled: Counter,
    /// Duration of a merge.
    pub merge_seconds: Histogram,
    /// Spans whose rows went to maps.
    pub spills: Counter,
    /// Spans whose rows came back.
    pub promotions: Counter,
    /// Spans whose rows went to the archive.
    pub archived: Counter,
    /// Spans whose rows came back from there.
    pub revivals: Counter,
    /// Spans brought into a compact form.
    pub compactions: Counter,
    /// Spans that could not be.
    pub compactions_refused: Counter,
    /// Indexes that left RAM for their files.
    pub indexes_left: Counter,
    /// Moves to and from the archive that failed.
    pub archive_errors: Counter,
    /// Bytes of extent files written.
    pub stored_extents: Counter,
    /// Bytes of files of queries written.
    pub stored_queries: Counter,
    /// Bytes of index files written.
    pub stored_indexes: Counter,
    /// Bytes written to logs.
    pub stored_log: Counter,
    /// Writes that failed, catalogue entries that cannot be read.
    pub store_errors: Counter,
    gauges: Gauges,
}

/// Read from the node when somebody looks, never counted up and down.
struct Gauges {
    queue: Gauge,
    sessions: Gauge,
    kv: Gauge,
    index: Gauge,
    compact: Gauge,
    scratch: Gauge,
    catalogue: Gauge,
    spilled: Gauge,
    archived: Gauge,
    granted: Gauge,
    budget: Gauge,
    pending: Gauge,
    unstored: Gauge,
    quarantined: Gauge,
    refused: Gauge,
}

/// The values of the gauges at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Snapshot {
    /// Attend and append tasks waiting or running.
    pub queued: u64,
    /// Sessions open.
    pub sessions: u64,
    /// Bytes of keys and values.
    pub kv_bytes: u64,
    /// Bytes of indexes.
    pub index_bytes: u64,
    /// Bytes of quantised and sketched forms.
    pub compact_bytes: u64,
    /// Bytes of samples and of running builds.
    pub scratch_bytes: u64,
    /// Bytes that the catalogue may cache.
    pub catalogue_bytes: u64,
    /// Bytes of keys and values that lie in maps of their files, beside the budget.
    pub spilled_bytes: u64,
    /// Bytes of keys and values that only the archive holds.
    pub archived_bytes: u64,
    /// Bytes reserved or used.
    pub granted_bytes: u64,
    /// The budget.
    pub budget_bytes: u64,
    /// Index builds and merges queued or running.
    pub builds_pending: u64,
    /// Heads whose sealed spans are not on disk yet.
    pub unstored_heads: u64,
    /// Files put into quarantine since the start.
    pub quarantined_files: u64,
    /// Stored sessions that are refused.
    pub refused_sessions: u64,
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Result<Self, metrics_exporter_prometheus::BuildError> {
        let recorder = PrometheusBuilder::new().set_buckets(names::SECONDS_BUCKETS)?.build_recorder();
        let counter = |name: &'static str, label: Option<(&'static str, &'static str)>| {
            recorder.register_counter(&key(name, label), &META)
        };
        let gauge = |name: &'static str, label: Option<(&'static str, &'static str)>| {
            recorder.register_gauge(&key(name, label), &META)
        };
        describe(&recorder);
        Ok(Self {
            handle: recorder.handle(),
            attend_seconds: recorder.register_histogram(&key(names::ATTEND_SECONDS, None), &META),
            attend_rows_ok: counter(names::ATTEND_ROWS, Some(("result", "ok"))),
            attend_rows_error: counter(names::ATTEND_ROWS, Some(("result", "error"))),
            attend_missing: counter(names::ATTEND_MISSING_TOKENS, None),
            attend_refused: counter(names::ATTEND_REFUSED, None),
            appended: counter(names::APPENDED_TOKENS, Some(("path", "append"))),
            decoded: counter(names::APPENDED_TOKENS, Some(("path", "decode"))),
            chunks_ok: counter(names::APPEND_CHUNKS, Some(("result", "ok"))),
            chunks_error: counter(names::APPEND_CHUNKS, Some(("result", "error"))),
            opened: counter(names::SESSIONS_OPENED, None),
            closed: counter(names::SESSIONS_ENDED, Some(("reason", "close"))),
            expired: counter(names::SESSIONS_ENDED, Some(("reason", "lease"))),
            memory_refused: counter(names::MEMORY_REFUSED, None),
            sealed: counter(names::SPANS_SEALED, None),
            builds_ok: counter(names::INDEX_BUILDS, Some(("result", "ok"))),
            builds_failed: counter(names::INDEX_BUILDS, Some(("result", "error"))),
            builds_cancelled: counter(names::INDEX_BUILDS, Some(("result", "cancelled"))),
            indexes_loaded: counter(names::INDEXES_LOADED, None),
            build_seconds: recorder.register_histogram(&key(names::INDEX_BUILD_SECONDS, None), &META),
            merges_ok: counter(names::SPAN_MERGES, Some(("result", "ok"))),
            merges_refused: counter(names::SPAN_MERGES, Some(("result", "refused"))),
            merges_failed: counter(names::SPAN_MERGES, Some(("result", "error"))),
            merges_cancelled: counter(names::SPAN_MERGES, Some(("result", "cancelled"))),
            merge_seconds: recorder.register_histogram(&key(names::SPAN_MERGE_SECONDS, None), &META),
            spills: counter(names::SPAN_SPILLS, None),
            promotions: counter(names::SPAN_PROMOTIONS, None),
            archived: counter(names::SPAN_ARCHIVES, None),
            revivals: counter(names::SPAN_REVIVALS, None),
            compactions: counter(names::SPAN_COMPACTIONS, Some(("result", "ok"))),
            compactions_refused: counter(names::SPAN_COMPACTIONS, Some(("result", "refused"))),
            indexes_left: counter(names::INDEXES_LEFT, None),
            archive_errors: counter(names::ARCHIVE_ERRORS, None),
            stored_extents: counter(names::STORE_WRITTEN_BYTES, Some(("kind", "extent"))),
            stored_queries: counter(names::STORE_WRITTEN_BYTES, Some(("kind", "queries"))),
            stored_indexes: counter(names::STORE_WRITTEN_BYTES, Some(("kind", "index"))),
            stored_log: counter(names::STORE_WRITTEN_BYTES, Some(("kind", "log"))),
            store_errors: counter(names::STORE_ERRORS, None),
            gauges: Gauges {
                queue: gauge(names::ATTEND_QUEUE_TASKS, None),
                sessions: gauge(names::SESSIONS, None),
                kv: gauge(names::MEMORY_BYTES, Some(("kind", "kv"))),
                index: gauge(names::MEMORY_BYTES, Some(("kind", "index"))),
                compact: gauge(names::MEMORY_BYTES, Some(("kind", "compact"))),
                scratch: gauge(names::MEMORY_BYTES, Some(("kind", "scratch"))),
                catalogue: gauge(names::MEMORY_BYTES, Some(("kind", "catalogue"))),
                spilled: gauge(names::SPILLED_BYTES, None),
                archived: gauge(names::ARCHIVED_BYTES, None),
                granted: gauge(names::MEMORY_GRANTED_BYTES, None),
                budget: gauge(names::MEMORY_BUDGET_BYTES, None),
                pending: gauge(names::INDEX_BUILDS_PENDING, None),
                unstored: gauge(names::STORE_PENDING, None),
                quarantined: gauge(names::STORE_QUARANTINED, None),
                refused: gauge(names::SESSIONS_REFUSED, None),
            },
        })
    }

    /// The text of `/metrics`.
    pub fn render(&self, now: &Snapshot) -> String {
        // Up to 2^53 exactly; beyond that a gauge is not read to the byte.
        let set = |gauge: &Gauge, value: u64| gauge.set(value as f64);
        set(&self.gauges.queue, now.queued);
        set(&self.gauges.sessions, now.sessions);
        set(&self.gauges.kv, now.kv_bytes);
        set(&self.gauges.index, now.index_bytes);
        set(&self.gauges.compact, now.compact_bytes);
        set(&self.gauges.scratch, now.scratch_bytes);
        set(&self.gauges.catalogue, now.catalogue_bytes);
        set(&self.gauges.spilled, now.spilled_bytes);
        set(&self.gauges.archived, now.archived_bytes);
        set(&self.gauges.granted, now.granted_bytes);
        set(&self.gauges.budget, now.budget_bytes);
        set(&self.gauges.pending, now.builds_pending);
        set(&self.gauges.unstored, now.unstored_heads);
        set(&self.gauges.quarantined, now.quarantined_files);
        set(&self.gauges.refused, now.refused_sessions);
        self.handle.run_upkeep();
        self.handle.render()
    }
}

const META: Metadata<'static> = Metadata::new("recollect", Level::INFO, None);

fn key(name: &'static str, label: Option<(&'static str, &'static str)>) -> Key {
    match label {
        None => Key::from_static_name(name),
        Some((k, v)) => Key::from_parts(name, vec![Label::from_static_parts(k, v)]),
    }
}

fn describe(recorder: &PrometheusRecorder) {
    for (name, text) in names::COUNTERS {
        recorder.describe_counter((*name).into(), None, (*text).into());
    }
    for (name, text) in names::GAUGES {
        recorder.describe_gauge((*name).into(), None, (*text).into());
    }
    for (name, text) in names::HISTOGRAMS {
        recorder.describe_histogram((*name).into(), None, (*text).into());
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Starts the log on stderr. `filter` is a tracing directive such as `info` or `kvstore=debug,info`.
///
/// Errors when the filter does not parse or a log was already started.
pub fn start_log(format: LogFormat, filter: &str) -> Result<(), String> {
    use std::io::IsTerminal;
    let filter: tracing_subscriber::EnvFilter =
        filter.parse().map_err(|e| format!("log.filter: {filter:?}: {e}"))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|e| e.to_string())
}
