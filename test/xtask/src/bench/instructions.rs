//! `cargo xtask bench instructions`: user-space instructions of each call, counted by valgrind's callgrind, and how
//! many of them are atomic read-modify-writes.
//!
//! `test/c/instructions.c` has both endpoints in one thread. It runs twice, with different numbers of transfers. The
//! difference of the two instruction counts, divided by the difference of these numbers, excludes setup and shutdown.
//! Threads take turns (`--fair-sched=yes`). Only calls of the program's own thread are counted. Dequeues are counted
//! while the connection carries data; the row "dequeue that finds nothing" counts them on an idle connection. So a
//! count repeats within 2 %, unless it depends on the clock or on the order in which threads run.
//!
//! On a slow or busy machine, timers expire before a post, the last check that the memory is mapped has expired, or the
//! provider's thread is running when a wait begins. Rows that this changes have a wider tolerance ([`WIDE_TOLERANCE`]),
//! are computed from one run that is split into parts, or both. The value of a split run is that of the lowest part, of
//! the part at the lower tenth, or of the highest part ([`Parts`]). For sends that send a packet, a part is the last
//! send of a burst; the earlier sends of the burst have armed the timers.
//!
//! A count depends on the compiler, not on the machine. docs/benchmarks.md names the compiler, and the suite
//! `instructions` compares new counts with the table there. The verbs provider runs over a fake device
//! (`dapl_test::fake_device`).
#![forbid(unsafe_code)]

mod atomics;
mod profile;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::fake_device::{Driver, FakeDevice, VERBS0};
use dapl_test::run::{SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, Stage, stage, target_directory, workspace};
use serde_json::{Value, json};

use self::atomics::Atomics;
use self::profile::Layers;

use crate::quiet::{run_quietly, step, text_of};
use crate::{Result, setup};

const SIZES: [u32; 3] = [8, 64, 4096];
/// Number of transfers in the first and in the second run.
const COUNTS: [u32; 2] = [640, 3200];
const EMPTY_COUNTS: [u32; 2] = [100_000, 400_000];
/// The suite fails if a count exceeds the table's value multiplied by this factor.
const TOLERANCE: f64 = 1.05;
/// Tolerance for counts that also depend on callgrind's clock or on the order in which threads run. Repeated runs of
/// one build differed by up to 8 %.
const WIDE_TOLERANCE: f64 = 1.10;
/// Page with the tables of instruction counts.
const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- instructions: written by `cargo xtask bench instructions --write` -->\n";
const END: &str = "<!-- end of instructions -->\n";

/// A run that is split into parts must have at least this many parts.
const MIN_PARTS: usize = 10;

/// How a row is computed from the parts of a run. The program ends a part by calling `counted_part`, at which callgrind
/// writes the counts of the part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Parts {
    /// The run is not split.
    None,
    /// Takes the part with the lowest count: no other thread interrupted its calls. A part has this many calls.
    Least(u32),
    /// Sorts the parts by count and takes the one at the lower tenth. Parts with higher counts contain calls that
    /// waited for another thread, or precede the moment at which the provider's thread has handled the first events. A
    /// part has this many messages.
    LowerTenth(u32),
    /// Takes the part with the highest count. In other parts, some calls skip the check for packets, because another
    /// thread is checking. A part has this many calls.
    Greatest(u32),
}

/// A row of a provider's table in docs/benchmarks.md: the calls that are counted, and how the count is computed.
struct Row {
    name: &'static str,
    /// The program's function whose calls are counted, and its operation.
    function: &'static str,
    operation: &'static str,
    /// Providers over which the row is counted. Rows in which the completions of a message are dequeued or awaited omit
    /// usnic, because packets in flight would add empty dequeues to the count. Rows of shared memory are counted over
    /// sm only, because usnic and verbs do not map the peer's memory. Only usnic has posts that send packets.
    providers: &'static [&'static str],
    parts: Parts,
}

const ROWS: [Row; 17] = [
    row("post_send", "counted_send", "send", ALL),
    row("post_send, suppressed", "counted_suppressed", "suppressed", LOCAL),
    Row { parts: Parts::Least(1), ..row("post_send that sends a packet", "counted_send", "burst", USNIC) },
    row("post_recv", "counted_recv", "send", ALL),
    row("post_rdma_write", "counted_write", "write", ALL),
    row("post_rdma_read", "counted_read", "read", ALL),
    row("post_rdma_write, shared memory", "counted_write", "shared-write", SM),
    row("post_rdma_read, shared memory", "counted_read", "shared-read", SM),
    row("lmr_create", "counted_register", "register", SM),
    row("lmr_free", "counted_deregister", "register", SM),
    row("dequeues of a message, both completions", "counted_dequeue", "send", LOCAL),
    row("dequeues of a message alone, both completions", "counted_dequeue", "alone", VERBS),
    row("dequeue that finds nothing", "counted_dequeue", "empty", LOCAL),
    Row { parts: Parts::Greatest(1000), ..row("dequeue that finds nothing", "counted_dequeue", "empty", USNIC) },
    row("waits of a message, both completions", "counted_wait", "wait", LOCAL),
    Row {
        parts: Parts::LowerTenth(8),
        ..row("waits of a message alone, both completions", "counted_wait", "alone-wait", LOCAL)
    },
    Row {
        parts: Parts::LowerTenth(8),
        ..row("CNO waits and dequeues of a message alone", "counted_cno", "alone-cno", LOCAL)
    },
];

const ALL: &[&str] = &["sm", "usnic", "verbs"];
const LOCAL: &[&str] = &["sm", "verbs"];
const SM: &[&str] = &["sm"];
const USNIC: &[&str] = &["usnic"];
const VERBS: &[&str] = &["verbs"];
/// Operations of `test/c/raw_verbs.c`.
const RAW: [&str; 5] = ["send", "alone", "write", "read", "empty"];

impl Row {
    fn tolerance(&self) -> f64 {
        if ["write", "read", "empty"].contains(&self.operation) { WIDE_TOLERANCE } else { TOLERANCE }
    }
}

const fn row(
    name: &'static str,
    function: &'static str,
    operation: &'static str,
    providers: &'static [&'static str],
) -> Row {
    Row { name, function, operation, providers, parts: Parts::None }
}

/// Provider, its adapter, and the registry line of the adapter.
const ADAPTERS: [(&str, &str, &str); 3] =
    [("sm", "sm0", SM0), ("usnic", "usnic0", USNIC0), ("verbs", "verbs0", VERBS0)];

/// Measures these providers, or all if the list is empty. `write`: also updates the tables in docs/benchmarks.md.
pub(crate) fn instructions(providers: &[String], write: bool) -> Result {
    let chosen: Vec<_> = ADAPTERS
        .iter()
        .filter(|(provider, ..)| providers.is_empty() || providers.iter().any(|name| name == provider))
        .collect();
    if chosen.len() < providers.len() {
        let names = providers.join(" ");
        return Err(format!("{names}: a name is unknown or repeated; the providers are sm, usnic and verbs"));
    }
    let bench = Bench::new()?;
    let (mut tables, mut values) = (Vec::new(), Vec::new());
    for &&(provider, adapter, registry) in &chosen {
        let mut table = header(provider);
        for row in ROWS.iter().filter(|row| row.providers.contains(&provider)) {
            // An empty dequeue and a registration do not depend on the size, so only the first size is measured.
            let sizes = if matches!(row.operation, "empty" | "register") { &SIZES[..1] } else { &SIZES[..] };
            let layers: Vec<Layers> = step(&format!("{provider}: {}", row.name), || {
                sizes.iter().map(|size| bench.count(adapter, registry, row, *size)).collect()
            })?;
            table += &format!("| {} |", row.name);
            for n in 0..SIZES.len() {
                table += &layers.get(n).map_or(" |".to_owned(), |layers| format!(" {:.0} |", layers.total()));
            }
            let Layers { libdat, object, provider: own, libraries, atomics, .. } = layers[0];
            table += &format!(" {libdat:.0} | {object:.0} | {own:.0} | {libraries:.0} | {atomics:.1} |");
            if provider == "verbs" {
                table += &bench.beside_device(row, layers[0].device)?;
            }
            table.push('\n');
            values.extend(sizes.iter().zip(&layers).map(|(size, layers)| {
                json!({"provider": provider, "call": row.name, "bytes": size, "instructions": layers.total().round(),
                    "libdat": layers.libdat.round(), "object_layer": layers.object.round(),
                    "provider_code": layers.provider.round(), "libraries": layers.libraries.round(),
                    "fake_device": layers.device.round(), "atomics": (layers.atomics * 10.0).round() / 10.0})
            }));
        }
        tables.push((provider, table));
    }
    let compiler = compiler()?;
    println!("{compiler}\n");
    tables.iter().for_each(|(_, table)| println!("{table}"));
    let file = target_directory().join("bench/instructions.json");
    let text = json!({"compiler": compiler, "counts": Value::Array(values)}).to_string();
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    file.parent().map_or(Ok(()), fs::create_dir_all).map_err(|error| failed(&file, error))?;
    fs::write(&file, text + "\n").map_err(|error| failed(&file, error))?;
    if write {
        let path = workspace().join(PAGE);
        let page = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
        let page = with_tables(&page, &compiler, &tables)?;
        fs::write(&path, page).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Runs the suite: no count for 8-byte messages may exceed the table's value by more than its tolerance. Compares
/// nothing if the table is of another compiler.
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
        let (table, atomics) = (cells(&page, provider, 0)?, cells(&page, provider, ATOMICS)?);
        for row in ROWS.iter().filter(|row| row.providers.contains(&provider)) {
            let layers = bench.count(adapter, registry, row, SIZES[0])?;
            let of_row = |table: &HashMap<String, f64>| {
                let cell = table.get(row.name).copied();
                cell.ok_or_else(|| format!("{PAGE} has no count of {} over {provider}", row.name))
            };
            let (now, before) = (layers.total(), of_row(&table)?);
            println!("{provider}: {}: {now:.0} instructions, {before:.0} in the table", row.name);
            let most = of_row(&atomics)? * WIDE_TOLERANCE + 0.1;
            if layers.atomics > most {
                let now = layers.atomics;
                worse.push(format!("{provider}: {}: {now:.1} atomics, expected at most {most:.1}", row.name));
            }
            if now > before * row.tolerance() {
                let most = before * row.tolerance();
                worse.push(format!(
                    "{provider}: {}: {now:.0} instructions, expected at most {most:.0} ({before:.0} in {PAGE})",
                    row.name
                ));
            }
        }
    }
    if worse.is_empty() { Ok(()) } else { Err(worse.join("; ")) }
}

/// Heading of a provider's table.
fn header(provider: &str) -> String {
    let sizes = SIZES.map(|size| format!(" {size} B |")).concat();
    let device = if provider == "verbs" { " fake device | bare verbs |" } else { "" };
    let columns = format!("| {provider} |{sizes} libdat | object layer | provider | libraries | atomics |{device}");
    let line = "---|".repeat(columns.matches('|').count() - 1);
    format!("{columns}\n|{line}\n")
}

/// Splits docs/benchmarks.md into the text before the tables, the tables, and the text after them.
fn around(page: &str) -> Result<(&str, &str, &str)> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (tables, after) = rest.split_once(END)?;
        Some((before, tables, after))
    });
    parts.ok_or_else(|| {
        let (begin, end) = (BEGIN.trim_end(), END.trim_end());
        format!("{PAGE} lacks the marker lines {begin:?} and {end:?} around the tables of instructions")
    })
}

/// Returns docs/benchmarks.md with these tables. Tables of other providers are unchanged if they were measured with the
/// same compiler.
fn with_tables(page: &str, compiler: &str, tables: &[(&str, String)]) -> Result<String> {
    let (before, old, after) = around(page)?;
    let head = format!("Compiler: {compiler}.\n\n");
    let mut all = String::new();
    for (provider, ..) in ADAPTERS {
        let first = format!("| {provider} |");
        let new = tables.iter().find(|(of, _)| *of == provider).map(|(_, table)| table.trim_end().to_owned());
        let kept = || old.split("\n\n").find(|table| table.starts_with(&first)).map(str::to_owned);
        let is_same = old.starts_with(&head);
        let table = new.or_else(|| kept().filter(|_| is_same)).ok_or_else(|| {
            format!("{PAGE} has no table of {provider} for {compiler}; name no provider, to count all of them")
        })?;
        all += &format!("{table}\n\n");
    }
    Ok(format!("{before}{BEGIN}{head}{all}{END}{after}"))
}

/// Index of the column "atomics" among the columns with numbers. The first column is the count for the first size.
const ATOMICS: usize = 7;

/// Numbers in a column of a provider's table, by row name.
fn cells(page: &str, provider: &str, column: usize) -> Result<HashMap<String, f64>> {
    around(page)?;
    let section = page.split_once(BEGIN).map_or("", |(_, rest)| rest);
    let rows = section.lines().skip_while(|line| !line.starts_with(&format!("| {provider} |"))).skip(2);
    let cells = rows.map_while(|line| line.strip_prefix("| "));
    Ok(cells
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim);
            Some((cells.next()?.to_owned(), cells.nth(column)?.parse().ok()?))
        })
        .collect())
}

fn compiler() -> Result<String> {
    let version = text_of(Command::new("rustc").arg("--version"))?;
    Ok(version.split(" (").next().unwrap_or(&version).trim().to_owned())
}

struct Bench {
    stage: Stage,
    program: PathBuf,
    device: FakeDevice,
    bare_program: PathBuf,
    atomics: Atomics,
}

impl Bench {
    fn new() -> Result<Self> {
        setup::require(&[setup::CC, setup::VALGRIND, setup::RDMA_HEADERS])?;
        let stage = step("build libdat and the providers", || Ok(stage(Profile::Dist)))?;
        let directory = stage.root.join(profile::PROGRAMS);
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let program = directory.join("instructions");
        stage.compile(&program, &[&workspace().join("test/c/instructions.c")], &["-O2"]);
        let device = FakeDevice::new(&stage);
        let bare_program = directory.join("raw_verbs");
        stage.compile_with(
            &[&device.library.to_string_lossy()],
            &[],
            &bare_program,
            &[&workspace().join("test/c/raw_verbs.c")],
            &["-O2", "-fno-ipa-icf"],
        );
        Ok(Bench { stage, program, device, bare_program, atomics: Atomics::default() })
    }

    fn count(&self, adapter: &str, registry: &str, row: &Row, size: u32) -> Result<Layers> {
        let run = |count: u32| {
            let arguments = [adapter, row.operation, &size.to_string(), &count.to_string()];
            self.run(registry, row, &self.program, &arguments)
        };
        let (calls, count) = match row.parts {
            Parts::None => return slope(row, run),
            Parts::Least(calls) => (calls, COUNTS[1]),
            Parts::LowerTenth(calls) => (calls, 2 * COUNTS[1]),
            Parts::Greatest(calls) => (calls, EMPTY_COUNTS[0]),
        };
        let mut parts = run(count)?;
        parts.retain(|part| part.total() > 0.0);
        if parts.len() < MIN_PARTS {
            return Err(format!(
                "{}: callgrind wrote {} parts of the run with counted calls, expected {MIN_PARTS} or more",
                row.name,
                parts.len()
            ));
        }
        parts.sort_by(|a, b| a.total().total_cmp(&b.total()));
        let chosen = match row.parts {
            Parts::Least(_) => parts.first(),
            Parts::LowerTenth(_) => parts.get(parts.len() / 10),
            Parts::None | Parts::Greatest(_) => parts.last(),
        };
        Ok(chosen.copied().unwrap_or_default().divided_by(calls))
    }

    /// Formats two columns: instructions of the fake device, and of a program that uses the device without DAT.
    fn beside_device(&self, row: &Row, device: f64) -> Result<String> {
        if !RAW.contains(&row.operation) {
            return Ok(format!(" {device:.0} | |"));
        }
        let bare = slope(row, |count| {
            let arguments = [row.operation, &SIZES[0].to_string(), &count.to_string()];
            self.run(VERBS0, row, &self.bare_program, &arguments)
        })?;
        Ok(format!(" {device:.0} | {:.0} |", bare.program))
    }

    /// Runs the program under callgrind. Returns the counts of each part.
    fn run(&self, registry: &str, row: &Row, program: &Path, arguments: &[&str]) -> Result<Vec<Layers>> {
        let profile = self.stage.root.join(format!("callgrind.{}.{}", row.function, std::process::id()));
        let output = format!("--callgrind-out-file={}", profile.display());
        // The compiler may have cloned the function under a longer name.
        let toggle = format!("--toggle-collect={}*", row.function);
        let program = program.to_string_lossy();
        let mut callgrind = vec!["--tool=callgrind", "--fair-sched=yes", &output, &toggle];
        callgrind.extend(["--dump-instr=yes", "--compress-pos=no"]);
        if row.parts != Parts::None {
            callgrind.extend(["--combine-dumps=yes", "--dump-before=counted_part*"]);
        }
        callgrind.push(&program);
        let sandbox = Sandbox::new(&self.stage, Some(registry));
        let mut command = sandbox.command("valgrind", &[&callgrind[..], arguments].concat());
        if registry == VERBS0 {
            self.device.preload(&mut command, Driver::User);
        }
        run_quietly(&mut command)?;
        let text = fs::read_to_string(&profile).map_err(|error| format!("{}: {error}", profile.display()))?;
        let _ = fs::remove_file(&profile);
        Layers::of_parts(&text, &self.atomics)
    }
}

/// Instructions per call, computed from two runs with different numbers of calls.
fn slope(row: &Row, run: impl Fn(u32) -> Result<Vec<Layers>>) -> Result<Layers> {
    let counts = if row.operation == "empty" { EMPTY_COUNTS } else { COUNTS };
    Ok(Layers::per_count(Layers::sum(&run(counts[0])?), Layers::sum(&run(counts[1])?), counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_other_providers_stay_if_their_compiler_is_the_same() {
        let table = |provider: &str, count: u32| format!("| {provider} |\n|---|\n| post_send | {count} |\n");
        let tables = |counts: [u32; 3]| ADAPTERS.map(|(provider, ..)| provider).into_iter().zip(counts);
        let all: Vec<_> = tables([1, 2, 3]).map(|(provider, count)| (provider, table(provider, count))).collect();
        let page = format!("before\n{BEGIN}{END}after\n");
        assert!(with_tables(&page, "rustc 1", &all[1..]).is_err());
        let page = with_tables(&page, "rustc 1", &all).unwrap();
        assert!(page.starts_with("before\n") && page.ends_with("after\n"));
        let page = with_tables(&page, "rustc 1", &[("usnic", table("usnic", 9))]).unwrap();
        for (provider, count) in tables([1, 9, 3]) {
            assert_eq!(cells(&page, provider, 0).unwrap()["post_send"], f64::from(count), "{provider}");
        }
        assert!(with_tables(&page, "rustc 2", &all[1..]).is_err());
    }

    #[test]
    fn page_has_a_count_of_every_call() {
        let page = fs::read_to_string(workspace().join(PAGE)).unwrap();
        for (provider, ..) in ADAPTERS {
            let (counts, mut rows) = (cells(&page, provider, 0).unwrap(), ROWS.iter());
            let atomics = cells(&page, provider, ATOMICS).unwrap();
            let is_there =
                |row: &Row| counts.get(row.name).is_some_and(|count| *count > 0.0) && atomics.contains_key(row.name);
            assert!(rows.all(|row| !row.providers.contains(&provider) || is_there(row)), "{provider}: {counts:?}");
        }
    }
}
