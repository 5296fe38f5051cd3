//! `recollect evict`, `promote`, `pin`, `unpin`: where the rows of a running shard lie.

use clap::{Args, ValueEnum};
use client::Cluster;
use serde::Serialize;
use tokio::runtime::Builder;
use wire::v1;

use crate::cli::inspect::mib;
use crate::cli::service::shard_address;
use crate::cli::session_id::{SessionId, parse_session, refused};
use crate::cli::{print, usage};

/// Which rows.
#[derive(Args, Debug)]
pub struct TierArgs {
    /// The shard server (default port: 7420)
    #[arg(long, value_name = "HOST[:PORT]", value_parser = shard_address)]
    shard: String,
    /// Only this session: 32 hexadecimal digits (default: every session)
    #[arg(long, value_name = "ID", value_parser = parse_session)]
    session: Option<SessionId>,
    /// One JSON object a line: every session, the summary last
    #[arg(long)]
    json: bool,
}

/// Which rows, and where to.
#[derive(Args, Debug)]
pub struct EvictArgs {
    #[command(flatten)]
    rows: TierArgs,
    /// Where rows go: files of the shard's host, or from there its archive (recollectd serve --archive); with int8 and sketch a
    /// smaller form in RAM answers in their place
    #[arg(long, value_enum, value_name = "TIER", default_value = "spill")]
    tier: Destination,
    /// Size of a sketch in percent of the rows' bytes: 1 to 50 [default: 25]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=50))]
    percent: Option<u32>,
}

/// Where evicted rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Destination {
    Spill,
    Int8,
    Sketch,
    Archive,
}

/// What to do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Evict,
    Int8,
    Sketch,
    Archive,
    Promote,
    Pin,
    Unpin,
}

/// Bytes: that left RAM, that left the host, that came back, that lie in files although the session is pinned; none of an unpin.
#[derive(Serialize)]
struct Row<'a> {
    record: &'static str,
    shard: &'a str,
    verb: Verb,
    session: Option<String>,
    bytes: u64,
}

/// Runs `evict`.
pub fn evict(args: &EvictArgs) -> anyhow::Result<()> {
    let verb = match args.tier {
        Destination::Spill => Verb::Evict,
        Destination::Int8 => Verb::Int8,
        Destination::Sketch => Verb::Sketch,
        Destination::Archive => Verb::Archive,
    };
    if args.percent.is_some() && args.tier != Destination::Sketch {
        return Err(usage("--percent is for --tier sketch"));
    }
    run_sized(verb, &args.rows, args.percent.unwrap_or(0))
}

/// Runs a verb.
pub fn run(verb: Verb, args: &TierArgs) -> anyhow::Result<()> {
    run_sized(verb, args, 0)
}

fn run_sized(verb: Verb, args: &TierArgs, percent: u32) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let shard = &args.shard;
    let done = runtime.block_on(async {
        let cluster = Cluster::connect(&[shard]).await?;
        apply(&cluster, (verb, percent), args.session).await
    })?;
    let total = done.iter().map(|(_, bytes)| bytes).sum();
    for (session, bytes) in &done {
        let (session, bytes) = (session.map(|id| wire::convert::hex(&id)), *bytes);
        match args.json {
            true => print::json(&Row { record: "session", shard, verb, session, bytes })?,
            false => {
                let whose =
                    session.map_or("all sessions that are not pinned".into(), |s| format!("session {s}"));
                print::line(format_args!("{whose}: {}", said(verb, bytes)))?;
            }
        }
    }
    match args.json {
        true => print::json(&Row { record: "summary", shard, verb, session: None, bytes: total }),
        false if done.is_empty() => print::line(format_args!("shard {shard} has no sessions")),
        false => Ok(()),
    }
}

/// The sessions it was done to, with the bytes; None stands for all at once.
async fn apply(
    cluster: &Cluster,
    (verb, percent): (Verb, u32),
    session: Option<SessionId>,
) -> anyhow::Result<Vec<(Option<SessionId>, u64)>> {
    let sessions = match session {
        Some(id) => vec![Some(id)],
        // The shard knows best which it may evict.
        None if matches!(verb, Verb::Evict | Verb::Int8 | Verb::Sketch | Verb::Archive) => vec![None],
        None => all(cluster).await?.into_iter().map(Some).collect(),
    };
    let mut done = Vec::new();
    for session in sessions {
        let id = session.as_ref().map_or(&[][..], |id| &id[..]);
        let bytes = match verb {
            Verb::Evict => cluster.evict(Some(id), v1::Tier::Spilled, 0).await,
            Verb::Int8 => cluster.evict(Some(id), v1::Tier::Quantised, 0).await,
            Verb::Sketch => cluster.evict(Some(id), v1::Tier::Sketched, percent).await,
            Verb::Archive => cluster.evict(Some(id), v1::Tier::Archived, 0).await,
            Verb::Promote => cluster.promote(id).await,
            Verb::Pin => cluster.pin(id).await,
            Verb::Unpin => cluster.unpin(id).await.map(|()| 0),
        };
        done.push((session, bytes.map_err(|error| refused(session.as_ref(), error))?));
    }
    Ok(done)
}

async fn all(cluster: &Cluster) -> anyhow::Result<Vec<SessionId>> {
    let held = cluster.inspect(None).await?.into_iter().flat_map(|answer| answer.sessions);
    held.map(|session| Ok(wire::convert::id(&session.session, "session")?)).collect()
}

fn said(verb: Verb, bytes: u64) -> String {
    let mib = mib(bytes);
    match verb {
        Verb::Evict => format!("{mib} MiB left RAM"),
        Verb::Int8 => format!("{mib} MiB left RAM; what is left answers in int8"),
        Verb::Sketch => format!("{mib} MiB left RAM; what is left answers as a sketch"),
        Verb::Archive => format!("{mib} MiB lie in the archive alone now"),
        Verb::Promote => format!("{mib} MiB came back into RAM"),
        Verb::Pin if bytes > 0 => format!("pinned; {mib} MiB of it lie in files until they are promoted"),
        Verb::Pin => "pinned".into(),
        Verb::Unpin => "not pinned any more".into(),
    }
}
