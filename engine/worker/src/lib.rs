//! The model and the main job of Recollect.
//!
//! - [`cli`]: the verbs of `recollect`, one file each
//! - [`model`]: a Llama-family model with attention left outside
//! - [`forward`]: a block of tokens through the model, attention by whoever is asked
//! - [`causal`]: exact attention of a fresh block
//! - [`sequence`]: one prompt and what is decoded after it: [`prefill`], [`decode`], its
//!   [`coverage`], and the worker's own [`window`]
//! - [`embedded`]: shards inside this process; [`inventory`]: what shards say they hold, judged
//! - [`baseline`]: attention that holds all KV itself; [`compare`]: how far logits are from it; [`texts`]: on what
//! - [`demo`]: a document with hidden facts
//! - [`recording`]: Q, K and V of a text, layer by layer; [`bench`] and [`capture_file`]: measurements on captured ones
//! - [`study`]: where retrieval holds and where not, per head and per place in a document; [`plot`]: its pictures
//! - [`snapshot`]: a session in a directory, out of one pool of shards and into another
//! - [`tier`]: a span quantised, sketched or evicted, for measurements
//! - [`progress`]: bars on stderr

pub mod baseline;
pub mod bench;
pub mod capture_file;
pub mod causal;
pub mod cli;
pub mod compare;
pub mod coverage;
pub mod decode;
pub mod demo;
pub mod embedded;
pub mod forward;
pub mod inventory;
pub mod model;
pub mod plot;
pub mod prefill;
pub mod progress;
pub mod recording;
pub mod sequence;
pub mod snapshot;
pub mod study;
pub mod texts;
pub mod tier;
pub mod window;
