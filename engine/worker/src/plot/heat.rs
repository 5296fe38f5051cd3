//! Tables of cells under one colour scale: one panel above the other, the same rows and columns in each.

use super::svg::{Anchor, Page};

/// From low to high, readable in grey and by the colour-blind: dark text on the first half, light on the second.
const RAMP: [[f64; 3]; 5] = [
    [247.0, 251.0, 255.0],
    [198.0, 219.0, 239.0],
    [107.0, 174.0, 214.0],
    [33.0, 113.0, 181.0],
    [8.0, 48.0, 107.0],
];
const TITLE: f64 = 58.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const PANEL_TITLE: f64 = 24.0;
const PANEL_GAP: f64 = 22.0;
const LEGEND: f64 = 66.0;
const BAR: f64 = 240.0;

/// How values become colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Evenly from the first to the second.
    Linear(f64, f64),
    /// By ratio from the first to the second, both above 0; what is lower has the lowest colour.
    Log(f64, f64),
}

impl Scale {
    /// By ratio over the values above 0, from a factor of ten wide to one of ten thousand.
    pub fn log_of<'a>(values: impl Iterator<Item = &'a f64>) -> Scale {
        let positive = values.copied().filter(|v| *v > 0.0 && v.is_finite());
        let (low, high) = positive.fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
        match low <= high {
            true => Scale::Log(low.clamp(high / 1e4, high / 10.0), high),
            false => Scale::Log(0.1, 1.0),
        }
    }

    /// In 0..=1.
    fn place(self, value: f64) -> f64 {
        let place = match self {
            Scale::Linear(low, high) => (value - low) / (high - low),
            Scale::Log(low, high) => (value.max(low) / low).ln() / (high / low).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    fn value_at(self, place: f64) -> f64 {
        match self {
            Scale::Linear(low, high) => low + place * (high - low),
            Scale::Log(low, high) => low * (high / low).powf(place),
        }
    }
}

/// One table.
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// `[rows][columns]`; None leaves a grey cell.
    pub values: Vec<Vec<Option<f64>>>,
}

/// Several tables of the same rows and columns.
pub struct Heat<'a> {
    /// What the picture shows.
    pub title: &'a str,
    /// Under what conditions.
    pub subtitle: &'a str,
    /// What a column is, and its names.
    pub columns: (&'a str, Vec<String>),
    /// What a row is, and its names.
    pub rows: (&'a str, Vec<String>),
    /// The tables, from the top.
    pub panels: Vec<Panel>,
    /// How values become colours.
    pub scale: Scale,
    /// What a value is, with its unit.
    pub legend: &'a str,
    /// How a value is written into its cell.
    pub write: fn(f64) -> String,
    /// Width and height of a cell in pixels.
    pub cell: (f64, f64),
}

impl Heat<'_> {
    /// The picture.
    pub fn draw(&self) -> String {
        let (wide, high) = self.cell;
        let table = self.rows.1.len() as f64 * high;
        let panel = PANEL_TITLE + table + 40.0 + PANEL_GAP;
        let texts = [self.title.len() as f64 * 9.0, self.subtitle.len() as f64 * 6.4, BAR + 330.0];
        let least = LEFT + texts.into_iter().fold(0.0, f64::max);
        let width = (LEFT + self.columns.1.len() as f64 * wide + RIGHT).max(least);
        let mut page = Page::new(width, TITLE + self.panels.len() as f64 * panel + LEGEND);
        page.text((LEFT, 24.0), 16.0, Anchor::Start, self.title);
        page.text((LEFT, 43.0), 12.0, Anchor::Start, self.subtitle);
        for (i, one) in self.panels.iter().enumerate() {
            self.panel(&mut page, TITLE + i as f64 * panel, one);
        }
        self.bar(&mut page, TITLE + self.panels.len() as f64 * panel);
        page.finish()
    }

    fn panel(&self, page: &mut Page, top: f64, panel: &Panel) {
        let (wide, high) = self.cell;
        page.text((LEFT, top + 14.0), 13.0, Anchor::Start, &panel.title);
        let top = top + PANEL_TITLE;
        let table = self.rows.1.len() as f64 * high;
        page.upright_text((22.0, top + table / 2.0), 12.0, self.rows.0);
        for (r, (row, name)) in panel.values.iter().zip(&self.rows.1).enumerate() {
            let y = top + r as f64 * high;
            page.text((LEFT - 8.0, y + high / 2.0 + 4.0), 11.0, Anchor::End, name);
            for (c, (value, column)) in row.iter().zip(&self.columns.1).enumerate() {
                let x = LEFT + c as f64 * wide;
                let written = value.map_or("-".into(), self.write);
                let (fill, ink) = match value.map(|v| self.scale.place(v)) {
                    None => ("#dddddd".into(), "#222222"),
                    Some(place) => (colour(place), if place > 0.55 { "#ffffff" } else { "#222222" }),
                };
                let title = format!("{} {column}, {} {name}: {written}", self.columns.0, self.rows.0);
                page.cell((x, y), self.cell, &fill, &title);
                let centre = (x + wide / 2.0, y + high / 2.0 + 4.0);
                page.coloured_text(centre, 11.0, Anchor::Middle, ink, &written);
            }
        }
        for (c, name) in self.columns.1.iter().enumerate() {
            let x = LEFT + (c as f64 + 0.5) * wide;
            page.text((x, top + table + 15.0), 11.0, Anchor::Middle, name);
        }
        let middle = LEFT + self.columns.1.len() as f64 * wide / 2.0;
        page.text((middle, top + table + 33.0), 12.0, Anchor::Middle, self.columns.0);
    }

    fn bar(&self, page: &mut Page, top: f64) {
        const STEPS: usize = 48;
        for i in 0..STEPS {
            let x = LEFT + BAR * i as f64 / STEPS as f64;
            let place = (i as f64 + 0.5) / STEPS as f64;
            page.block((x, top), (BAR / STEPS as f64, 14.0), &colour(place));
        }
        for place in [0.0, 0.5, 1.0] {
            let x = LEFT + BAR * place;
            let value = self.scale.value_at(place);
            let written = match self.scale {
                Scale::Linear(..) => (self.write)(value),
                Scale::Log(..) => two_digits(value),
            };
            page.text((x, top + 30.0), 11.0, Anchor::Middle, &written);
        }
        page.text((LEFT + BAR + 30.0, top + 12.0), 12.0, Anchor::Start, self.legend);
    }
}

/// Two significant digits below 10, whole numbers above.
fn two_digits(value: f64) -> String {
    let decimals = (1.0 - value.log10().floor()).clamp(0.0, 9.0) as usize;
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.decimals$}") }
}

fn colour(place: f64) -> String {
    let at = place * (RAMP.len() - 1) as f64;
    let low = (at as usize).min(RAMP.len() - 2);
    let part = at - low as f64;
    let mix = |i: usize| (RAMP[low][i] + part * (RAMP[low + 1][i] - RAMP[low][i])).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cell_for_each_value_of_each_panel() {
        let values = vec![vec![Some(0.01), None, Some(1.0)], vec![Some(0.0), Some(0.1), Some(0.5)]];
        let names = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>();
        let heat = Heat {
            title: "t",
            subtitle: "s",
            columns: ("layer", names(3)),
            rows: ("head", names(2)),
            panels: vec![
                Panel { title: "a".into(), values: values.clone() },
                Panel { title: "b".into(), values },
            ],
            scale: Scale::Log(0.01, 1.0),
            legend: "error",
            write: |v| format!("{v:.2}"),
            cell: (30.0, 20.0),
        };
        let svg = heat.draw();
        assert_eq!(svg.matches("<rect class=\"cell\"").count(), 12);
        assert_eq!(svg.matches("#dddddd").count(), 2);
        assert_eq!(svg, heat.draw());
    }

    #[test]
    fn scales_run_from_the_first_colour_to_the_last() {
        for scale in [Scale::Linear(2.0, 4.0), Scale::Log(0.5, 50.0)] {
            for place in [0.0, 0.25, 1.0] {
                assert!((scale.place(scale.value_at(place)) - place).abs() < 1e-12);
            }
            assert_eq!((scale.place(-1.0), scale.place(1e9)), (0.0, 1.0));
        }
        assert_eq!((colour(0.0), colour(1.0)), ("#f7fbff".into(), "#08306b".into()));
        assert_eq!(Scale::log_of([0.0, 0.02, 3.0].iter()), Scale::Log(0.02, 3.0));
        assert_eq!(Scale::log_of([3.0].iter()), Scale::Log(0.3, 3.0));
        assert_eq!(Scale::log_of([1e-9, 2.0].iter()), Scale::Log(2e-4, 2.0));
        assert_eq!([0.000_18, 0.5, 6.4, 6396.0].map(two_digits), ["0.00018", "0.50", "6.4", "6396"]);
        assert_eq!(Scale::log_of([].iter()), Scale::Log(0.1, 1.0));
    }
}
