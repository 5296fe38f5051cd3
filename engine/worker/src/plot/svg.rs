//! A page of SVG.

use std::fmt::Write;

/// Where text stands in relation to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

/// A page under construction; lengths are pixels from its upper left corner.
pub struct Page {
    body: String,
    width: f64,
    height: f64,
}

impl Page {
    /// An empty white page.
    pub fn new(width: f64, height: f64) -> Page {
        let mut page = Page { body: String::new(), width, height };
        page.put(format_args!(r##"<rect width="100%" height="100%" fill="#ffffff"/>"##));
        page
    }

    /// The document.
    pub fn finish(self) -> String {
        let Page { body, width, height } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"Helvetica, Arial, sans-serif\">\n{body}</svg>\n"
        )
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        _ = writeln!(self.body, "{element}");
    }

    /// Text of a size.
    pub fn text(&mut self, (x, y): (f64, f64), size: f64, anchor: Anchor, text: &str) {
        self.coloured_text((x, y), size, anchor, "#222222", text);
    }

    /// Text of a size and a colour.
    pub fn coloured_text(&mut self, (x, y): (f64, f64), size: f64, anchor: Anchor, colour: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.put(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size:.0}" fill="{colour}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        ));
    }

    /// Text that runs upwards, centred.
    pub fn upright_text(&mut self, (x, y): (f64, f64), size: f64, text: &str) {
        self.put(format_args!(
            r##"<text transform="translate({x:.1} {y:.1}) rotate(-90)" font-size="{size:.0}" fill="#222222" text-anchor="middle">{}</text>"##,
            escaped(text)
        ));
    }

    /// A filled rectangle with a white edge; `title` shows when pointed at.
    pub fn cell(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, title: &str) {
        self.put(format_args!(
            r##"<rect class="cell" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}" stroke="#ffffff"><title>{}</title></rect>"##,
            escaped(title)
        ));
    }

    /// A filled rectangle without an edge.
    pub fn block(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        self.put(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        ));
    }

    /// A straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        self.put(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#
        ));
    }

    /// A curve through points, with a dot on each; a dashed one lets another under it be seen.
    pub fn curve(&mut self, points: &[(f64, f64)], colour: &str, dashed: bool) {
        let dashes = if dashed { r#" stroke-dasharray="6 5""# } else { "" };
        self.put(format_args!(
            r#"<polyline class="curve" points="{}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>"#,
            joined(points)
        ));
        for (x, y) in points {
            self.put(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#));
        }
    }

    /// A filled area that shows what lies under it.
    pub fn area(&mut self, corners: &[(f64, f64)], colour: &str) {
        self.put(format_args!(
            r#"<polygon class="band" points="{}" fill="{colour}" fill-opacity="0.15"/>"#,
            joined(corners)
        ));
    }
}

fn joined(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_the_document() {
        let mut page = Page::new(10.0, 10.0);
        page.text((1.0, 2.0), 9.0, Anchor::End, "a < b & \"c\"");
        let svg = page.finish();
        assert!(svg.contains(">a &lt; b &amp; &quot;c&quot;</text>"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
}
