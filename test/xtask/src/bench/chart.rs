//! Charts as SVG: lines over sizes or counts with logarithmic axes, one panel below the other; or rows of dots
//! (`dots`).
//!
//! A file is self-contained: no script, font or external picture. It follows the reader's light or dark setting. Lines
//! differ by marker and by colour (the Okabe-Ito palette, for colour-blind readers) and are labelled at their ends. The
//! module does not depend on the measurements.
#![forbid(unsafe_code)]

mod dots;

use std::fmt::Write;

pub(super) use dots::{DotRow, Dots, Permitted};

/// A line of a chart, whose points are sorted by x. Points with a value of 0 or less are omitted, because they have no
/// logarithm.
pub(super) struct ChartLine {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HorizontalAxis {
    Bytes,
    /// Lost packets per thousand.
    Loss,
    /// Connections on one EVD.
    Connections,
    /// Connects in flight at the same time.
    AtOnce,
    /// Endpoints of one process.
    Endpoints,
    /// Sending processes.
    Senders,
}

impl HorizontalAxis {
    const ALL: [HorizontalAxis; 6] = [
        HorizontalAxis::Bytes,
        HorizontalAxis::Loss,
        HorizontalAxis::Connections,
        HorizontalAxis::AtOnce,
        HorizontalAxis::Endpoints,
        HorizontalAxis::Senders,
    ];

    /// Returns the quantity with this name in JSON files.
    pub(super) fn called(name: &str) -> Option<Self> {
        HorizontalAxis::ALL.into_iter().find(|across| across.name() == name)
    }

    /// Name in JSON files.
    pub(super) fn name(self) -> &'static str {
        match self {
            HorizontalAxis::Bytes => "bytes",
            HorizontalAxis::Loss => "loss",
            HorizontalAxis::Connections => "connections",
            HorizontalAxis::AtOnce => "at once",
            HorizontalAxis::Endpoints => "endpoints",
            HorizontalAxis::Senders => "senders",
        }
    }

    /// Formats a value with its unit, for messages.
    pub(super) fn at(self, value: u32) -> String {
        match self {
            HorizontalAxis::Loss => self.tick(f64::from(value)),
            _ => format!("{value} {}", self.name()),
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            HorizontalAxis::Loss => "lost 1/1000",
            _ => self.name(),
        }
    }

    fn title(self) -> &'static str {
        match self {
            HorizontalAxis::Bytes => "bytes in one message or write",
            HorizontalAxis::Loss => "packets lost",
            HorizontalAxis::Connections => "connections on one EVD",
            HorizontalAxis::AtOnce => "connections begun at once",
            HorizontalAxis::Endpoints => "endpoints of one process",
            HorizontalAxis::Senders => "processes that send to one",
        }
    }

    /// Factor between two ticks.
    fn step(self) -> f64 {
        match self {
            HorizontalAxis::Bytes => 16.0,
            HorizontalAxis::Senders => 2.0,
            _ => 10.0,
        }
    }

    /// The axis begins and ends at a power of this base.
    fn base(self) -> f64 {
        match self {
            HorizontalAxis::Bytes => 4.0,
            HorizontalAxis::Senders => 2.0,
            _ => 10.0,
        }
    }

    /// Formats a value of the horizontal axis as the label of its tick.
    pub(super) fn tick(self, value: f64) -> String {
        match self {
            HorizontalAxis::Bytes => bytes(value),
            HorizontalAxis::Loss => format!("{} %", number(value / 10.0)),
            _ => number(value),
        }
    }
}

/// A chart with two axes and its lines.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) across: HorizontalAxis,
    pub(super) up: String,
    pub(super) lines: Vec<ChartLine>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 430.0;
/// Edges of the plot within a panel. The names of the lines are to its right.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 80.0;
const BOTTOM: f64 = 370.0;
/// Height of the title line.
const HEADING: f64 = 40.0;
/// Minimum vertical distance between two names.
const LEADING: f64 = 16.0;
/// Width of an entry of the legend.
const ENTRY: f64 = 145.0;
const SHADES: usize = 4;

/// CSS of all charts.
pub(super) const STYLE: &str = "\
svg text { font: 13px sans-serif; fill: #222 } svg .title { font-size: 16px; font-weight: bold }
.ground { fill: #fff } .permitted { fill: #d8efe4 } .grid { stroke: #ddd } .axis { stroke: #222; fill: none }
.line { fill: none; stroke-width: 2 } .mark { stroke: none }
.s0 { stroke: #0072b2; fill: #0072b2 } .s1 { stroke: #d55e00; fill: #d55e00 }
.s2 { stroke: #009e73; fill: #009e73 } .s3 { stroke: #b3588c; fill: #b3588c }
.line.s0, .line.s1, .line.s2, .line.s3 { fill: none }
@media (prefers-color-scheme: dark) {
  svg text { fill: #eee } .ground { fill: #111 } .permitted { fill: #173528 } .grid { stroke: #3a3a3a } .axis { stroke: #eee }
  .s0 { stroke: #56b4e9; fill: #56b4e9 } .s1 { stroke: #e69f00; fill: #e69f00 }
  .s2 { stroke: #2fc99a; fill: #2fc99a } .s3 { stroke: #dd94bf; fill: #dd94bf }
}
";

/// A logarithmic scale: `low` is at `from`, `high` at `to`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Creates a scale from the power of `base` at or below all values to the power at or above all values.
    fn over(values: impl Iterator<Item = f64>, base: f64, from: f64, to: f64) -> Self {
        let (low, high) = values.fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, base) };
        let floor = log(low, base).floor();
        let ceiling = log(high, base).ceil().max(floor + 1.0);
        Scale { low: base.powf(floor), high: base.powf(ceiling), from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// Ticks at powers of `factor` from the low end.
    fn ticks(&self, factor: f64) -> impl Iterator<Item = f64> {
        let high = self.high * 1.000_001;
        std::iter::successors(Some(self.low), move |value| Some(value * factor)).take_while(move |value| *value <= high)
    }
}

/// Logarithm of a value, rounded if it is nearly a whole number.
fn log(value: f64, base: f64) -> f64 {
    let exact = value.ln() / base.ln();
    if (exact - exact.round()).abs() < 1e-9 { exact.round() } else { exact }
}

/// SVG of one panel for a page that includes `STYLE`. Title and description are for screen readers.
pub(super) fn inline(mut panel: Panel, id: &str) -> String {
    let names: Vec<&str> = panel.lines.iter().map(|line| &*line.name).collect();
    let shows = format!("{} against {}. Lines: {}.", panel.up, panel.across.title(), names.join(", "));
    let title = std::mem::take(&mut panel.title);
    framed(id, &title, &shows, HEIGHT, |text| draw(text, &panel))
}

/// SVG without space for a title, for a page with its own headings.
fn framed(id: &str, title: &str, shows: &str, height: f64, draw: impl FnOnce(&mut String)) -> String {
    let [id, title, shows] = [id, title, shows].map(escaped);
    let mut text = format!(
        "<svg class=\"chart\" id=\"{id}\" viewBox=\"0 {HEADING} {WIDTH} {}\" role=\"img\" \
         aria-labelledby=\"{id}-title {id}-desc\">\n<title id=\"{id}-title\">{title}</title>\n\
         <desc id=\"{id}-desc\">{shows}</desc>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        height - HEADING
    );
    draw(&mut text);
    text + "</svg>\n"
}

/// SVG file with all panels, one below the other, and a caption.
pub(super) fn svg(panels: &[Panel], caption: &str) -> String {
    let height = HEIGHT * panels.len() as f64 + 30.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        escaped(caption)
    );
    for (n, panel) in panels.iter().enumerate() {
        let _ = writeln!(text, "<g transform=\"translate(0 {})\">", HEIGHT * n as f64); // writing to a string succeeds
        draw(&mut text, panel);
        text += "</g>\n";
    }
    label(&mut text, (LEFT, height - 12.0), "start", "", caption);
    text + "</svg>\n"
}

fn draw(text: &mut String, panel: &Panel) {
    let shown: Vec<(&str, Vec<(f64, f64)>)> = panel.lines.iter().map(|line| (&*line.name, positive(line))).collect();
    let points = || shown.iter().flat_map(|(_, points)| points.iter());
    let across = Scale::over(points().map(|point| point.0), panel.across.base(), LEFT, RIGHT);
    let up = Scale::over(points().map(|point| point.1), 10.0, BOTTOM, TOP);
    axes(text, panel, across, up);
    let mut ends = Vec::new();
    for (n, (name, points)) in shown.iter().enumerate() {
        let placed: Vec<(f64, f64)> = points.iter().map(|(x, y)| (across.place(*x), up.place(*y))).collect();
        let (shade, entry) = (n % SHADES, LEFT + ENTRY * n as f64);
        let path: Vec<String> = placed.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(text, "<polyline class=\"line s{shade}\" points=\"{}\"/>", path.join(" ")); // writing to a string succeeds
        placed.iter().for_each(|at| mark(text, shade, *at));
        mark(text, shade, (entry + 5.0, TOP - 22.0));
        label(text, (entry + 15.0, TOP - 18.0), "start", "", name);
        ends.extend(placed.last().map(|end| (end.1, *name)));
    }
    ends.sort_by(|one, other| one.0.total_cmp(&other.0));
    let heights = apart(&ends.iter().map(|end| end.0).collect::<Vec<_>>());
    let right = points().map(|point| across.place(point.0)).fold(LEFT, f64::max);
    for ((_, name), y) in ends.iter().zip(heights) {
        label(text, (right + 10.0, y + 4.0), "start", "", name);
    }
}

fn positive(line: &ChartLine) -> Vec<(f64, f64)> {
    let can_be_shown = |value: f64| value.is_finite() && value > 0.0;
    line.points.iter().copied().filter(|(x, y)| can_be_shown(*x) && can_be_shown(*y)).collect()
}

fn axes(text: &mut String, panel: &Panel, across: Scale, up: Scale) {
    for value in across.ticks(panel.across.step()) {
        let x = across.place(value);
        rule(text, (x, TOP), (x, BOTTOM));
        label(text, (x, BOTTOM + 20.0), "middle", "", &panel.across.tick(value));
    }
    for value in up.ticks(10.0) {
        let y = up.place(value);
        rule(text, (LEFT, y), (RIGHT, y));
        label(text, (LEFT - 8.0, y + 4.0), "end", "", &number(value));
    }
    // Writing to a string succeeds.
    let _ = writeln!(text, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>");
    if !panel.title.is_empty() {
        label(text, (LEFT, 26.0), "start", " class=\"title\"", &panel.title);
    }
    label(text, ((LEFT + RIGHT) / 2.0, BOTTOM + 42.0), "middle", "", panel.across.title());
    let middle = (TOP + BOTTOM) / 2.0;
    label(text, (20.0, middle), "middle", &format!(" transform=\"rotate(-90 20 {middle})\""), &panel.up);
}

fn rule(text: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ((x, y), (right, bottom)) = (from, to);
    // Writing to a string succeeds.
    let _ = writeln!(text, "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{bottom:.1}\"/>");
}

fn label(text: &mut String, (x, y): (f64, f64), anchor: &str, attributes: &str, words: &str) {
    // Writing to a string succeeds.
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{attributes}>{}</text>",
        escaped(words)
    );
}

/// Draws a marker: a disc, a square, a triangle or a diamond.
fn mark(text: &mut String, shade: usize, (x, y): (f64, f64)) {
    let shape = match shade {
        0 => format!("circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\""),
        1 => format!("rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"", x - 3.5, y - 3.5),
        2 => format!("path d=\"M{x:.1} {:.1}l5 8h-10z\"", y - 5.0),
        _ => format!("path d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\"", y - 5.0),
    };
    let _ = writeln!(text, "<{shape} class=\"mark s{shade}\"/>"); // writing to a string succeeds
}

/// Returns the vertical positions of labels, moved down where texts would overlap. `heights` are in rising order.
fn apart(heights: &[f64]) -> Vec<f64> {
    let mut least = f64::NEG_INFINITY;
    let place = |height: &f64| {
        let placed = height.max(least);
        least = placed + LEADING;
        placed
    };
    heights.iter().map(place).collect()
}

fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{} {}", number(value), units[unit])
}

fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes text for HTML and SVG.
pub(super) fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
        escaped
    })
}

#[cfg(test)]
mod tests;
