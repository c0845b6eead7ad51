//! Benches: a promise, our figure and a peer's for it, measured in turns on the same two processors in one run.
//!
//! A bench is a list of [`Contest`]s; those of sm are here, those of verbs, which have two peers, beside them.
//! A figure is the median of five. Nothing here judges: the status says only whether everything could be measured.
#![forbid(unsafe_code)]

mod crowd;
mod ours;
mod peers;
mod report;
mod verbs;

pub(crate) use crowd::evd;
pub(crate) use verbs::verbs;

use std::process::Command;
use std::time::{Duration, Instant};

use dapl_test::run::Run;
use dapl_test::stage::Profile;

use crate::{Result, setup, tree};

/// So many runs of each side, in turns; the median counts.
const ROUNDS: usize = 5;
/// No measurement takes as long, even with both sides on one processor.
const LIMIT: Duration = Duration::from_secs(120);

/// One promise.
struct Contest<'a> {
    /// The number it has in the list of targets.
    id: &'static str,
    /// What is measured.
    title: &'static str,
    unit: &'static str,
    less_is_better: bool,
    /// Our figure over the peer's: the target, and what this milestone asks; `None`: it only informs.
    must: f64,
    floor: Option<f64>,
    peer_name: String,
    ours: Box<dyn Fn() -> Result<f64> + 'a>,
    peer: Box<dyn Fn() -> Result<f64> + 'a>,
}

/// A contest with its samples.
struct Measured<'a> {
    contest: Contest<'a>,
    ours: Vec<f64>,
    peer: Vec<f64>,
}

impl Measured<'_> {
    fn ratio(&self) -> f64 {
        median(&self.ours) / median(&self.peer)
    }
}

/// The promises of sm: S1, S2, S3.
pub(crate) fn sm() -> Result {
    setup::require(&[setup::TASKSET, setup::UCX, setup::FABRIC])?;
    let tree = tree::build(Profile::Release)?;
    let load = report::load();
    let perf = &ours::Perf::new(&tree.stage, "sm0");
    let contests = vec![
        Contest {
            id: "S1",
            title: "8 B ping-pong, polling",
            unit: "us",
            less_is_better: true,
            must: 1.5,
            floor: Some(2.0),
            peer_name: "ucx_perftest -t tag_lat -s 8 (UCX_TLS=posix,cma,self)".to_owned(),
            ours: Box::new(|| perf.latency(8, 1_000_000)),
            peer: Box::new(|| peers::ucx("tag_lat", 8, 1_000_000).map(|said| said.latency)),
        },
        Contest {
            id: "S2",
            title: "64 B ping-pong, polling",
            unit: "us",
            less_is_better: true,
            must: 0.3,
            floor: Some(0.5),
            peer_name: "fi_pingpong -p shm -e rdm -S 64".to_owned(),
            ours: Box::new(|| perf.latency(64, 1_000_000)),
            peer: Box::new(|| peers::fabric("shm", 64, 200_000)),
        },
        Contest {
            id: "S3",
            title: "8 B message rate",
            unit: "M/s",
            less_is_better: false,
            must: 0.7,
            floor: None,
            peer_name: "ucx_perftest -t tag_bw -s 8 (UCX_TLS=posix,cma,self)".to_owned(),
            ours: Box::new(|| perf.rate(8, 5_000_000)),
            peer: Box::new(|| peers::ucx("tag_bw", 8, 5_000_000).map(|said| said.rate)),
        },
    ];
    let measured = contests.into_iter().map(measure).collect::<Result<Vec<_>>>()?;
    report::print(&measured, load);
    let directory = tree.stage.root.ancestors().nth(2).expect("a stage lies in the target directory").join("bench");
    report::write(&measured, load, &directory.join("sm.json"))
}

fn measure(contest: Contest<'_>) -> Result<Measured<'_>> {
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        ours.push((contest.ours)().map_err(|error| format!("{}: {error}", contest.id))?);
        peer.push((contest.peer)().map_err(|error| format!("{}: {error}", contest.id))?);
        let unit = contest.unit;
        eprintln!(
            "{} round {round}: ours {:.3} {unit}, peer {:.3} {unit}",
            contest.id,
            ours[round - 1],
            peer[round - 1]
        );
    }
    Ok(Measured { contest, ours, peer })
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Puts a command on one processor: 0 for servers, 1 for clients.
fn pin(processor: &str, command: &Command) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", processor]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => pinned.env(name, value),
            None => pinned.env_remove(name),
        };
    }
    pinned
}

/// Runs a server, then, when it is ready, its client; says what the client said.
fn pair(server: &Command, is_ready: impl Fn() -> bool, client: &Command) -> Result<String> {
    let started = Instant::now();
    let server = Run::start(pin("0", server));
    while !is_ready() {
        if started.elapsed() > LIMIT {
            return Err(format!("{server} is not ready after {LIMIT:?}", server = server.id()));
        }
        // What readiness shows in (a file, a port) has no event to wait for.
        std::thread::sleep(Duration::from_millis(5));
    }
    let finished = Run::start(pin("1", client)).finish(LIMIT);
    if !finished.status.success() {
        let (status, text) = (finished.status, finished.stdout + &finished.stderr);
        return Err(format!("{client:?}: {status}\n{text}"));
    }
    let server = server.finish(LIMIT);
    if !server.status.success() {
        return Err(format!("its server: {}\n{}{}", server.status, server.stdout, server.stderr));
    }
    Ok(finished.stdout)
}
