//! What can be wrong with the input of a sketch.

/// Why a sketch refused. Nothing is changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SketchError {
    /// There is nothing to hold.
    #[error("a sketch of 0 tokens")]
    Empty,
    /// Every key has a value.
    #[error("{keys} keys and {values} values")]
    ValueCount {
        /// Rows of keys.
        keys: usize,
        /// Rows of values.
        values: usize,
    },
    /// What was watched belongs to other tokens.
    #[error(
        "attention was watched over {watched} tokens of dim {dim}, the sketch is over {tokens} of dim {key_dim}"
    )]
    Watched {
        /// Tokens that were watched.
        watched: usize,
        /// Elements of a watched query.
        dim: usize,
        /// Tokens of the sketch.
        tokens: usize,
        /// Elements of a key.
        key_dim: usize,
    },
    /// Less than what the sketch takes however few bits a token gets.
    #[error("{bytes} bytes are too few for {tokens} tokens (at least {least} are needed)")]
    TooSmall {
        /// Bytes allowed.
        bytes: usize,
        /// Tokens to hold.
        tokens: usize,
        /// The fewest bytes for them.
        least: usize,
    },
    /// A row of another length.
    #[error("{what} of {elements} elements, {dim} are wanted")]
    Dim {
        /// Key or value.
        what: &'static str,
        /// Its elements.
        elements: usize,
        /// The elements it should have.
        dim: usize,
    },
    /// NaN or infinite input.
    #[error("token {token}: {what} element {element} is not finite")]
    NotFinite {
        /// The token.
        token: u32,
        /// Key or value.
        what: &'static str,
        /// Index of the element.
        element: usize,
    },
    /// A token that was never pushed.
    #[error("token {token} of {tokens}")]
    Unknown {
        /// The token.
        token: u32,
        /// Tokens held.
        tokens: usize,
    },
    /// Attention is a weight of at least 0.
    #[error("token {token}: attention of {weight}")]
    Weight {
        /// The token.
        token: u32,
        /// What was observed.
        weight: String,
    },
}
