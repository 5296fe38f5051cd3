//! Names of metrics and tracing spans, in one place. Prefix `recollect_`, base units (bytes, seconds).

/// Seconds from the receipt of an attend message to its answer (histogram).
pub const ATTEND_SECONDS: &str = "recollect_attend_seconds";
/// Attend rows answered; label `result` is `ok` or `error` (counter).
pub const ATTEND_ROWS: &str = "recollect_attend_rows_total";
/// Visible tokens that answers declared missing because the deadline passed (counter).
pub const ATTEND_MISSING_TOKENS: &str = "recollect_attend_missing_tokens_total";
/// Attend messages refused because the queue was full (counter).
pub const ATTEND_REFUSED: &str = "recollect_attend_refused_total";
/// Rows waiting for a thread of the attend pool (gauge).
pub const ATTEND_QUEUE_ROWS: &str = "recollect_attend_queue_rows";
/// Tokens stored, counted once for each layer and KV head; label `path` is `append` or `decode` (counter).
pub const APPENDED_TOKENS: &str = "recollect_appended_head_tokens_total";
/// Append chunks; label `result` is `ok` or `error` (counter).
pub const APPEND_CHUNKS: &str = "recollect_append_chunks_total";
/// Sessions that are open (gauge).
pub const SESSIONS: &str = "recollect_sessions";
/// Sessions opened since the start (counter).
pub const SESSIONS_OPENED: &str = "recollect_sessions_opened_total";
/// Sessions that ended; label `reason` is `close` or `lease` (counter).
pub const SESSIONS_ENDED: &str = "recollect_sessions_ended_total";
/// Bytes granted out of the budget; label `kind` is `kv` or `index` (gauge).
pub const MEMORY_BYTES: &str = "recollect_memory_bytes";
/// The memory budget (gauge).
pub const MEMORY_BUDGET_BYTES: &str = "recollect_memory_budget_bytes";
/// Requests refused for want of memory (counter).
pub const MEMORY_REFUSED: &str = "recollect_memory_refused_total";
/// Spans sealed (counter).
pub const SPANS_SEALED: &str = "recollect_spans_sealed_total";
/// Index builds that ended; label `result` is `ok`, `error` or `cancelled` (counter).
pub const INDEX_BUILDS: &str = "recollect_index_builds_total";
/// Index builds queued or running (gauge).
pub const INDEX_BUILDS_PENDING: &str = "recollect_index_builds_pending";
/// Seconds that an index build took (histogram).
pub const INDEX_BUILD_SECONDS: &str = "recollect_index_build_seconds";

/// Upper bounds of all histograms of seconds.
pub const SECONDS_BUCKETS: &[f64] =
    &[0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// Span around one attend message.
pub const SPAN_ATTEND: &str = "attend";
/// Span around one append chunk.
pub const SPAN_APPEND: &str = "append";
/// Span around one index build.
pub const SPAN_BUILD: &str = "index_build";
