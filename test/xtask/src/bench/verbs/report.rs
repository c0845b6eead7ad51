//! What the bench leaves: a table to read, and JSON to compare.
#![forbid(unsafe_code)]

use super::contest::{Measured, Shown};
use super::sides::Side;
use crate::bench::report::{json, load, machine};
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
}

/// Prints the table.
pub(super) fn print(measured: &[Measured], facts: &Facts) {
    println!("\n{:35}{:>15}{:>23}{:>23}{:>15}", "", "ours", "perftest", "2.0 reference", "its dapltest");
    for one in measured {
        let mut line = format!("{:3} {:31}{:>15}", one.operation.id, one.operation.title, figure(one, Side::Ours));
        for (side, bound) in PROMISES {
            let ratio = one.ratio(side).map_or(String::new(), |ratio| {
                // As it is printed.
                let is_kept = (ratio * 1e3).round() / 1e3 <= bound;
                format!("{ratio:.3}{}", if is_kept { " " } else { "!" })
            });
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

fn figure(one: &Measured, side: Side) -> String {
    let Some(figures) = one.of(side) else { return "-".to_owned() };
    let usec = figures.usec();
    match one.operation.shown {
        Shown::Microseconds => format!("{usec:.2} us"),
        Shown::PerSecond => format!("{:.0} /s", 1e6 / usec),
        Shown::Bandwidth => format!("{:.1} MB/s", f64::from(one.operation.size) / usec),
    }
}

/// The JSON.
pub(super) fn text(measured: &[Measured], facts: &Facts) -> String {
    let clock = match facts.clock {
        Clock::Instructions => "a nanosecond per instruction",
        Clock::Time => "time",
    };
    let contests: Vec<String> = measured.iter().map(contest).collect();
    format!(
        "{{\n  \"machine\": {{{}, \"guest_kernel\": {}, \"reference\": {}, \"guest_clock\": {}}},\n  \"contests\": [\n{}\n  ]\n}}\n",
        machine(load(), &PACKAGES),
        json(&facts.kernel),
        json(&facts.reference),
        json(clock),
        contests.join(",\n")
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
            text += &format!(", \"over_{0}\": {ratio:.4}, \"promised_over_{0}\": {bound}", side.name());
        }
    }
    for (side, figures) in &one.figures {
        let processor = figures.processor.map_or(String::new(), |(server, client)| {
            format!(", \"server_processor\": {server:.3}, \"client_processor\": {client:.3}")
        });
        text += &format!(
            ",\n     {}: {{\"median\": {:.4}, \"samples\": {:?}{processor}}}",
            json(side.name()),
            figures.usec(),
            figures.samples
        );
    }
    text + "}"
}
