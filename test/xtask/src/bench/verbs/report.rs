//! What the bench leaves: a table to read, and JSON to compare.
#![forbid(unsafe_code)]

use super::contest::{Measured, Shown};
use super::sides::Side;
use crate::bench::curve::Family;
use crate::bench::found::{ends_json, family_json};
use crate::bench::report::{json, machine};
use crate::guest::Clock;

/// The promises: our time over that of perftest and of the reference, for the same operation.
const PROMISES: [(Side, f64); 2] = [(Side::Perftest, 1.03), (Side::Reference, 1.0)];
/// Of this machine's packages, besides the reference's.
const PACKAGES: [&str; 4] = ["perftest", "libibverbs1", "librdmacm1", "qemu-system-x86"];

/// What else the figures come from.
pub(super) struct Facts {
    /// The guest's.
    pub(super) kernel: String,
    /// Its version.
    pub(super) reference: String,
    pub(super) clock: Clock,
    pub(super) is_quick: bool,
    /// Of this machine, before.
    pub(super) load: f64,
}

/// The clock of a guest whose figures are the same on a busy machine.
pub(in crate::bench) const INSTRUCTIONS: &str = "a nanosecond per instruction";

/// Prints the table.
pub(super) fn print(measured: &[Measured], facts: &Facts) {
    println!("\n{:35}{:>15}{:>23}{:>23}{:>15}", "", "ours", "perftest", "2.0 reference", "its dapltest");
    for one in measured {
        let mut line = format!("{:3} {:31}{:>15}", one.operation.id, one.operation.title, figure(one, Side::Ours));
        for (side, bound) in PROMISES {
            let ratio = one
                .ratio(side)
                .map_or(String::new(), |ratio| format!("{ratio:.3}{}", if is_kept(ratio, bound) { " " } else { "!" }));
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
        "\nratios: our time over theirs; promised: perftest at most 1.03, reference at most 1.00; ! where it is more"
    );
    match facts.clock {
        Clock::Instructions => println!(
            "an emulated guest that executes one instruction per nanosecond, kernel included: how much code runs, not how\n\
             fast hardware is; 1 us is 1000 instructions"
        ),
        Clock::Time => {
            println!("an emulated guest on a machine that does other things as well: these figures say little")
        }
    }
}

/// As it is printed.
fn is_kept(ratio: f64, bound: f64) -> bool {
    (ratio * 1e3).round() / 1e3 <= bound
}

fn figure(one: &Measured, side: Side) -> String {
    let Some(figures) = one.of(side) else { return "-".to_owned() };
    let shown = one.operation.shown;
    let digits = match shown {
        Shown::Microseconds => 2,
        Shown::PerSecond => 0,
        Shown::Bandwidth => 1,
    };
    format!("{:.digits$} {}", shown.figure(one.operation.size, figures.usec()), shown.unit())
}

/// The JSON.
pub(in crate::bench) fn text(measured: &[Measured], curves: &[Family], failures: &[String], facts: &Facts) -> String {
    let clock = match facts.clock {
        Clock::Instructions => INSTRUCTIONS,
        Clock::Time => "time",
    };
    let contests: Vec<String> = measured.iter().map(contest).collect();
    format!(
        "{{\n  \"machine\": {{{}, \"guest_kernel\": {}, \"reference\": {}, \"guest_clock\": {}}},\n  \
         \"quick\": {},\n  \
         \"contests\": [\n{}\n  ],\n  \"curves\": [\n{}\n  ],\n  \"not_measured\": [{}]\n}}\n",
        machine(facts.load, &PACKAGES),
        json(&facts.kernel),
        json(&facts.reference),
        json(clock),
        facts.is_quick,
        contests.join(",\n"),
        curves.iter().flat_map(family_json).collect::<Vec<_>>().join(",\n"),
        failures.iter().map(|reason| json(reason)).collect::<Vec<_>>().join(", ")
    )
}

fn contest(one: &Measured) -> String {
    let operation = one.operation;
    let mut text = format!(
        "    {{\"id\": {}, \"title\": {}, \"size\": {}, \"depth\": {}, \"count\": {}, \"unit\": \"us of one operation\"",
        json(operation.id),
        json(operation.title),
        operation.size,
        operation.depth,
        operation.count
    );
    for (side, bound) in PROMISES {
        if let Some(ratio) = one.ratio(side) {
            text += &format!(
                ", \"over_{0}\": {ratio:.4}, \"promised_over_{0}\": {bound}, \"kept_over_{0}\": {1}",
                side.name(),
                is_kept(ratio, bound)
            );
        }
    }
    for (side, figures) in &one.figures {
        let processor = figures.processor.map_or(String::new(), |(server, client)| {
            format!(", \"server_processor\": {server:.3}, \"client_processor\": {client:.3}")
        });
        text += &format!(
            ",\n     {}: {{{}, \"median\": {:.4}, \"samples\": {:?}{processor}}}",
            json(side.name()),
            ends_json(&figures.ends),
            figures.usec(),
            figures.samples
        );
    }
    text + "}"
}
