//! Opens the page in Chromium and checks that each chart is visible: lines have a length, markers have their colours,
//! and names are inside the frame.
//!
//! The test adds a script that reports positions, and compares pixels of a screenshot.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::chromium::{BrowserWindow, Picture, dump, is_there, picture};
use super::{POLICY, Scratch, page, sections};

/// Script that adds an element with the positions and colours of the parts of all charts, as JSON.
const PROBE: &str = "<script>addEventListener('load', () => {
  const list = (element, name) => [...element.querySelectorAll(name)];
  const rectangle = box => [box.x + scrollX, box.y + scrollY, box.width, box.height];
  const charts = list(document, 'svg.chart').map(svg => ({
    id: svg.id,
    box: rectangle(svg.getBoundingClientRect()),
    ground: getComputedStyle(svg.querySelector('.ground')).fill,
    lines: list(svg, '.line').map(line => ({
      points: line.points.length, length: line.getTotalLength(), colour: getComputedStyle(line).stroke,
      ways: [...Array(40).keys()].map(n => {
        const at = line.getPointAtLength(line.getTotalLength() * n / 40).matrixTransform(line.getScreenCTM());
        return [at.x + scrollX - 2, at.y + scrollY - 2, 5, 5];
      }) })),
    marks: list(svg, '.mark').map(mark => ({
      box: rectangle(mark.getBoundingClientRect()), colour: getComputedStyle(mark).fill })),
    names: list(svg, 'text').map(name => rectangle(name.getBoundingClientRect())),
  }));
  const layout = document.createElement('pre');
  layout.id = 'layout';
  const root = document.documentElement;
  layout.textContent = JSON.stringify({ charts, inside: root.clientWidth, wide: root.scrollWidth, high: root.scrollHeight });
  document.body.append(layout);
});</script>";

/// Writes a page with the script, of one provider or of all.
fn probed(scratch: &Scratch, provider: Option<&str>) -> PathBuf {
    let mut sections = sections();
    sections.retain(|section| provider.is_none_or(|provider| section.provider == provider));
    let page = page(&sections);
    // The page's policy forbids scripts, so the test removes it.
    let probed = page.replace(POLICY, "").replace("</head>", &format!("{PROBE}</head>"));
    let path = scratch.0.join(format!("{}.html", provider.unwrap_or("all")));
    fs::write(&path, probed).unwrap();
    path
}

/// Parses the output of the script.
fn layout_of(dom: &str) -> Value {
    let text = dom.split_once("<pre id=\"layout\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (text, _) = text.unwrap_or_else(|| panic!("the script has not run:\n{dom}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn items<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("the page has no {name}: {value}"))
}

fn rectangle(value: &Value) -> [f64; 4] {
    let sides: Vec<f64> = value.as_array().unwrap().iter().map(|side| side.as_f64().unwrap()).collect();
    sides.try_into().unwrap()
}

/// Parses a colour such as `rgb(0, 114, 178)`.
fn colour(value: &Value) -> [u8; 3] {
    let text = value.as_str().unwrap();
    let parts = text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')'));
    let parts = parts.unwrap_or_else(|| panic!("{text} is not visible")).split(", ").map(|part| part.parse().unwrap());
    parts.collect::<Vec<u8>>().try_into().unwrap()
}

fn is_within(inner: [f64; 4], outer: [f64; 4]) -> bool {
    // Tolerate half a pixel of rounding.
    inner[0] >= outer[0] - 0.5
        && inner[1] >= outer[1] - 0.5
        && inner[0] + inner[2] <= outer[0] + outer[2] + 0.5
        && inner[1] + inner[3] <= outer[1] + outer[3] + 0.5
}

fn do_meet(one: [f64; 4], other: [f64; 4]) -> bool {
    one[0] < other[0] + other[2]
        && other[0] < one[0] + one[2]
        && one[1] < other[1] + other[3]
        && other[1] < one[1] + one[3]
}

/// Checks the browser's layout: markers and names are inside the chart's frame, and lines have a length and a colour
/// other than the background's.
fn check_layout(chart: &Value) {
    let (id, frame) = (chart["id"].as_str().unwrap(), rectangle(&chart["box"]));
    assert!(frame[2] > 300.0 && frame[3] > 100.0, "{id}: {frame:?}");
    for line in items(chart, "lines") {
        assert_ne!(colour(&line["colour"]), colour(&chart["ground"]), "{id}");
        assert!(line["length"].as_f64().unwrap() > 20.0 || line["points"] == 1, "{id}: {line}");
    }
    for mark in items(chart, "marks") {
        let at = rectangle(&mark["box"]);
        assert!(at[2] > 3.0 && at[3] > 3.0 && is_within(at, frame), "{id}: the line {at:?} is outside of {frame:?}");
    }
    for name in items(chart, "names").iter().map(rectangle) {
        assert!(name[2] > 0.0 && is_within(name, frame), "{id}: the name at {name:?} is outside of {frame:?}");
    }
}

/// Checks the screenshot: markers and lines have pixels of their colours, and most of the chart is background.
fn check_pixels(picture: &Picture, chart: &Value) {
    let id = chart["id"].as_str().unwrap();
    let (ground, all) = picture.count(rectangle(&chart["box"]), colour(&chart["ground"]));
    assert!(ground > all / 2 && ground < all - all / 100, "{id}: {ground} of {all} pixels have the background colour");
    let marks: Vec<[f64; 4]> = items(chart, "marks").iter().map(|mark| rectangle(&mark["box"])).collect();
    for line in items(chart, "lines").iter().filter(|line| line["points"] != 1) {
        // Only parts of the line outside of markers count, because a marker may have the same colour.
        let is_bare = |way: &[f64; 4]| !marks.iter().any(|mark| do_meet(*mark, *way));
        let ways: Vec<[f64; 4]> = items(line, "ways").iter().map(rectangle).filter(is_bare).collect();
        let seen = ways.iter().filter(|way| picture.count(**way, colour(&line["colour"])).0 > 0).count();
        let (colour, all) = (&line["colour"], ways.len());
        assert!(all > 5 && seen * 2 > all, "{id}: only {seen} of {all} points of the line have the colour {colour}");
    }
    for mark in items(chart, "marks") {
        let (seen, _) = picture.count(rectangle(&mark["box"]), colour(&mark["colour"]));
        // A line drawn later may cover part of the marker.
        assert!(seen > 3, "{id}: only {seen} pixels of {mark}");
    }
}

#[test]
fn all_charts_are_drawn_in_light_and_in_dark() {
    if !is_there() {
        return;
    }
    let scratch = Scratch::new("drawn");
    for (provider, charts, is_dark) in [("sm", 10, false), ("usnic", 10, true), ("verbs", 5, false), ("sm", 10, true)] {
        let path = probed(&scratch, Some(provider));
        let mut window = BrowserWindow { width: 1_000, height: 1_000, is_dark };
        let layout = layout_of(&dump(&path, window));
        assert_eq!(items(&layout, "charts").len(), charts, "{provider}");
        items(&layout, "charts").iter().for_each(check_layout);
        window.height = layout["high"].as_u64().unwrap() as u32;
        let picture = picture(&path, window);
        for chart in items(&layout, "charts") {
            let [dark, ..] = colour(&chart["ground"]);
            assert_eq!(dark < 64, is_dark, "{provider}");
            check_pixels(&picture, chart);
        }
    }
}

#[test]
fn missing_drawings_of_a_chart_are_detected() {
    if !is_there() {
        return;
    }
    let scratch = Scratch::new("noticed");
    let path = probed(&scratch, Some("verbs"));
    let window = BrowserWindow { width: 1_000, height: 1_000, is_dark: false };
    let layout = layout_of(&dump(&path, window));
    let chart = &items(&layout, "charts")[0];
    let hidden =
        fs::read_to_string(&path).unwrap().replace("</head>", "<style>.mark { visibility: hidden }</style></head>");
    fs::write(&path, hidden).unwrap();
    let picture = picture(&path, window);
    let mark = &items(chart, "marks")[0];
    assert_eq!(picture.count(rectangle(&mark["box"]), colour(&mark["colour"])).0, 0);
}

#[test]
fn a_narrow_window_needs_no_horizontal_scrolling() {
    if !is_there() {
        return;
    }
    let scratch = Scratch::new("phone");
    let path = probed(&scratch, None);
    let layout = layout_of(&dump(&path, BrowserWindow { width: 390, height: 800, is_dark: false }));
    assert_eq!(items(&layout, "charts").len(), 25);
    let [inside, wide] = ["inside", "wide"].map(|name| layout[name].as_u64().unwrap());
    assert!(inside <= 500, "the window is {inside} pixels wide, at most 500 wanted");
    assert!(wide <= inside, "the page is {wide} pixels wide in a window of {inside}");
    // A chart is readable: if it is too wide for the window, it can be scrolled.
    items(&layout, "charts").iter().for_each(|chart| assert!(rectangle(&chart["box"])[2] >= 600.0, "{}", chart["id"]));
}
