//! The rows of `recollect bench tiers`, their table and their pictures.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::{input, usage};
use crate::plot;
use crate::plot::lines::{Curve, Lines, Point};

/// A tier or variant on one capture. Means over decode queries and query heads; what does not apply is null.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub variant: String,
    pub capture: String,
    /// Everything held, by tokens.
    pub bytes_per_token: f64,
    /// The part of it that only says which token is where.
    pub bytes_per_token_to_reconstruct: f64,
    pub output_error_mean: f64,
    pub output_error_p90: f64,
    pub recall_at_k: f64,
    /// The error when it was built from attention of the first half of the context only.
    pub shifted_error_mean: Option<f64>,
    /// Per query head, the median over calls: a call that waited for the machine says nothing.
    pub us_per_query: f64,
    /// Share of the indexed mass that was attended to at stored precision.
    pub exact_share_of_mass: f64,
    pub build_us_per_token: f64,
    pub kv_bytes_per_token: f64,
    /// Query positions times query heads.
    pub queries: usize,
}

/// Names the columns of [`Row::line`].
pub fn heading(path: &Path, tokens: usize) -> String {
    format!(
        "{}: {tokens} tokens indexed\n{:<14} {:>8} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8}",
        path.file_name().unwrap_or_default().to_string_lossy(),
        "variant",
        "bytes/t",
        "error",
        "p90",
        "recall",
        "shifted",
        "us/query",
        "build us/t",
    )
}

impl Row {
    /// The row for people.
    pub fn line(&self) -> String {
        format!(
            "{:<14} {:>8.1} {:>9.5} {:>9.5} {:>8.4} {:>9} {:>9.0} {:>8.1}",
            self.variant,
            self.bytes_per_token,
            self.output_error_mean,
            self.output_error_p90,
            self.recall_at_k,
            self.shifted(5),
            self.us_per_query,
            self.build_us_per_token,
        )
    }

    fn shifted(&self, digits: usize) -> String {
        self.shifted_error_mean.map_or("-".into(), |error| format!("{error:.digits$}"))
    }

    /// What is plotted as one curve.
    fn family(&self) -> &str {
        match self.variant.split('-').next() {
            Some("int8" | "int4") => "quantised",
            Some(family) => family,
            None => &self.variant,
        }
    }
}

const BEGIN: &str = "<!-- figures: written by recollect bench tiers -->";
const END: &str = "<!-- end of figures -->";

/// Refuses a file that cannot be written into, before minutes of work.
///
/// # Errors
/// A usage error that names the file and what is wrong with it.
pub fn check(path: &Path) -> Result<()> {
    let flag = "--write";
    match std::fs::exists(path) {
        Ok(true) => parts(path, &input::text(flag, path)?).map(|_| ()),
        _ => match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                Err(usage(format!("{flag} {}: its folder does not exist", path.display())))
            }
            _ => Ok(()),
        },
    }
}

/// What stands before and behind the figures.
fn parts<'a>(path: &Path, text: &'a str) -> Result<(&'a str, &'a str)> {
    let marked = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    marked.ok_or_else(|| {
        usage(format!("--write {}: the marks '{BEGIN}' and '{END}' are wanted", path.display()))
    })
}

/// Puts tables between the marks of a Markdown file, or into a new one, and pictures beside it.
///
/// # Errors
/// The file, and the system's reason.
pub fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let text = match path.exists() {
        true => input::text("--write", path)?,
        false => format!("{BEGIN}\n{END}\n"),
    };
    let (before, behind) = parts(path, &text)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut captures: Vec<&str> = rows.iter().map(|row| row.capture.as_str()).collect();
    captures.dedup();
    let mut figures = String::new();
    for capture in captures {
        let of_capture: Vec<&Row> = rows.iter().filter(|row| row.capture == capture).collect();
        // Writing to a string cannot fail.
        _ = write!(figures, "\n### {capture}\n\n{}", table(&of_capture));
        for shifted in [false, true] {
            let name = format!("tiers-{capture}{}.svg", if shifted { "-shifted" } else { "" });
            plot::write(folder, &name, &picture(capture, &of_capture, shifted))?;
            let what = if shifted { "shifted attention" } else { "stationary attention" };
            _ = write!(figures, "\n![{capture}: error against bytes, {what}]({name})\n");
        }
    }
    std::fs::write(path, format!("{before}{BEGIN}\n{figures}\n{END}{behind}"))
        .with_context(|| path.display().to_string())
}

fn table(rows: &[&Row]) -> String {
    let mut text = String::from(
        "| variant | bytes a token (of it, to reconstruct) | output error | p90 | recall@k | shifted error | exact share of mass | us a query head | build us a token |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        _ = writeln!(
            text,
            "| {} | {:.1} ({:.1}) | {:.4} | {:.4} | {:.3} | {} | {:.2} | {:.0} | {:.1} |",
            row.variant,
            row.bytes_per_token,
            row.bytes_per_token_to_reconstruct,
            row.output_error_mean,
            row.output_error_p90,
            row.recall_at_k,
            row.shifted(4),
            row.exact_share_of_mass,
            row.us_per_query,
            row.build_us_per_token,
        );
    }
    text
}

/// Error against bytes, a curve for each family.
fn picture(capture: &str, rows: &[&Row], shifted: bool) -> String {
    let mut families: Vec<&str> = rows.iter().map(|row| row.family()).filter(|&f| f != "full").collect();
    families.sort_unstable();
    families.dedup();
    let curve = |family: &&str| {
        let mut points: Vec<Point> = rows
            .iter()
            .filter(|row| row.family() == *family)
            .map(|row| {
                let plain = (row.output_error_mean, row.output_error_p90);
                let (y, high) = match row.shifted_error_mean.filter(|_| shifted) {
                    Some(error) => (error, error),
                    None => plain,
                };
                Point { x: row.bytes_per_token.round(), y, low: y, high }
            })
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Curve { name: (*family).into(), points, reference: false }
    };
    let subtitle = match shifted {
        false => format!("{capture}; attention watched at the last 512 positions before the evaluation"),
        true => format!("{capture}; attention watched in the first half of the context only"),
    };
    Lines {
        title: "Output error against bytes",
        subtitle: &subtitle,
        x: "bytes per token",
        y: "mean |o - o_full| / |o_full|",
        band: if shifted { "" } else { "bands: mean to p90" },
        curves: families.iter().map(curve).collect(),
    }
    .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(variant: &str, bytes: f64, error: f64, shifted: Option<f64>) -> Row {
        Row {
            variant: variant.into(),
            capture: "c".into(),
            bytes_per_token: bytes,
            bytes_per_token_to_reconstruct: 0.5,
            output_error_mean: error,
            output_error_p90: 2.0 * error,
            recall_at_k: 0.9,
            shifted_error_mean: shifted,
            us_per_query: 10.0,
            exact_share_of_mass: 0.5,
            build_us_per_token: 1.0,
            kv_bytes_per_token: 256.0,
            queries: 4,
        }
    }

    #[test]
    fn figures_replace_what_was_between_the_marks() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("TIERS.md");
        let rows = [
            row("full", 256.0, 0.0, None),
            row("int8", 172.0, 0.001, None),
            row("coded-25", 64.0, 0.02, Some(0.04)),
        ];
        std::fs::write(&path, format!("# Head\n{BEGIN}\nold\n{END}\ntail\n"))?;
        for _ in 0..2 {
            check(&path)?;
            write(&path, &rows)?;
        }
        let text = std::fs::read_to_string(&path)?;
        assert!(text.starts_with("# Head\n<!--") && text.ends_with("-->\ntail\n") && !text.contains("old"));
        assert!(text.contains("| coded-25 | 64.0 (0.5) | 0.0200 | 0.0400 | 0.900 | 0.0400 |"), "{text}");
        for name in ["tiers-c.svg", "tiers-c-shifted.svg"] {
            let svg = std::fs::read_to_string(folder.path().join(name))?;
            assert!(text.contains(name) && svg.matches("class=\"curve\"").count() == 4, "{svg}");
        }
        std::fs::write(&path, "no marks")?;
        assert!(check(&path).unwrap_err().to_string().contains("marks"));
        assert!(check(&folder.path().join("no/such.md")).is_err());
        Ok(())
    }
}
