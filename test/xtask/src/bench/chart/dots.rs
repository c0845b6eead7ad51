//! A chart with rows of dots on one logarithmic axis: ratios of unrelated figures. A vertical line marks 1, if the
//! range of the axis has smaller and larger values.
//!
//! The page must include the charts' style.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::{BOTTOM, ENTRY, HEIGHT, SHADES, Scale, TOP, WIDTH, framed, label, log, mark, number, rule};

/// A chart of rows, each with a dot per name. All rows have the same horizontal axis.
pub(in crate::bench) struct Dots {
    pub(in crate::bench) title: String,
    /// Label of the axis.
    pub(in crate::bench) across: String,
    /// The axis begins and ends at powers of this base.
    pub(in crate::bench) base: f64,
    /// Names of the dots of a row, for the legend.
    pub(in crate::bench) names: Vec<String>,
    pub(in crate::bench) rows: Vec<DotRow>,
}

pub(in crate::bench) struct DotRow {
    pub(in crate::bench) label: String,
    /// One value per name; `None` draws no dot.
    pub(in crate::bench) dots: Vec<Option<f64>>,
    /// Range of values to shade.
    pub(in crate::bench) permitted: Option<Permitted>,
}

/// The range of values that meet a target: below or above the bound.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) enum Permitted {
    UpTo(f64),
    From(f64),
}

/// Left edge of the plot; row labels are to the left of it.
const LEFT: f64 = 360.0;
const RIGHT: f64 = 830.0;
const ROW: f64 = 26.0;
/// Maximum number of readable ticks.
const TICKS: usize = 10;

impl Dots {
    /// SVG of the chart, for a page that includes `STYLE`.
    pub(in crate::bench) fn inline(&self, id: &str) -> String {
        let about: Vec<&str> = self.rows.iter().map(|row| &*row.label).collect();
        let shows = format!("{}, by {}. Rows: {}.", self.across, self.names.join(", "), about.join("; "));
        let height = self.bottom() + (HEIGHT - BOTTOM);
        framed(id, &self.title, &shows, height, |text| self.draw(text))
    }

    fn bottom(&self) -> f64 {
        TOP + ROW * self.rows.len().max(1) as f64
    }

    fn draw(&self, text: &mut String) {
        let bottom = self.bottom();
        let shown = |value: &f64| value.is_finite() && *value > 0.0;
        let all = self.rows.iter().flat_map(|row| row.dots.iter().flatten().copied().filter(shown));
        let scale = Scale::over(all, self.base, LEFT, RIGHT);
        for (n, row) in self.rows.iter().enumerate() {
            let bounds = match row.permitted {
                Some(Permitted::UpTo(value)) if shown(&value) => (LEFT, scale.place(value)),
                Some(Permitted::From(value)) if shown(&value) => (scale.place(value), RIGHT),
                _ => continue,
            };
            let (x, y, width) = (bounds.0, TOP + ROW * n as f64 + 3.0, bounds.1 - bounds.0);
            let height = ROW - 6.0;
            // Writing to a string succeeds.
            let _ = writeln!(
                text,
                "<rect class=\"permitted\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
            );
        }
        // If not all powers fit, every second power is labelled, including 1.
        let every = if scale.ticks(self.base).count() > TICKS { 2 } else { 1 };
        let power = |value: f64| log(value, self.base).round() as i32;
        for value in scale.ticks(self.base).filter(|value| power(*value) % every == 0) {
            let x = scale.place(value);
            rule(text, (x, TOP), (x, bottom));
            label(text, (x, bottom + 20.0), "middle", "", &number(value));
        }
        // Writing to a string succeeds.
        let _ = writeln!(text, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{RIGHT}\"/>");
        if scale.low < 1.0 && scale.high > 1.0 {
            let _ = writeln!(text, "<path class=\"axis\" d=\"M{:.1} {TOP}V{bottom}\"/>", scale.place(1.0)); // writing to a string succeeds
        }
        label(text, ((LEFT + RIGHT) / 2.0, bottom + 42.0), "middle", "", &self.across);
        for (n, name) in self.names.iter().enumerate() {
            let x = LEFT + ENTRY * n as f64;
            mark(text, n % SHADES, (x + 5.0, TOP - 22.0));
            label(text, (x + 15.0, TOP - 18.0), "start", "", name);
        }
        for (n, DotRow { label: about, dots, .. }) in self.rows.iter().enumerate() {
            let y = TOP + ROW * (n as f64 + 0.5);
            rule(text, (LEFT, y), (RIGHT.min(WIDTH), y));
            label(text, (LEFT - 10.0, y + 4.0), "end", "", about);
            for (shade, value) in dots.iter().enumerate() {
                if let Some(value) = value.filter(shown) {
                    mark(text, shade % SHADES, (scale.place(value), y));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(label: &str, dots: &[Option<f64>], permitted: Option<Permitted>) -> DotRow {
        DotRow { label: label.to_owned(), dots: dots.to_vec(), permitted }
    }

    fn drawn(rows: Vec<DotRow>) -> String {
        let names = vec!["one".to_owned(), "two".to_owned()];
        Dots { title: "t".to_owned(), across: "x".to_owned(), base: 2.0, names, rows }.inline("id")
    }

    #[test]
    fn dots_are_placed_by_the_scale() {
        let svg = drawn(vec![row("a <b>", &[Some(1.0), None], None), row("c", &[Some(4.0), Some(f64::NAN)], None)]);
        let disc = |x: f64, y: f64| format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\"");
        assert!(svg.contains(&disc(LEFT, TOP + ROW / 2.0)) && svg.contains(&disc(RIGHT, TOP + ROW * 1.5)), "{svg}");
        assert_eq!(
            (svg.matches("<circle").count(), svg.matches("<rect").count()),
            (3, 2),
            "circles of the points, rectangles of the legend and the background"
        );
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("NaN"));
        let wide = drawn(vec![row("wide", &[Some(0.5), Some(1_000.0)], None)]);
        for (tick, times) in [(">1<", 1), (">4<", 1), (">1024<", 1), (">0.5<", 0), (">2<", 0)] {
            assert_eq!(wide.matches(tick).count(), times, "{tick}");
        }
    }

    #[test]
    fn values_that_meet_the_bound_are_shaded() {
        let svg = drawn(vec![
            row("less", &[Some(1.0), Some(2.0)], Some(Permitted::UpTo(2.0))),
            row("more", &[Some(4.0), Some(2.0)], Some(Permitted::From(2.0))),
            row("no number", &[Some(4.0)], Some(Permitted::From(f64::NAN))),
        ]);
        let half = (RIGHT - LEFT) / 2.0;
        let band = |x: f64, y: f64| format!("<rect class=\"permitted\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{half:.1}\"");
        assert!(svg.contains(&band(LEFT, TOP + 3.0)) && svg.contains(&band(LEFT + half, TOP + ROW + 3.0)), "{svg}");
        assert_eq!(svg.matches("permitted").count(), 2);
    }
}
