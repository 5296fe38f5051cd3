//! Names of metrics and tracing spans, in one place. Prefix `recollect_`, base units (bytes, seconds).

/// Seconds from the receipt of an attend message to its answer (histogram).
pub const ATTEND_SECONDS: &str = "recollect_attend_seconds";
/// Attend rows answered; label `result` is `ok` or `error` (counter).
pub const ATTEND_ROWS: &str = "recollect_attend_rows_total";
/// Visible tokens that answers declared missing because the deadline passed (counter).
pub const ATTEND_MISSING_TOKENS: &str = "recollect_attend_missing_tokens_total";
/// Attend messages refused because the queue was full (counter).
pub const ATTEND_REFUSED: &str = "recollect_attend_refused_total";
/// Tasks (a row and one of its KV heads; an append chunk) waiting or running (gauge).
pub const ATTEND_QUEUE_TASKS: &str = "recollect_attend_queue_tasks";
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
/// Bytes in use; label `kind` is `kv`, `index`, `compact` (quantised and sketched forms), `scratch` or `catalogue` (gauge).
pub const MEMORY_BYTES: &str = "recollect_memory_bytes";
/// Bytes of keys and values that lie in maps of their files, which is no part of the budget (gauge).
pub const SPILLED_BYTES: &str = "recollect_spilled_bytes";
/// Bytes of keys and values that only the archive holds (gauge).
pub const ARCHIVED_BYTES: &str = "recollect_archived_bytes";
/// Bytes reserved or in use (gauge).
pub const MEMORY_GRANTED_BYTES: &str = "recollect_memory_granted_bytes";
/// The memory budget (gauge).
pub const MEMORY_BUDGET_BYTES: &str = "recollect_memory_budget_bytes";
/// Requests refused for want of memory (counter).
pub const MEMORY_REFUSED: &str = "recollect_memory_refused_total";
/// Spans sealed (counter).
pub const SPANS_SEALED: &str = "recollect_spans_sealed_total";
/// Index builds that ended, those of merges included; label `result` is `ok`, `error` or `cancelled` (counter).
pub const INDEX_BUILDS: &str = "recollect_index_builds_total";
/// Indexes read from the data directory, at a start or because they had left RAM (counter).
pub const INDEXES_LOADED: &str = "recollect_indexes_loaded_total";
/// Indexes that left RAM for their files (counter).
pub const INDEXES_LEFT: &str = "recollect_indexes_left_total";
/// Index builds, merges and compactions queued or running (gauge).
pub const INDEX_BUILDS_PENDING: &str = "recollect_index_builds_pending";
/// Seconds that an index build took (histogram).
pub const INDEX_BUILD_SECONDS: &str = "recollect_index_build_seconds";
/// Merges of spans that ended; label `result` is `ok`, `refused` (no memory), `error` or `cancelled` (superseded by a
/// larger merge, truncated or closed) (counter).
pub const SPAN_MERGES: &str = "recollect_span_merges_total";
/// Seconds that a merge took, its index build included (histogram).
pub const SPAN_MERGE_SECONDS: &str = "recollect_span_merge_seconds";
/// Spans whose rows went from RAM to maps of their files (counter).
pub const SPAN_SPILLS: &str = "recollect_span_spills_total";
/// Spans whose rows came back into RAM (counter).
pub const SPAN_PROMOTIONS: &str = "recollect_span_promotions_total";
/// Spans that were to get a compact form; label `result` is `ok` or `refused` (counter).
pub const SPAN_COMPACTIONS: &str = "recollect_span_compactions_total";
/// Spans whose rows went to the archive (counter).
pub const SPAN_ARCHIVES: &str = "recollect_span_archives_total";
/// Spans whose rows came back from the archive (counter).
pub const SPAN_REVIVALS: &str = "recollect_span_revivals_total";
/// Moves to and from the archive that failed (counter).
pub const ARCHIVE_ERRORS: &str = "recollect_archive_errors_total";
/// Bytes written to the data directory; label `kind` is `extent`, `queries`, `index` or `log` (counter).
pub const STORE_WRITTEN_BYTES: &str = "recollect_store_written_bytes_total";
/// Writes to the data directory that failed, and entries of its catalogue that cannot be read (counter).
pub const STORE_ERRORS: &str = "recollect_store_errors_total";
/// Heads whose sealed spans are not on disk yet (gauge).
pub const STORE_PENDING: &str = "recollect_store_pending_heads";
/// Damaged or foreign files put into quarantine since the start (gauge).
pub const STORE_QUARANTINED: &str = "recollect_store_quarantined_files";
/// Stored sessions that are refused because something of them is missing (gauge).
pub const SESSIONS_REFUSED: &str = "recollect_sessions_refused";

/// Upper bounds of all histograms of seconds.
pub const SECONDS_BUCKETS: &[f64] =
    &[0.000_1, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];

/// Every counter with its help text.
pub const COUNTERS: &[(&str, &str)] = &[
    (ATTEND_ROWS, "Attend rows answered"),
    (ATTEND_MISSING_TOKENS, "Visible tokens declared missing because a deadline passed"),
    (ATTEND_REFUSED, "Attend messages refused because the queue was full"),
    (APPENDED_TOKENS, "Tokens stored, once for each layer and KV head"),
    (APPEND_CHUNKS, "Append chunks"),
    (SESSIONS_OPENED, "Sessions opened"),
    (SESSIONS_ENDED, "Sessions ended"),
    (MEMORY_REFUSED, "Requests refused for want of memory"),
    (SPANS_SEALED, "Spans sealed"),
    (INDEX_BUILDS, "Index builds ended, those of merges included"),
    (INDEXES_LOADED, "Indexes read from the data directory, at a start or because they had left RAM"),
    (INDEXES_LEFT, "Indexes that left RAM for their files"),
    (SPAN_COMPACTIONS, "Spans that were to get a quantised or sketched form"),
    (SPAN_MERGES, "Merges of spans ended"),
    (SPAN_SPILLS, "Spans whose rows went from RAM to maps of their files"),
    (SPAN_PROMOTIONS, "Spans whose rows came back into RAM"),
    (SPAN_ARCHIVES, "Spans whose rows went to the archive"),
    (SPAN_REVIVALS, "Spans whose rows came back from the archive"),
    (ARCHIVE_ERRORS, "Moves to and from the archive that failed"),
    (STORE_WRITTEN_BYTES, "Bytes written to the data directory"),
    (STORE_ERRORS, "Writes to the data directory that failed, entries of its catalogue that cannot be read"),
];

/// Every gauge with its help text.
pub const GAUGES: &[(&str, &str)] = &[
    (ATTEND_QUEUE_TASKS, "Attend and append tasks waiting or running"),
    (SESSIONS, "Sessions open"),
    (MEMORY_BYTES, "Bytes in use"),
    (SPILLED_BYTES, "Bytes of keys and values in maps of their files, no part of the budget"),
    (ARCHIVED_BYTES, "Bytes of keys and values that only the archive holds"),
    (MEMORY_GRANTED_BYTES, "Bytes reserved or in use"),
    (MEMORY_BUDGET_BYTES, "The memory budget"),
    (INDEX_BUILDS_PENDING, "Index builds, merges and compactions queued or running"),
    (STORE_PENDING, "Heads whose sealed spans are not on disk yet"),
    (STORE_QUARANTINED, "Files put into quarantine since the start"),
    (SESSIONS_REFUSED, "Stored sessions refused because something of them is missing"),
];

/// Every histogram with its help text.
pub const HISTOGRAMS: &[(&str, &str)] = &[
    (ATTEND_SECONDS, "From receipt to answer of an attend message"),
    (INDEX_BUILD_SECONDS, "Duration of an index build"),
    (SPAN_MERGE_SECONDS, "Duration of a merge, its index build included"),
];

/// Span around one attend message.
pub const SPAN_ATTEND: &str = "attend";
/// Span around one append chunk.
pub const SPAN_APPEND: &str = "append";
/// Span around one index build.
pub const SPAN_BUILD: &str = "index_build";
/// Span around one merge.
pub const SPAN_MERGE: &str = "span_merge";
/// Compaction of a span: its compact form and the swap.
pub const SPAN_COMPACT: &str = "span_compact";
