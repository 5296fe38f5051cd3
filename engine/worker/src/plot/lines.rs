//! Curves over two logarithmic axes, with a band around those that are no mere reference.

use super::svg::{Anchor, Page};

const COLOURS: [&str; 5] = ["#1b6ca8", "#d1495b", "#3c8d53", "#8a5fb0", "#b07d2b"];
const SIZE: (f64, f64) = (760.0, 500.0);
const LEFT: f64 = 84.0;
const TOP: f64 = 64.0;
const RIGHT: f64 = 250.0;
const BOTTOM: f64 = 60.0;

/// A point of a curve, with the ends of its band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Above 0.
    pub x: f64,
    /// What is at or below 0 lies on the lower edge.
    pub y: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A curve.
pub struct Curve {
    /// What it shows.
    pub name: String,
    /// By x.
    pub points: Vec<Point>,
    /// A curve to compare with: dashed, and without its band.
    pub reference: bool,
}

/// Curves over common axes.
pub struct Lines<'a> {
    /// What the picture shows.
    pub title: &'a str,
    /// Under what conditions.
    pub subtitle: &'a str,
    /// What x is, with its unit.
    pub x: &'a str,
    /// What y is, with its unit.
    pub y: &'a str,
    /// What the bands are.
    pub band: &'a str,
    /// At most five.
    pub curves: Vec<Curve>,
}

/// Powers of ten that enclose the values above 0.
fn decades(values: impl Iterator<Item = f64>) -> (i32, i32) {
    let positive = values.filter(|v| *v > 0.0 && v.is_finite());
    let (low, high) = positive.fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return (-1, 0);
    }
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    (from, to.max(from + 1))
}

impl Lines<'_> {
    /// The picture.
    pub fn draw(&self) -> String {
        let mut page = Page::new(SIZE.0, SIZE.1);
        let (right, bottom) = (SIZE.0 - RIGHT, SIZE.1 - BOTTOM);
        page.text((LEFT, 24.0), 16.0, Anchor::Start, self.title);
        page.text((LEFT, 43.0), 12.0, Anchor::Start, self.subtitle);
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let (y_from, y_to) = decades(points().flat_map(|p| [p.y, p.low, p.high]));
        let xs: Vec<f64> = {
            let mut xs: Vec<f64> = points().map(|p| p.x).collect();
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            xs
        };
        let (first, last) = (xs.first().copied().unwrap_or(1.0), xs.last().copied().unwrap_or(10.0));
        let span = (last / first).ln().max(1e-9);
        let at_x = |x: f64| LEFT + 14.0 + (right - LEFT - 28.0) * (x / first).ln() / span;
        let at_y = |y: f64| {
            let place = (y.max(1e-300).log10() - f64::from(y_from)) / f64::from(y_to - y_from);
            bottom - (bottom - TOP) * place.clamp(0.0, 1.0)
        };
        for power in y_from..=y_to {
            let y = at_y(10f64.powi(power));
            page.line((LEFT, y), (right, y), "#cccccc");
            page.text((LEFT - 8.0, y + 4.0), 11.0, Anchor::End, &number(10f64.powi(power)));
            for half in [2.0, 5.0] {
                let value = half * 10f64.powi(power);
                if power < y_to {
                    page.line((LEFT, at_y(value)), (right, at_y(value)), "#eeeeee");
                    page.text((LEFT - 8.0, at_y(value) + 4.0), 9.0, Anchor::End, &number(value));
                }
            }
        }
        for &x in &xs {
            page.line((at_x(x), TOP), (at_x(x), bottom), "#eeeeee");
            page.text((at_x(x), bottom + 18.0), 11.0, Anchor::Middle, &number(x));
        }
        page.line((LEFT, bottom), (right, bottom), "#222222");
        page.line((LEFT, TOP), (LEFT, bottom), "#222222");
        page.text(((LEFT + right) / 2.0, bottom + 40.0), 12.0, Anchor::Middle, self.x);
        page.upright_text((20.0, (TOP + bottom) / 2.0), 12.0, self.y);
        for (curve, colour) in self.curves.iter().zip(COLOURS).filter(|(curve, _)| !curve.reference) {
            let there = curve.points.iter().map(|p| (at_x(p.x), at_y(p.low)));
            let back = curve.points.iter().rev().map(|p| (at_x(p.x), at_y(p.high)));
            page.area(&there.chain(back).collect::<Vec<_>>(), colour);
        }
        for (i, (curve, colour)) in self.curves.iter().zip(COLOURS).enumerate() {
            let line: Vec<(f64, f64)> = curve.points.iter().map(|p| (at_x(p.x), at_y(p.y))).collect();
            page.curve(&line, colour, curve.reference);
            let y = TOP + 14.0 + i as f64 * 22.0;
            page.curve(&[(right + 18.0, y - 4.0), (right + 42.0, y - 4.0)], colour, curve.reference);
            page.text((right + 50.0, y), 12.0, Anchor::Start, &curve.name);
        }
        let y = TOP + 20.0 + self.curves.len() as f64 * 22.0;
        page.text((right + 18.0, y), 11.0, Anchor::Start, self.band);
        page.finish()
    }
}

/// Without zeros at the end.
fn number(value: f64) -> String {
    let text = if value >= 1.0 { format!("{value:.0}") } else { format!("{value:.9}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_has_its_points_and_a_reference_no_band() {
        let curve = |name: &str, reference: bool| Curve {
            name: name.into(),
            reference,
            points: [20.0, 100.0, 500.0].map(|x| Point { x, y: 1.0 / x, low: 0.0, high: 2.0 / x }).to_vec(),
        };
        let lines = Lines {
            title: "t",
            subtitle: "s",
            x: "budget",
            y: "error",
            band: "p10 to p90",
            curves: vec![curve("ours", false), curve("oracle", true)],
        };
        let svg = lines.draw();
        assert_eq!(svg.matches("class=\"band\"").count(), 1);
        assert_eq!(svg.matches("<circle").count(), 2 * (3 + 2));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg, lines.draw());
    }

    #[test]
    fn numbers_and_decades() {
        assert_eq!([0.001, 0.05, 20.0, 1000.0].map(number), ["0.001", "0.05", "20", "1000"]);
        assert_eq!(decades([0.002, 0.3, 0.0].into_iter()), (-3, 0));
        assert_eq!(decades([1.0].into_iter()), (0, 1));
        assert_eq!(decades([].into_iter()), (-1, 0));
    }
}
