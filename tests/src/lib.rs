//! What the end-to-end tests share.
//!
//! * [`daemon`]: real `recollectd` processes on ports of their own
//! * [`http`]: the probes and metrics of a daemon
//! * [`replay`]: synthetic KV and queries of a small model, and what the f64 oracle says about them

pub mod daemon;
pub mod http;
pub mod replay;
