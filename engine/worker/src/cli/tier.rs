//! `recollect evict`, `promote`, `pin`, `unpin`: where the rows of a running shard lie.

use clap::{Args, ValueEnum};
use client::Cluster;
use serde::Serialize;
use tokio::runtime::Builder;
use wire::v1;

use crate::cli::inspect::mib;
use crate::cli::print;
use crate::cli::service::shard_address;
use crate::cli::session_id::{SessionId, parse_session, refused};

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
    /// To files of the shard's host, or from there to its archive (recollectd serve --archive)
    #[arg(long, value_enum, value_name = "TIER", default_value = "spill")]
    tier: Destination,
}

/// Where evicted rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Destination {
    Spill,
    Archive,
}

/// What to do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Evict,
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
        Destination::Archive => Verb::Archive,
    };
    run(verb, &args.rows)
}

/// Runs a verb.
pub fn run(verb: Verb, args: &TierArgs) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let shard = &args.shard;
    let done = runtime.block_on(async {
        let cluster = Cluster::connect(&[shard]).await?;
        apply(&cluster, verb, args.session).await
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
    verb: Verb,
    session: Option<SessionId>,
) -> anyhow::Result<Vec<(Option<SessionId>, u64)>> {
    let sessions = match session {
        Some(id) => vec![Some(id)],
        // The shard knows best which it may evict.
        None if matches!(verb, Verb::Evict | Verb::Archive) => vec![None],
        None => all(cluster).await?.into_iter().map(Some).collect(),
    };
    let mut done = Vec::new();
    for session in sessions {
        let id = session.as_ref().map_or(&[][..], |id| &id[..]);
        let bytes = match verb {
            Verb::Evict => cluster.evict(Some(id), v1::Tier::Spilled).await,
            Verb::Archive => cluster.evict(Some(id), v1::Tier::Archived).await,
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
        Verb::Archive => format!("{mib} MiB lie in the archive alone now"),
        Verb::Promote => format!("{mib} MiB came back into RAM"),
        Verb::Pin if bytes > 0 => format!("pinned; {mib} MiB of it lie in files until they are promoted"),
        Verb::Pin => "pinned".into(),
        Verb::Unpin => "not pinned any more".into(),
    }
}
