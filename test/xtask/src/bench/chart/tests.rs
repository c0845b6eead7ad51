//! Tests of charts: scales, positions of points and names, sizes with units, escaped text, and well-formed XML.

use super::*;

fn panel(lines: Vec<ChartLine>) -> Panel {
    Panel { title: "a & b".to_owned(), across: HorizontalAxis::Bytes, up: "time <us>".to_owned(), lines }
}

fn line(name: &str, points: &[(f64, f64)]) -> ChartLine {
    ChartLine { name: name.to_owned(), points: points.to_vec() }
}

/// Values of an attribute, in all elements whose text starts with `element`.
fn attributes<'a>(svg: &'a str, element: &str, name: &str) -> Vec<&'a str> {
    let tags = svg.split('<').filter(|tag| tag.starts_with(element));
    let value = |tag: &'a str| tag.split_once(&format!(" {name}=\""))?.1.split('"').next();
    tags.filter_map(value).collect()
}

#[test]
fn chart_scale_places_values_logarithmically_between_full_powers() {
    let scale = Scale::over([1.0, 30.0, 800.0].into_iter(), 10.0, 0.0, 300.0);
    assert_eq!((scale.low, scale.high), (1.0, 1000.0));
    for (value, at) in [(1.0, 0.0), (10.0, 100.0), (100.0, 200.0), (1000.0, 300.0)] {
        assert!((scale.place(value) - at).abs() < 1e-9, "{value}");
    }
    assert_eq!(scale.ticks(10.0).map(f64::round).collect::<Vec<_>>(), [1.0, 10.0, 100.0, 1000.0]);
    // If the lowest and the highest value are powers of the base, they are the ends of the scale. A single value, or
    // none, also has a scale.
    let scale = Scale::over([64.0, 4096.0].into_iter(), 4.0, 0.0, 1.0);
    assert_eq!((scale.low, scale.high), (64.0, 4096.0));
    assert_eq!(Scale::over([1.0].into_iter(), 10.0, 0.0, 1.0).high, 10.0);
    assert_eq!(Scale::over([].into_iter(), 10.0, 0.0, 1.0).low, 1.0);
}

#[test]
fn a_line_passes_through_its_points() {
    let svg = svg(&[panel(vec![line("ours", &[(1.0, 0.1), (4.0, 1.0), (16.0, 10.0)])])], "caption");
    let middle = ((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0);
    let expected = format!("{LEFT:.1},{BOTTOM:.1} {:.1},{:.1} {RIGHT:.1},{TOP:.1}", middle.0, middle.1);
    assert_eq!(attributes(&svg, "polyline", "points"), [expected]);
    // One marker per point and one in the legend.
    assert_eq!(attributes(&svg, "circle", "r").len(), 4);
    assert_eq!(svg.matches(">ours<").count(), 2, "a label is missing in the legend or at the line");
}

#[test]
fn chart_leaves_out_values_without_a_logarithm() {
    let odd = [(1.0, 0.0), (4.0, f64::NAN), (16.0, -1.0), (0.0, 1.0), (4.0, 2.0), (16.0, f64::INFINITY)];
    let svg = svg(&[panel(vec![line("odd", &odd), line("none", &[])])], "caption");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    assert_eq!(attributes(&svg, "polyline", "points").iter().filter(|points| points.is_empty()).count(), 1);
}

#[test]
fn names_at_the_line_ends_of_a_chart_do_not_overlap() {
    assert_eq!(apart(&[10.0, 11.0, 50.0]), [10.0, 10.0 + LEADING, 50.0]);
    assert_eq!(apart(&[10.0, 12.0, 13.0]), [10.0, 10.0 + LEADING, 10.0 + 2.0 * LEADING]);
}

#[test]
fn sizes_are_written_in_their_unit() {
    let written = [1.0, 256.0, 1024.0, 65_536.0, 16_777_216.0].map(bytes);
    assert_eq!(written, ["1 B", "256 B", "1 KiB", "64 KiB", "16 MiB"]);
    assert_eq!([number(0.01), number(100.0)], ["0.01", "100"]);
}

#[test]
fn chart_text_is_escaped_and_svg_is_well_formed() {
    let name = "<i> & \"it's\" \u{1}";
    let svg = svg(&[panel(vec![line(name, &[(1.0, 1.0)])]), panel(Vec::new())], name);
    assert!(svg.contains("&lt;i&gt; &amp; &quot;it&#39;s&quot;  <") && !svg.contains("<i>"), "{svg}");
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, rest) = tag.split_once('>').expect("a tag has a closing bracket");
        assert!(!rest.contains('>') || open.last() == Some(&"style"), "{rest}");
        let entities = rest.split('&').skip(1).all(|rest| rest.split_once(';').is_some_and(|(name, _)| name.len() < 5));
        assert!(entities, "{rest}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    // The file has no external resource and no script; the only URL is the SVG namespace.
    assert_eq!(svg.matches("http").count(), 1, "the file has another URL than the SVG namespace");
    assert!(!svg.contains("script") && !svg.contains("href"));
}
