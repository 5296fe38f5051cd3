//! `recollect study`: where retrieval holds and where not, one subcommand for heads and one for places.

use clap::{Args, Subcommand};

use crate::study::{heads, needles};

/// Which study.
#[derive(Args, Debug)]
pub struct StudyArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// How much of its attention every layer and KV head recovers at each budget, and which heads are diffuse
    Heads(heads::HeadsArgs),
    /// Which facts are found at which depth of which context
    Needles(needles::NeedlesArgs),
}

/// Runs the study.
pub fn run(args: &StudyArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Heads(args) => heads::run(args),
        What::Needles(args) => needles::run(args),
    }
}
