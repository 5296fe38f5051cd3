//! `recollect bench`: measurements, one subcommand each.

use clap::{Args, Subcommand};

use crate::bench::{appends, attention, retrieval, tiers};

/// Which measurement.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// How well, and at what cost, an index finds what the queries of a capture attend to
    Retrieval(retrieval::RetrievalArgs),
    /// How well tokens are found that decode has appended, and how long an append takes while spans merge
    Appends(appends::AppendsArgs),
    /// Bytes against error and time for every tier: quantised, sketched, evicted
    Tiers(tiers::TiersArgs),
    /// Attention time of one decode step over many heads, retrieval against dense
    Attention(attention::AttentionArgs),
}

/// Runs the measurement.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Retrieval(args) => retrieval::run(args),
        What::Appends(args) => appends::run(args),
        What::Tiers(args) => tiers::run(args),
        What::Attention(args) => attention::run(args),
    }
}
