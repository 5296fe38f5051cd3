//! What can be wrong with the input of a build.

/// Why an index was not built. Each names the thing and the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// There is nothing to index.
    #[error("a span of 0 tokens has no index")]
    Empty,
    /// Token ids within a span are 31 bits wide.
    #[error("a span of {tokens} tokens is longer than an index can name (limit {limit})")]
    TooLong {
        /// Tokens of the span.
        tokens: usize,
        /// The most there may be.
        limit: usize,
    },
    /// Every key has a value.
    #[error("{keys} keys and {values} values")]
    ValueCount {
        /// Rows of keys.
        keys: usize,
        /// Rows of values.
        values: usize,
    },
    /// Build queries are [m, group, dim] with one visible end each.
    #[error("build queries: {elements} elements are not {rows} x {group} x {dim}")]
    QueryShape {
        /// Elements of `q`.
        elements: usize,
        /// Visible ends, one per query position.
        rows: usize,
        /// Query heads per KV head.
        group: usize,
        /// Elements of a key.
        dim: usize,
    },
    /// Visible ends come in order, so that late queries can be held back.
    #[error("build queries: the visible end {end} at position {at} is below the one before it")]
    QueryOrder {
        /// Position of the query.
        at: usize,
        /// Its visible end.
        end: u32,
    },
    /// Queries see keys of the span only.
    #[error("build queries: a visible end of {end} in a span of {tokens} tokens")]
    QueryEnd {
        /// The last visible end.
        end: u32,
        /// Tokens of the span.
        tokens: usize,
    },
    /// The graph cannot be asked to find more than everything.
    #[error("the target recall is {0}, not within 0..=1")]
    TargetRecall(String),
}
