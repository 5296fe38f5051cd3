//! Pictures of the study of heads.

use std::path::Path;

use super::head_rows::Row;
use super::spread::Spread;
use crate::plot::heat::{Heat, Panel, Scale};
use crate::plot::lines::{Curve, Lines, Point};
use crate::plot::write;

/// What the titles say of the run.
pub struct Caption {
    /// Model, context, number of queries.
    pub run: String,
    /// The index of the budget whose errors are mapped.
    pub mapped: usize,
}

/// Writes all of them into `folder`; returns their names.
///
/// # Errors
/// The path that cannot be written.
pub fn draw(folder: &Path, heads: &[Vec<Row>], caption: &Caption) -> anyhow::Result<Vec<&'static str>> {
    let pictures = [
        ("heads-error.svg", error_map(heads, caption)),
        ("heads-tokens.svg", token_map(heads, caption)),
        ("heads-error-by-budget.svg", error_curves(heads, caption)),
        ("heads-missed-by-budget.svg", missed_curves(heads, caption)),
    ];
    for (name, picture) in &pictures {
        write(folder, name, picture)?;
    }
    Ok(pictures.map(|(name, _)| name).into())
}

/// Layers across, KV heads down: `[kv_head][layer]`.
struct Grid {
    layers: Vec<usize>,
    kv_heads: usize,
}

impl Grid {
    fn of(heads: &[Vec<Row>]) -> Grid {
        let mut layers: Vec<usize> = heads.iter().map(|rows| rows[0].layer).collect();
        layers.dedup();
        let kv_heads = heads.iter().map(|rows| rows[0].kv_head + 1).max().unwrap_or(0);
        Grid { layers, kv_heads }
    }

    fn panel(&self, title: impl Into<String>, heads: &[Vec<Row>], of: impl Fn(&[Row]) -> f64) -> Panel {
        let mut values = vec![vec![None; self.layers.len()]; self.kv_heads];
        for rows in heads {
            if let Some(column) = self.layers.iter().position(|&layer| layer == rows[0].layer) {
                values[rows[0].kv_head][column] = Some(of(rows));
            }
        }
        Panel { title: title.into(), values }
    }

    fn heat<'a>(
        &self,
        (title, subtitle, legend): (&'a str, &'a str, &'a str),
        write: fn(f64) -> String,
        panels: Vec<Panel>,
    ) -> Heat<'a> {
        let scale = Scale::log_of(panels.iter().flat_map(|p| p.values.iter().flatten().flatten()));
        Heat {
            title,
            subtitle,
            columns: ("layer", self.layers.iter().map(usize::to_string).collect()),
            rows: ("KV head", (0..self.kv_heads).map(|head| head.to_string()).collect()),
            panels,
            scale,
            legend,
            write,
            cell: (42.0, 24.0),
        }
    }
}

fn error_map(heads: &[Vec<Row>], caption: &Caption) -> String {
    let i = caption.mapped;
    let budget = heads.first().map_or("", |rows| rows[i].budget.as_str());
    let grid = Grid::of(heads);
    let ours = format!("index, K = {budget}");
    let panels = vec![
        grid.panel(format!("{ours}, with the estimate"), heads, |r| r[i].output_error_estimate_mean),
        grid.panel(format!("{ours}, without the estimate"), heads, |r| r[i].output_error_mean),
        grid.panel(format!("exact top {budget}"), heads, |r| r[i].oracle_topk_error_mean),
        grid.panel("sink and window only", heads, |r| r[i].local_error_mean),
    ];
    let words = ("Output error of every head", caption.run.as_str(), "mean |o - o_full| / |o_full|, no unit");
    grid.heat(words, |error| format!("{error:.3}"), panels).draw()
}

fn token_map(heads: &[Vec<Row>], caption: &Caption) -> String {
    let grid = Grid::of(heads);
    let panels = vec![
        grid.panel("for 0.90 of the softmax mass", heads, |r| r[0].tokens_for_90),
        grid.panel("for 0.95", heads, |r| r[0].tokens_for_95),
        grid.panel("for 0.99", heads, |r| r[0].tokens_for_99),
    ];
    let words = (
        "Best tokens that a head needs beside sink and window",
        caption.run.as_str(),
        "tokens per query head, mean over queries",
    );
    grid.heat(words, |tokens| format!("{tokens:.0}"), panels).draw()
}

fn curve((name, reference): (&str, bool), heads: &[Vec<Row>], of: fn(&Row) -> f64) -> Curve {
    let budgets = heads.first().map_or(0, Vec::len);
    let points = (0..budgets).filter_map(|i| {
        let row = &heads[0][i];
        let spread = Spread::of(heads.iter().map(|rows| of(&rows[i])))?;
        // All is the number of indexed tokens.
        let x = row.budget.parse().unwrap_or(row.indexed_tokens as f64);
        Some(Point { x, y: spread.median, low: spread.p10, high: spread.p90 })
    });
    Curve { name: name.into(), points: points.collect(), reference }
}

fn error_curves(heads: &[Vec<Row>], caption: &Caption) -> String {
    Lines {
        title: "Output error against budget, median over heads",
        subtitle: &caption.run,
        x: "budget K: exactly attended tokens per query head beside sink and window",
        y: "mean |o - o_full| / |o_full|",
        band: "bands: p10 to p90 of the heads",
        curves: vec![
            curve(("index, with estimate", false), heads, |r| r.output_error_estimate_mean),
            curve(("index, without estimate", false), heads, |r| r.output_error_mean),
            curve(("exact top K", true), heads, |r| r.oracle_topk_error_mean),
            curve(("sink and window only", true), heads, |r| r.local_error_mean),
        ],
    }
    .draw()
}

fn missed_curves(heads: &[Vec<Row>], caption: &Caption) -> String {
    Lines {
        title: "Softmax mass that is not attended to exactly, median over heads",
        subtitle: &caption.run,
        x: "budget K: exactly attended tokens per query head beside sink and window",
        y: "share of the mass, 1 - recovery",
        band: "bands: p10 to p90 of the heads",
        curves: vec![
            curve(("index", false), heads, |r| 1.0 - r.recovery),
            curve(("exact top K", true), heads, |r| 1.0 - r.recovery_oracle),
            curve(("sink and window only", true), heads, |r| 1.0 - r.local_share),
        ],
    }
    .draw()
}
