//! The model and the main job of Recollect.
//!
//! - [`cli`]: the verbs of `recollect`
//! - [`model`]: a Llama-family model with attention left outside
//! - [`forward`]: a block of tokens through the model, attention by whoever is asked
//! - [`causal`]: exact attention of a fresh block
//! - [`progress`]: bars on stderr

pub mod causal;
pub mod cli;
pub mod forward;
pub mod model;
pub mod progress;
