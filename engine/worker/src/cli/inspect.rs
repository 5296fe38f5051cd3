//! `recollect inspect`: what a running shard holds, and which heads miss their recall target; or an extent file or a snapshot.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use client::Cluster;
use serde::Serialize;
use tokio::runtime::Builder;
use wire::v1;

use crate::cli::service::shard_address;
use crate::cli::session_id::{SessionId, parse_session, refused};
use crate::cli::{inspect_file, print, snapshot};
use crate::inventory::{Inventory, Verdict, kind_name};

/// From this many spans of a session on, alike heads of a layer share a line of the table.
const MANY: usize = 32;

/// Sessions, spans and indexes of a shard.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// An extent file of a data directory (recollectd serve --data), or a directory that `snapshot save` wrote
    #[arg(value_name = "FILE", required_unless_present = "shard", conflicts_with_all = ["shard", "session"])]
    file: Option<PathBuf>,
    /// The shard server (default port: 7420)
    #[arg(long, value_name = "HOST[:PORT]", value_parser = shard_address)]
    shard: Option<String>,
    /// Only this session: 32 hexadecimal digits (default: every session)
    #[arg(long, value_name = "ID", value_parser = parse_session)]
    session: Option<SessionId>,
    /// One JSON object a line: every span, then its session; the summary last
    #[arg(long)]
    json: bool,
}

/// One span of one head.
#[derive(Serialize)]
struct SpanRow<'a> {
    record: &'static str,
    shard: &'a str,
    session: &'a str,
    layer: u32,
    kv_head: u32,
    begin: u64,
    end: u64,
    version: u64,
    index: &'static str,
    ready: bool,
    kv_bytes: u64,
    tier: &'static str,
    spilled_bytes: u64,
    archived_bytes: u64,
    compact_bytes: u64,
    index_bytes: u64,
    build_us: u64,
    recall_estimate: Option<f32>,
    recall_target: Option<f32>,
    verdict: Verdict,
    width: Option<u32>,
}

#[derive(Serialize)]
struct SessionRow<'a> {
    record: &'static str,
    shard: &'a str,
    session: &'a str,
    fingerprint: Fingerprint<'a>,
    watermark: u64,
    fresh_tokens: u64,
    kv_bytes: u64,
    spilled_bytes: u64,
    archived_bytes: u64,
    compact_bytes: u64,
    pinned: bool,
    index_bytes: u64,
    lease_left_ms: u64,
    durable: bool,
    durable_watermark: u64,
    #[serde(flatten)]
    inventory: Inventory,
}

#[derive(Serialize)]
struct Fingerprint<'a> {
    model: &'a str,
    weight_revision: &'a str,
    adapter: &'a str,
    layers: u32,
    q_heads: u32,
    kv_heads: u32,
    key_dim: u32,
    value_dim: u32,
    kv_dtype: String,
    rope_base: f64,
    rope_interleaved: bool,
    scale: f32,
    provenance: String,
}

#[derive(Serialize)]
struct Summary<'a> {
    record: &'static str,
    shard: &'a str,
    sessions: usize,
    kv_bytes: u64,
    spilled_bytes: u64,
    archived_bytes: u64,
    compact_bytes: u64,
    index_bytes: u64,
    memory_used_bytes: u64,
    memory_budget_bytes: u64,
    quarantined_files: u64,
    refused_sessions: usize,
    #[serde(flatten)]
    inventory: Inventory,
}

/// Runs the verb.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let (shard, file) = (args.shard.as_deref(), args.file.as_deref());
    if let Some(file) = file {
        return match file.is_dir() {
            true => snapshot::inspect(file, args.json),
            false => inspect_file::run(file, args.json),
        };
    }
    let shard = shard.context("a shard or a file is needed")?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answers = runtime.block_on(async {
        let cluster = Cluster::connect(&[shard]).await?;
        let answers = cluster.inspect(args.session.as_ref().map(|id| &id[..])).await;
        answers.map_err(|error| refused(args.session.as_ref(), error))
    })?;
    for answer in &answers {
        match args.json {
            true => print_json(shard, answer)?,
            false => print_plain(shard, answer)?,
        }
    }
    Ok(())
}

fn print_json(shard: &str, answer: &v1::InspectResponse) -> anyhow::Result<()> {
    let mut total = Inventory::default();
    for held in &answer.sessions {
        let session = &wire::convert::hex(&held.session);
        let none = v1::Fingerprint::default();
        let fingerprint = held.fingerprint.as_ref().unwrap_or(&none);
        for span in &held.spans {
            print::json(&span_row(shard, session, span, fingerprint))?;
        }
        let mut inventory = Inventory::default();
        inventory.add(&held.spans);
        total.add(&held.spans);
        print::json(&SessionRow {
            record: "session",
            shard,
            session,
            fingerprint: describe(fingerprint),
            watermark: held.watermark,
            fresh_tokens: held.fresh_tokens,
            kv_bytes: held.kv_bytes,
            spilled_bytes: held.spilled_bytes,
            archived_bytes: held.archived_bytes,
            compact_bytes: held.compact_bytes,
            pinned: held.pinned,
            index_bytes: held.index_bytes,
            lease_left_ms: held.lease_left_ms,
            durable: held.durable,
            durable_watermark: held.durable_watermark,
            inventory,
        })?;
    }
    print::json(&Summary {
        record: "summary",
        shard,
        sessions: answer.sessions.len(),
        kv_bytes: answer.sessions.iter().map(|s| s.kv_bytes).sum(),
        spilled_bytes: answer.sessions.iter().map(|s| s.spilled_bytes).sum(),
        archived_bytes: answer.sessions.iter().map(|s| s.archived_bytes).sum(),
        compact_bytes: answer.sessions.iter().map(|s| s.compact_bytes).sum(),
        index_bytes: answer.sessions.iter().map(|s| s.index_bytes).sum(),
        memory_used_bytes: answer.memory_used_bytes,
        memory_budget_bytes: answer.memory_budget_bytes,
        quarantined_files: answer.quarantined_files,
        refused_sessions: answer.refused.len(),
        inventory: total,
    })
}

fn span_row<'a>(
    shard: &'a str,
    session: &'a str,
    span: &v1::SpanInfo,
    fingerprint: &v1::Fingerprint,
) -> SpanRow<'a> {
    let row_bytes = u64::from(fingerprint.key_dim + fingerprint.value_dim) * size_of::<half::f16>() as u64;
    SpanRow {
        record: "span",
        shard,
        session,
        layer: span.layer,
        kv_head: span.kv_head,
        begin: span.begin,
        end: span.end,
        version: span.version,
        index: kind_name(span),
        ready: span.ready,
        kv_bytes: (span.end - span.begin) * row_bytes,
        tier: tier_name(span),
        spilled_bytes: span.spilled_bytes,
        archived_bytes: span.archived_bytes,
        compact_bytes: span.compact_bytes,
        index_bytes: span.index_bytes,
        build_us: span.build_us,
        recall_estimate: span.recall,
        recall_target: span.recall_target,
        verdict: Verdict::of(span),
        width: width(span),
    }
}

/// Where its rows lie; a server that does not say so keeps them in RAM.
fn tier_name(span: &v1::SpanInfo) -> &'static str {
    match span.tier() {
        v1::Tier::Unspecified | v1::Tier::Full => "full",
        v1::Tier::Spilled => "spilled",
        v1::Tier::Archived => "archived",
        v1::Tier::Quantised => "int8",
        v1::Tier::Sketched => "sketch",
    }
}

/// A scan of every key has none.
fn width(span: &v1::SpanInfo) -> Option<u32> {
    (span.index() != v1::IndexKind::Flat).then_some(span.width)
}

fn describe(fingerprint: &v1::Fingerprint) -> Fingerprint<'_> {
    Fingerprint {
        model: &fingerprint.model,
        weight_revision: &fingerprint.weight_revision,
        adapter: &fingerprint.adapter,
        layers: fingerprint.layers,
        q_heads: fingerprint.q_heads,
        kv_heads: fingerprint.kv_heads,
        key_dim: fingerprint.key_dim,
        value_dim: fingerprint.value_dim,
        kv_dtype: short_name(fingerprint.kv_dtype().as_str_name(), "D_TYPE_"),
        rope_base: fingerprint.rope_base,
        rope_interleaved: fingerprint.rope_interleaved,
        scale: fingerprint.scale,
        provenance: short_name(fingerprint.provenance().as_str_name(), "PROVENANCE_"),
    }
}

/// `D_TYPE_F16` as `f16`.
fn short_name(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

fn print_plain(shard: &str, answer: &v1::InspectResponse) -> anyhow::Result<()> {
    print::line(format_args!(
        "shard {shard}: {} of {} MiB of memory reserved or in use, sessions: {}",
        mib(answer.memory_used_bytes),
        mib(answer.memory_budget_bytes),
        answer.sessions.len()
    ))?;
    if answer.quarantined_files > 0 {
        print::line(format_args!(
            "damaged or foreign files put into quarantine: {}",
            answer.quarantined_files
        ))?;
    }
    for refused in &answer.refused {
        print::line(format_args!("refused: {}", refused.reason))?;
    }
    let mut total = Inventory::default();
    for held in &answer.sessions {
        total.add(&held.spans);
        print::line(format_args!(""))?;
        print::line(format_args!("session {}: {}", wire::convert::hex(&held.session), model_line(held)))?;
        print::line(format_args!(
            "{} tokens in every head held here, up to {} of a head fresh; {} MiB of KV{} in RAM, {} MiB spilled, {} MiB archived, {} MiB of int8 and sketches, {} MiB of indexes; the lease ends in {} s",
            held.watermark,
            held.fresh_tokens,
            mib(held.kv_bytes),
            if held.pinned { ", pinned," } else { "" },
            mib(held.spilled_bytes),
            mib(held.archived_bytes),
            mib(held.compact_bytes),
            mib(held.index_bytes),
            held.lease_left_ms / 1000
        ))?;
        print::line(format_args!(
            "{:>5}  {:<7} {:<18} {:>3}  {:<8} {:<8} {:>11}  {:>6}  {:>6}  {:>9}  {:>9}  recall",
            "layer",
            "heads",
            "tokens",
            "ver",
            "tier",
            "index",
            "width",
            "recall",
            "target",
            "index KiB",
            "build ms"
        ))?;
        for lines in grouped(&held.spans) {
            print::line(format_args!("{}", table_line(&lines)))?;
        }
    }
    if !answer.sessions.is_empty() {
        print::line(format_args!(""))?;
    }
    print::line(format_args!("spans: {}", total.line()))
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn model_line(held: &v1::SessionInfo) -> String {
    let Some(of) = &held.fingerprint else { return "of an unknown model".into() };
    let short = describe(of);
    let revision: String = of.weight_revision.chars().take(12).collect();
    let mut line = format!(
        "{} (weights {revision}), {} layers x {} KV heads, {} query heads, key dim {}, value dim {}, {}, {}",
        of.model,
        of.layers,
        of.kv_heads,
        of.q_heads,
        of.key_dim,
        of.value_dim,
        short.kv_dtype,
        short.provenance
    );
    if !of.adapter.is_empty() {
        // Writing to a string cannot fail.
        _ = write!(line, ", adapter {}", of.adapter);
    }
    line
}

/// The spans line by line: each alone when there are few, otherwise the heads of a layer that differ in nothing but
/// width and recall together. What is below its target, or unknown, always has a line of its own.
fn grouped(spans: &[v1::SpanInfo]) -> Vec<Vec<&v1::SpanInfo>> {
    let alike = |a: &v1::SpanInfo, b: &v1::SpanInfo| {
        let of = |s: &v1::SpanInfo| (s.layer, s.begin, s.end, s.version, s.tier, s.index, Verdict::of(s));
        spans.len() >= MANY && of(a) == of(b) && !matches!(Verdict::of(a), Verdict::Below | Verdict::Unknown)
    };
    let mut ordered: Vec<&v1::SpanInfo> = spans.iter().collect();
    ordered.sort_by_key(|s| (s.layer, s.begin, s.kv_head));
    let mut lines: Vec<Vec<&v1::SpanInfo>> = Vec::new();
    for span in ordered {
        match lines.last_mut() {
            Some(line) if alike(line[0], span) && line[line.len() - 1].kv_head + 1 == span.kv_head => {
                line.push(span)
            }
            _ => lines.push(vec![span]),
        }
    }
    lines
}

fn table_line(spans: &[&v1::SpanInfo]) -> String {
    let (first, last) = (spans[0], spans[spans.len() - 1]);
    let run = |a: u32, b: u32| if a == b { a.to_string() } else { format!("{a}-{b}") };
    let widths = || spans.iter().filter_map(|s| width(s));
    let recall = spans.iter().filter_map(|s| s.recall).reduce(f32::min);
    let number = |x: Option<f32>| x.map_or("-".into(), |x| format!("{x:.3}"));
    format!(
        "{:>5}  {:<7} {:<18} {:>3}  {:<8} {:<8} {:>11}  {:>6}  {:>6}  {:>9.1}  {:>9.1}  {}",
        first.layer,
        run(first.kv_head, last.kv_head),
        format!("[{}, {})", first.begin, first.end),
        first.version,
        tier_name(first),
        kind_name(first),
        widths().min().zip(widths().max()).map_or("-".into(), |(least, most)| run(least, most)),
        number(recall),
        number(first.recall_target),
        spans.iter().map(|s| s.index_bytes).sum::<u64>() as f64 / 1024.0,
        spans.iter().map(|s| s.build_us).sum::<u64>() as f64 / 1000.0,
        Verdict::of(first).mark()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_heads_share_a_line_and_those_below_target_never_do() {
        let span = |layer, kv_head| v1::SpanInfo {
            layer,
            kv_head,
            end: 100,
            index: v1::IndexKind::Summary.into(),
            ready: true,
            recall: Some(if (layer, kv_head) == (1, 2) { 0.9 } else { 0.97 }),
            recall_target: Some(0.95),
            width: 10 + kv_head,
            ..v1::SpanInfo::default()
        };
        let all = |layers: u32| (0..layers).flat_map(|l| (0..8).map(move |h| span(l, h))).collect::<Vec<_>>();
        let few = all(2);
        assert_eq!(grouped(&few).len(), 16);
        let many = all(5);
        let lines = grouped(&many);
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [8, 2, 1, 5, 8, 8, 8]);
        assert!(table_line(&lines[2]).ends_with("BELOW TARGET"), "{}", table_line(&lines[2]));
        let joined = table_line(&lines[0]);
        assert!(joined.contains("0-7") && joined.contains("10-17") && joined.ends_with("met"), "{joined}");
    }
}
