//! Output of the verbs bench: a printed table, and JSON.
#![forbid(unsafe_code)]

use serde_json::{Value, json};

use super::contest::{FigureUnit, Measured};
use super::sides::Side;
use crate::bench::curve::Family;
use crate::bench::found::family_json;
use crate::bench::report::{machine, pretty};
use crate::bench::side::CommandLines;
use crate::guest::Clock;

/// Targets: maximum ratio of this project's time to the time of perftest and of the reference.
const TARGETS: [(Side, f64); 2] = [(Side::Perftest, 1.03), (Side::Reference, 1.0)];
/// Packages whose versions are reported, besides the reference.
const PACKAGES: [&str; 4] = ["perftest", "libibverbs1", "librdmacm1", "qemu-system-x86"];

/// Facts about the measurement.
pub(super) struct Facts {
    /// Kernel version of the guest.
    pub(super) kernel: String,
    /// Version of the reference.
    pub(super) reference: String,
    pub(super) clock: Clock,
    pub(super) is_quick: bool,
    /// Load of the host before the run.
    pub(super) load: f64,
}

/// Name of the clock that counts instructions, in the JSON file. Figures with this clock are reproducible.
pub(in crate::bench) const INSTRUCTIONS: &str = "a nanosecond per instruction";

/// Prints the tables of times and of processor times, and explains them.
pub(super) fn print(measured: &[Measured], facts: &Facts) {
    println!("\n{:35}{:>15}{:>23}{:>23}{:>15}", "", "ours", "perftest", "2.0 reference", "2.0 dapltest");
    for one in measured {
        let mut line = format!("{:3} {:31}{:>15}", one.operation.id, one.operation.title, figure(one, Side::Ours));
        for (side, bound) in TARGETS {
            let ratio = one
                .ratio(side)
                .map_or(String::new(), |ratio| format!("{ratio:.3}{}", if is_met(ratio, bound) { " " } else { "!" }));
            line += &format!("{:>16}{ratio:>7}", figure(one, side));
        }
        println!("{line}{:>15}", figure(one, Side::Dapltest));
    }
    println!("\nprocessor time of one operation, server + client, us");
    for one in measured {
        let parts = one.figures.iter().filter_map(|(side, figures)| {
            let (server, client) = figures.processor?;
            Some(format!("  {} {server:.2} + {client:.2}", side.name()))
        });
        println!("{:3} {:31}{}", one.operation.id, one.operation.title, parts.collect::<String>());
    }
    println!(
        "\nratios: our time over the peer's; targets: perftest at most 1.03, reference at most 1.00; ! marks a missed target"
    );
    match facts.clock {
        Clock::Instructions => println!(
            "measured in an emulated guest that executes one instruction per nanosecond (1 us is 1000 instructions,\n\
             kernel included): the figures show how much code runs, not how fast hardware is"
        ),
        Clock::Time => {
            println!(
                "measured with real time in an emulated guest, which competes with other programs for the processors:\n\
                 do not compare these figures"
            )
        }
    }
}

/// Whether the ratio meets the bound, compared with the three decimals that are printed.
fn is_met(ratio: f64, bound: f64) -> bool {
    (ratio * 1e3).round() / 1e3 <= bound
}

fn figure(one: &Measured, side: Side) -> String {
    let Some(figures) = one.of(side) else { return "-".to_owned() };
    let shown = one.operation.shown;
    let digits = match shown {
        FigureUnit::Microseconds => 2,
        FigureUnit::PerSecond => 0,
        FigureUnit::Bandwidth => 1,
    };
    format!("{:.digits$} {}", shown.figure(one.operation.size, figures.usec()), shown.unit())
}

/// Formats the results as JSON.
pub(in crate::bench) fn text(measured: &[Measured], curves: &[Family], failures: &[String], facts: &Facts) -> String {
    let clock = match facts.clock {
        Clock::Instructions => INSTRUCTIONS,
        Clock::Time => "time",
    };
    let mut machine = machine(facts.load, &PACKAGES);
    for (name, value) in [("guest_kernel", &*facts.kernel), ("reference", &facts.reference), ("guest_clock", clock)] {
        machine.insert(name.to_owned(), value.into());
    }
    pretty(&json!({
        "machine": machine,
        "quick": facts.is_quick,
        "contests": measured.iter().map(contest).collect::<Value>(),
        "curves": curves.iter().flat_map(family_json).collect::<Value>(),
        "not_measured": failures,
    }))
}

fn contest(one: &Measured) -> Value {
    let operation = one.operation;
    let mut contest = json!({
        "id": operation.id,
        "title": operation.title,
        "size": operation.size,
        "depth": operation.depth,
        "count": operation.count,
        "unit": "us of one operation",
    });
    for (side, bound) in TARGETS {
        if let Some(ratio) = one.ratio(side) {
            let name = side.name();
            contest[format!("over_{name}")] = ratio.into();
            contest[format!("promised_over_{name}")] = bound.into();
            contest[format!("kept_over_{name}")] = is_met(ratio, bound).into();
        }
    }
    for (side, figures) in &one.figures {
        let CommandLines { server, client } = &figures.ends;
        let (median, samples) = (figures.usec(), &figures.samples);
        let mut measure = json!({"server": server, "client": client, "median": median, "samples": samples});
        if let Some((server, client)) = figures.processor {
            (measure["server_processor"], measure["client_processor"]) = (server.into(), client.into());
        }
        contest[side.name()] = measure;
    }
    contest
}
