//! The command line.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Lists the DAT registry of this machine, whether each adapter opens, and if not why.
///
/// Exit status: 0, 1 if no adapter is usable (check, doctor: a problem was found; top: nothing to show), 2 for errors.
#[derive(Debug, Parser)]
#[command(name = "datinfo", disable_version_flag = true, max_term_width = 100)]
pub(crate) struct Options {
    /// All attributes of each adapter and its provider, with units
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Every environment variable and setting: type, default, value in effect and where that comes from
    #[arg(short, long, conflicts_with_all = ["verbose", "configuration", "version"])]
    pub(crate) environment: bool,
    /// The effective configuration: files read, and each adapter's settings as they will be used
    #[arg(short, long, conflicts_with_all = ["verbose", "version"])]
    pub(crate) configuration: bool,
    /// As JSON, one document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Versions of this program and of every library that is loaded
    #[arg(short = 'V', long)]
    pub(crate) version: bool,
    /// Only adapters of this name, listed or not; may be given several times
    #[arg(long = "ia", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Open as a program does that asks for thread safety
    #[arg(long, global = true)]
    pub(crate) thread_safe: bool,
    /// Time limit for an open, after which it counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600),
          global = true)]
    pub(crate) timeout: u64,
    /// The libdat to ask; default: libdat.so.1 as programs find it, else the one installed beside this program
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) libdat: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reads a dat.conf and explains each line, and each complaint about one
    Check {
        /// The file; default: what programs read
        file: Option<PathBuf>,
    },
    /// Lines of dat.conf for what this machine has
    Discover,
    /// Checks this host, or the path to another one, and names remedies
    Doctor(Doctor),
    /// Shows the counters of running processes, your own, again and again
    Top(Top),
    /// Asks libdat, for this program itself
    #[command(hide = true)]
    Probe {
        /// The adapter to open; without it the registry is read
        #[arg(allow_hyphen_values = true)]
        name: Option<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The other host, on which a program listens over usnic, or `datinfo doctor --serve` runs: HOST, HOST:PORT or `[ADDRESS]:PORT`
    #[arg(conflicts_with = "serve")]
    pub(crate) host: Option<String>,
    /// Answer another host's doctor until killed
    #[arg(long)]
    pub(crate) serve: bool,
    /// The UDP port to talk over; default: the one of usnic's set-ups
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Bytes of memory that programs here register over verbs, for the check of the locked-memory limit
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub(crate) need: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Show sums once, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Seconds between updates, from 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval, conflicts_with = "once")]
    pub(crate) interval: Duration,
    /// Each number of each adapter and endpoint, unless it is 0
    #[arg(short, long, conflicts_with_all = ["json", "openmetrics"])]
    pub(crate) verbose: bool,
    /// Show once, for monitors: text in the format of OpenMetrics
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    pub(crate) openmetrics: bool,
    /// With --openmetrics: samples of each endpoint as well, some 50 each
    #[arg(long, requires = "openmetrics")]
    pub(crate) endpoints: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let interval = seconds.and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok());
    interval.ok_or_else(|| format!("\"{text}\" is no number of seconds from 0.1 to 3600"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_with_a_point() {
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "0", "0.09", "3600.1", "-1", "nan", "inf", "2s", "1e400"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
