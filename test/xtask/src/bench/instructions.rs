//! `cargo xtask bench instructions`: user-space instructions of each call, counted by valgrind's callgrind.
//!
//! `test/c/instructions.c` has both endpoints in one thread. It runs twice, with two numbers of transfers. The
//! difference of the counts, divided by the difference of the numbers, excludes start and end. Threads take turns by
//! `--fair-sched=yes`. Only calls of the program's thread are counted, and no dequeue before the connection is in
//! use, so a count repeats within 2 %. A count depends on the compiler, not on the machine: docs/benchmarks.md names
//! it, and the suite `instructions` compares with the table there.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use dapl_test::run::{SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, Stage, stage, target_directory, workspace};
use serde_json::{Value, json};

use crate::quiet::{run_quietly, step, text_of};
use crate::{Result, setup};

const SIZES: [u32; 3] = [8, 64, 4096];
/// Transfers of the two runs; calls, for an empty dequeue.
const COUNTS: [u32; 2] = [640, 3200];
const EMPTY_COUNTS: [u32; 2] = [100_000, 400_000];
/// Name of the program, whose own instructions are excluded.
const PROGRAM: &str = "instructions";
/// A count above the table's by more than this fails the suite.
const TOLERANCE: f64 = 1.05;
/// The same for counts that depend on callgrind's clock or on the turns of the threads too: repeated runs of one build differed
/// by up to 8 %.
const WIDE_TOLERANCE: f64 = 1.10;
/// Page with the table.
const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- instructions: written by `cargo xtask bench instructions --write` -->\n";
const END: &str = "<!-- end of instructions -->\n";

/// A count of the table.
struct Row {
    name: &'static str,
    /// The program's function whose calls are counted, and its operation.
    function: &'static str,
    operation: &'static str,
    /// Providers for which it is counted. Over usnic, dequeues would count calls that find nothing while packets are in flight,
    /// and no memory is mapped. Over sm no post sends a packet.
    providers: &'static [&'static str],
}

const ROWS: [Row; 12] = [
    row("post_send", "counted_send", "send", BOTH),
    row("post_send that sends a packet", "counted_send", "burst", USNIC),
    row("post_recv", "counted_recv", "send", BOTH),
    row("post_rdma_write", "counted_write", "write", BOTH),
    row("post_rdma_read", "counted_read", "read", BOTH),
    row("post_rdma_write, shared memory", "counted_write", "shared-write", SM),
    row("post_rdma_read, shared memory", "counted_read", "shared-read", SM),
    row("lmr_create", "counted_register", "register", SM),
    row("lmr_free", "counted_deregister", "register", SM),
    row("dequeues of a message, both completions", "counted_dequeue", "send", SM),
    row("dequeue that finds nothing", "counted_dequeue", "empty", BOTH),
    row("waits of a message, both completions", "counted_wait", "wait", SM),
];

const BOTH: &[&str] = &["sm", "usnic"];
const SM: &[&str] = &["sm"];
const USNIC: &[&str] = &["usnic"];

impl Row {
    fn tolerance(&self) -> f64 {
        if ["burst", "write", "read"].contains(&self.operation) { WIDE_TOLERANCE } else { TOLERANCE }
    }
}

const fn row(
    name: &'static str,
    function: &'static str,
    operation: &'static str,
    providers: &'static [&'static str],
) -> Row {
    Row { name, function, operation, providers }
}

/// Adapters and the lines that name them in dat.conf.
const ADAPTERS: [(&str, &str, &str); 2] = [("sm", "sm0", SM0), ("usnic", "usnic0", USNIC0)];

/// Instructions by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Layers {
    libdat: f64,
    object: f64,
    provider: f64,
    /// The Rust standard library, crates, and the C library.
    libraries: f64,
}

impl Layers {
    fn total(&self) -> f64 {
        self.libdat + self.object + self.provider + self.libraries
    }

    /// The slope of two measurements.
    fn per_count(first: Layers, second: Layers, counts: [u32; 2]) -> Layers {
        let slope = |a: f64, b: f64| (b - a) / f64::from(counts[1] - counts[0]);
        Layers {
            libdat: slope(first.libdat, second.libdat),
            object: slope(first.object, second.object),
            provider: slope(first.provider, second.provider),
            libraries: slope(first.libraries, second.libraries),
        }
    }

    fn of_profile(profile: &str) -> Layers {
        let (mut layers, mut names) = (Layers::default(), HashMap::new());
        let (mut object, mut file, mut is_call) = (String::new(), String::new(), false);
        for line in profile.lines() {
            if line.starts_with("calls=") {
                is_call = true;
            } else if let Some((key, value)) = line.split_once('=') {
                // "ob=(3) name" the first time, "ob=(3)" afterwards; files have numbers of their own.
                let kind = match key {
                    "ob" | "cob" => "object",
                    "fl" | "fi" | "fe" | "cfi" | "cfl" => "file",
                    _ => continue,
                };
                let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                if !name.is_empty() {
                    names.insert((kind, number.to_owned()), name.to_owned());
                }
                let name = names.get(&(kind, number.to_owned())).cloned().unwrap_or_default();
                match key {
                    "ob" => object = name,
                    "fl" | "fi" | "fe" => file = name,
                    _ => {}
                }
            } else if let Some((_, cost)) = line
                .split_once(' ')
                .filter(|_| line.starts_with(['+', '-', '*', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']))
            {
                // The line after "calls=" is the cost of the called function, which has lines of its own.
                if !std::mem::take(&mut is_call) && !object.ends_with(PROGRAM) {
                    *layers.of(&object, &file) += cost.trim().parse().unwrap_or(0.0);
                }
            }
        }
        layers
    }

    fn of(&mut self, object: &str, file: &str) -> &mut f64 {
        if object.contains("libdat.so") {
            &mut self.libdat
        } else if file.contains("dapl/src/") {
            &mut self.object
        } else if file.contains("providers/") {
            &mut self.provider
        } else {
            &mut self.libraries
        }
    }
}

/// Measures `providers`, or all. `write`: into the page.
pub(crate) fn instructions(providers: &[String], write: bool) -> Result {
    let chosen: Vec<_> = ADAPTERS
        .iter()
        .filter(|(provider, ..)| providers.is_empty() || providers.iter().any(|name| name == provider))
        .collect();
    if chosen.len() < providers.len() {
        return Err("instructions are counted over sm and usnic; over verbs by `cargo xtask bench verbs`".to_owned());
    }
    if write && chosen.len() < ADAPTERS.len() {
        return Err("--write needs the counts of all providers: name none".to_owned());
    }
    let bench = Bench::new()?;
    let (mut tables, mut values) = (String::new(), Vec::new());
    for &&(provider, adapter, registry) in &chosen {
        let mut table = format!("| {provider} |{} libdat | object layer | provider | libraries |\n|---|", {
            SIZES.map(|size| format!(" {size} B |")).concat()
        });
        table += &"---|".repeat(SIZES.len() + 4);
        table.push('\n');
        for row in ROWS.iter().filter(|row| row.providers.contains(&provider)) {
            // A dequeue without messages, and a registration, do not depend on the size.
            let sizes = if matches!(row.operation, "empty" | "register") { &SIZES[..1] } else { &SIZES[..] };
            let layers: Vec<Layers> = step(&format!("{provider}: {}", row.name), || {
                sizes.iter().map(|size| bench.count(adapter, registry, row, *size)).collect()
            })?;
            table += &format!("| {} |", row.name);
            for n in 0..SIZES.len() {
                table += &layers.get(n).map_or(" |".to_owned(), |layers| format!(" {:.0} |", layers.total()));
            }
            let Layers { libdat, object, provider: own, libraries } = layers[0];
            table += &format!(" {libdat:.0} | {object:.0} | {own:.0} | {libraries:.0} |\n");
            values.extend(sizes.iter().zip(&layers).map(|(size, layers)| {
                json!({"provider": provider, "call": row.name, "bytes": size, "instructions": layers.total().round(),
                    "libdat": layers.libdat.round(), "object_layer": layers.object.round(),
                    "provider_code": layers.provider.round(), "libraries": layers.libraries.round()})
            }));
        }
        tables += &format!("{table}\n");
    }
    let compiler = compiler()?;
    println!("{compiler}\n\n{tables}");
    let file = target_directory().join("bench/instructions.json");
    let text = json!({"compiler": compiler, "counts": Value::Array(values)}).to_string();
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    file.parent().map_or(Ok(()), fs::create_dir_all).map_err(|error| failed(&file, error))?;
    fs::write(&file, text + "\n").map_err(|error| failed(&file, error))?;
    if write {
        let path = workspace().join(PAGE);
        let page = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
        let (before, after) = around(&page)?;
        let page = format!("{before}{BEGIN}Compiler: {compiler}.\n\n{tables}{END}{after}");
        fs::write(&path, page).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// The suite: no count of a message of 8 bytes is above the table's by more than its tolerance.
pub(crate) fn check() -> Result {
    let path = workspace().join(PAGE);
    let page = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let compiler = compiler()?;
    if !page.contains(&format!("Compiler: {compiler}.")) {
        println!("xtask: the table in {PAGE} is of another compiler than {compiler}: the counts are not compared");
        return Ok(());
    }
    let (bench, mut worse) = (Bench::new()?, Vec::new());
    for (provider, adapter, registry) in ADAPTERS {
        let table = counts(&page, provider)?;
        // How often a thread without work yields depends not only on the code of a dequeue.
        for row in ROWS.iter().filter(|row| row.operation != "empty" && row.providers.contains(&provider)) {
            let now = bench.count(adapter, registry, row, SIZES[0])?.total();
            let before =
                *table.get(row.name).ok_or_else(|| format!("{PAGE} has no count of {} over {provider}", row.name))?;
            println!("{provider}: {}: {now:.0} instructions, {before:.0} in the table", row.name);
            if now > before * row.tolerance() {
                worse.push(format!("{provider}: {}: {now:.0} instructions, {before:.0} in {PAGE}", row.name));
            }
        }
    }
    if worse.is_empty() { Ok(()) } else { Err(worse.join("; ")) }
}

/// The page before and after the tables.
fn around(page: &str) -> Result<(&str, &str)> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    parts.ok_or_else(|| format!("{PAGE} has no place for the table of instructions"))
}

/// The counts of the first size in the table of a provider, by name.
fn counts(page: &str, provider: &str) -> Result<HashMap<String, f64>> {
    around(page)?;
    let section = page.split_once(BEGIN).map_or("", |(_, rest)| rest);
    let rows = section.lines().skip_while(|line| !line.starts_with(&format!("| {provider} |"))).skip(2);
    let cells = rows.map_while(|line| line.strip_prefix("| "));
    Ok(cells
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim);
            Some((cells.next()?.to_owned(), cells.next()?.parse().ok()?))
        })
        .collect())
}

fn compiler() -> Result<String> {
    let version = text_of(Command::new("rustc").arg("--version"))?;
    Ok(version.split(" (").next().unwrap_or(&version).trim().to_owned())
}

struct Bench {
    stage: Stage,
    program: std::path::PathBuf,
}

impl Bench {
    fn new() -> Result<Self> {
        setup::require(&[setup::CC, setup::VALGRIND])?;
        let stage = step("build libdat and the providers", || Ok(stage(Profile::Dist)))?;
        let directory = stage.root.join("bin");
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let program = directory.join(PROGRAM);
        stage.compile(&program, &[&workspace().join("test/c/instructions.c")], &["-O2"]);
        Ok(Bench { stage, program })
    }

    fn count(&self, adapter: &str, registry: &str, row: &Row, size: u32) -> Result<Layers> {
        let counts = if row.operation == "empty" { EMPTY_COUNTS } else { COUNTS };
        let first = self.run(adapter, registry, row, size, counts[0])?;
        Ok(Layers::per_count(first, self.run(adapter, registry, row, size, counts[1])?, counts))
    }

    fn run(&self, adapter: &str, registry: &str, row: &Row, size: u32, count: u32) -> Result<Layers> {
        let profile = self.stage.root.join(format!("callgrind.{}.{}", row.function, std::process::id()));
        let output = format!("--callgrind-out-file={}", profile.display());
        // The compiler may have made a copy of the function, with a longer name.
        let toggle = format!("--toggle-collect={}*", row.function);
        let (program, size, count) = (self.program.to_string_lossy(), size.to_string(), count.to_string());
        let arguments =
            ["--tool=callgrind", "--fair-sched=yes", &output, &toggle, &program, adapter, row.operation, &size, &count];
        let sandbox = Sandbox::new(&self.stage, Some(registry));
        run_quietly(&mut sandbox.command("valgrind", &arguments))?;
        let text = fs::read_to_string(&profile).map_err(|error| format!("{}: {error}", profile.display()))?;
        let _ = fs::remove_file(&profile);
        Ok(Layers::of_profile(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_lines_go_to_their_layer_and_those_of_calls_to_none() {
        let profile = "events: Ir\n\nob=(9) /p/bin/instructions\nfl=(9) instructions.c\nfn=(9) counted_send\n30 4\n\nob=(1) /p/lib/libdat.so.1\nfl=(1) dat/src/thunk/pass.rs\nfn=(1) dat_ep_post_send\n20 16\n\
            cob=(2) /p/lib/libdaplsm.so.1\ncfi=(2) /w/dapl/src/ep/dapl_post.rs\ncfn=(2) dapl_ep_post_send\ncalls=2 30\n20 900\n\n\
            ob=(2)\nfl=(2)\nfn=(2)\n+1 80\nfi=(3) /w/providers/sm/src/qp/ring.rs\n* 40\nfi=(4) /rustc/library/core/src/num.rs\n-3 5\nfe=(2)\n+2 1\n";
        let layers = Layers::of_profile(profile);
        assert_eq!(layers, Layers { libdat: 16.0, object: 81.0, provider: 40.0, libraries: 5.0 });
        let more = Layers { libdat: 36.0, ..layers };
        assert_eq!(Layers::per_count(layers, more, [10, 20]).total(), 2.0);
    }

    #[test]
    fn page_has_a_count_of_every_call() {
        let page = fs::read_to_string(workspace().join(PAGE)).unwrap();
        for (provider, ..) in ADAPTERS {
            let (counts, mut rows) = (counts(&page, provider).unwrap(), ROWS.iter());
            let is_there = |row: &Row| counts.get(row.name).is_some_and(|count| *count > 0.0);
            assert!(rows.all(|row| !row.providers.contains(&provider) || is_there(row)), "{provider}: {counts:?}");
        }
    }
}
