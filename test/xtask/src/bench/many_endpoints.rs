//! Cost of idle endpoints for a thread that polls their EVD: `test/c/many_endpoints.c` with growing numbers of
//! endpoints.
//!
//! No other program is measured: figures are compared with the figures for two endpoints.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_test::run::{Run, SM0, Sandbox};
use dapl_test::stage::{Profile, workspace};
use serde_json::{Value, json};

use super::{ROUNDS, median, report};
use crate::json::field;
use crate::{Result, tree};

/// Numbers of endpoints on the EVD.
const COUNTS: [u32; 5] = [2, 10, 100, 1_000, 10_000];
/// Fields of the program's output, and their labels.
const FIGURES: [(&str, &str); 4] = [
    ("pingpong_usec", "ping-pong, one way, us"),
    ("empty_usec", "dequeue from the empty EVD, us"),
    ("message_usec", "one message each, us"),
    ("connect_usec", "connect, us"),
];
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the program for all counts in alternation. Prints the medians, and writes all samples to `evd.json`.
pub(crate) fn evd() -> Result {
    let tree = tree::build(Profile::Dist)?;
    let load = report::load();
    let program = tree.stage.root.join("bin/many_endpoints");
    tree.stage.compile(&program, &[&workspace().join("test/c/many_endpoints.c")], &["-O2"]);
    let mut samples = vec![vec![Vec::new(); FIGURES.len()]; COUNTS.len()];
    for _ in 0..ROUNDS {
        for (size, samples) in COUNTS.iter().zip(&mut samples) {
            let sandbox = Sandbox::new(&tree.stage, Some(SM0));
            // The program is not pinned: its polling thread and the provider's thread need a processor each.
            let finished = Run::start(sandbox.command(&program, &[&size.to_string()])).finish(LIMIT);
            if !finished.status.success() {
                return Err(format!("many_endpoints {size}: {}\n{}", finished.status, finished.stderr));
            }
            for ((name, _), samples) in FIGURES.iter().zip(samples) {
                samples.push(
                    field(&finished.stdout, name).ok_or_else(|| format!("many_endpoints has printed no {name}"))?,
                );
            }
        }
    }
    print(&samples, load);
    report::save(&tree.stage, "evd.json", &json(&samples, load))
}

fn print(samples: &[Vec<Vec<f64>>], load: f64) {
    print!("\n{:28}", "endpoints on one EVD");
    COUNTS.iter().for_each(|size| print!("{size:>9}"));
    println!("{:>22}", "largest over smallest");
    for (n, (_, title)) in FIGURES.iter().enumerate() {
        print!("{title:28}");
        samples.iter().for_each(|of_size| print!("{:>9.3}", median(&of_size[n])));
        let (first, last) = (median(&samples[0][n]), median(&samples[COUNTS.len() - 1][n]));
        println!("{:>21.2}x", last / first);
    }
    report::warn(load);
}

fn json(samples: &[Vec<Vec<f64>>], load: f64) -> String {
    let many = |(size, of_size): (&u32, &Vec<Vec<f64>>)| {
        let mut many = json!({"endpoints": size});
        FIGURES.iter().zip(of_size).for_each(|((name, _), samples)| many[*name] = json!(samples));
        many
    };
    let counts: Value = COUNTS.iter().zip(samples).map(many).collect();
    report::pretty(&json!({"machine": report::machine(load, &report::PEERS), "counts": counts}))
}
