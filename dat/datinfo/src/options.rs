//! The command line of `datinfo`: options, subcommands, and their help texts.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Lists the adapters in the DAT registry of this machine. Tries to open each one, and shows why an open fails.
///
/// Exit status: 0 for success; 1 if no adapter is usable, if check or doctor found a problem, or if top has nothing to
/// show; 2 if the command failed.
#[derive(Debug, Parser)]
#[command(name = "datinfo", disable_version_flag = true, max_term_width = 80)]
pub(crate) struct Options {
    /// Show all attributes of each adapter and its provider, with units
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Show every environment variable and setting with its type, its default, and the value in effect with its source
    #[arg(short, long, conflicts_with_all = ["verbose", "configuration", "version"])]
    pub(crate) environment: bool,
    /// Show the effective configuration: the files read, and the settings of each adapter
    #[arg(short, long, conflicts_with_all = ["verbose", "version"])]
    pub(crate) configuration: bool,
    /// Print the result as one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show the versions of datinfo, of libdat, and of every library that libdat loads to open the adapters
    #[arg(short = 'V', long)]
    pub(crate) version: bool,
    /// Show only the names of the adapters, one per line, without opening them
    #[arg(short, long, conflicts_with_all = ["verbose", "environment", "configuration", "version"])]
    pub(crate) list: bool,
    /// Show the entries of every version of DAT
    #[arg(long)]
    pub(crate) all: bool,
    /// Show or edit the entries of this version of DAT: 1, 1.2, 2 or 2.0; default: 1
    #[arg(long, value_name = "VERSION", default_value = "1", value_parser = Api::parse, global = true, hide_default_value = true)]
    pub(crate) api: Api,
    /// Add the entries of a file to dat.conf, as `datinfo add --from FILE` does
    #[arg(short, value_name = "FILE", conflicts_with_all = ["verbose", "environment", "configuration", "version", "list"])]
    pub(crate) add_from: Option<PathBuf>,
    /// Remove the entries of a file from dat.conf, as `datinfo remove --from FILE` does
    #[arg(short, value_name = "FILE", conflicts_with_all = ["verbose", "environment", "configuration", "version", "list", "add_from"])]
    pub(crate) remove_from: Option<PathBuf>,
    /// Show only this adapter, even if dat.conf does not list it; may be repeated
    #[arg(long = "ia", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Open adapters as a program that requires thread safety does; with add: mark the entry as threadsafe
    #[arg(long, global = true)]
    pub(crate) thread_safe: bool,
    /// Time limit for opening an adapter; also for waiting until another program has finished editing the file
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600),
          global = true)]
    pub(crate) timeout: u64,
    /// Use this libdat; default: the libdat.so.1 that programs find, or else the one installed next to datinfo
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) libdat: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// A version of the API.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Api {
    pub(crate) major: u16,
    /// `None` matches any minor version.
    pub(crate) minor: Option<u16>,
}

impl Api {
    fn parse(text: &str) -> Result<Self, String> {
        let number = |digits: &str| digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let plain = text.strip_prefix('u').unwrap_or(text);
        let (major, minor) = plain.split_once('.').map_or((plain, None), |(major, minor)| (major, Some(minor)));
        let api = match (number(major), minor.map(number)) {
            (Some(major), None) => Some(Api { major, minor: None }),
            (Some(major), Some(Some(minor))) => Some(Api { major, minor: Some(minor) }),
            _ => None,
        };
        api.filter(|api| matches!(api.major, 1 | 2))
            .ok_or_else(|| "is not a version of DAT: give 1, 1.2, 2 or 2.0".to_owned())
    }

    /// Whether an entry for this version is requested.
    pub(crate) fn includes(self, major: u16, minor: u16) -> bool {
        self.major == major && self.minor.is_none_or(|wanted| wanted == minor)
    }
}

impl std::fmt::Display for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.minor {
            Some(minor) => write!(f, "{}.{minor}", self.major),
            None => write!(f, "{}", self.major),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the names of the adapters, one per line, without opening them
    List {
        /// List the names of every version of DAT
        #[arg(long)]
        all: bool,
    },
    /// Adds an entry to dat.conf
    Add(Add),
    /// Removes the entries of a name from dat.conf
    Remove(Remove),
    /// Enables an entry of dat.conf, and disables others of the same name, version and thread safety
    SetDefault(SetDefault),
    /// Explains each line of a dat.conf, and for each error the permitted values
    Check {
        /// The file; default: the files that programs read
        file: Option<PathBuf>,
    },
    /// Prints dat.conf lines for the adapters of this machine
    Discover,
    /// Explains numbers and names of DAT 1.2 and 2.0: return codes, events, statuses, flags
    Explain {
        /// A number as in C (0x4005, 16389, -110) or a name, with or without DAT_
        #[arg(required = true, allow_negative_numbers = true, value_name = "NUMBER|NAME")]
        words: Vec<String>,
    },
    /// Checks this host, or the path to another host, and proposes remedies
    Doctor(Doctor),
    /// Shows the counters of your running processes, and updates them periodically
    Top(Top),
    /// Internal: runs libdat in a child process, and prints its answers as JSON
    #[command(hide = true)]
    Probe {
        /// The adapter to open; without a name, the probe only reads the registry
        #[arg(allow_hyphen_values = true)]
        name: Option<String>,
    },
}

/// Options of the commands that edit a dat.conf.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EditedConf {
    /// The dat.conf to edit; default: the one that libdat reads
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Show the changes and write nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Add {
    /// The name that programs open
    #[arg(requires = "library")]
    pub(crate) name: Option<String>,
    /// The provider library
    pub(crate) library: Option<String>,
    /// The provider's parameters
    #[arg(default_value = "")]
    pub(crate) params: String,
    /// Add the entries of this file unchanged; - means standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "nondefault", "provider_version"])]
    pub(crate) from: Option<PathBuf>,
    /// Add an entry for each adapter of this machine whose name is not in the file
    #[arg(long, conflicts_with_all = ["name", "from", "nondefault", "provider_version"])]
    pub(crate) discovered: bool,
    /// Replace an existing entry of the same name, version and thread safety
    #[arg(long)]
    pub(crate) replace: bool,
    /// Write a disabled entry
    #[arg(long)]
    pub(crate) nondefault: bool,
    /// Vendor and version of the library; default: dapl.1.2 or dapl.2.0, as for --api
    #[arg(long, value_name = "TEXT")]
    pub(crate) provider_version: Option<String>,
    #[command(flatten)]
    pub(crate) conf: EditedConf,
}

#[derive(Args, Debug, Default)]
pub(crate) struct Remove {
    /// Names of the entries
    pub(crate) names: Vec<String>,
    /// Remove only the entry at this line number
    #[arg(long, value_name = "NUMBER")]
    pub(crate) line: Option<usize>,
    /// Remove the entries that have the name, version, thread safety and library of an entry in this file; - means
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["names", "line"])]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) conf: EditedConf,
}

#[derive(Args, Debug)]
pub(crate) struct SetDefault {
    /// Name of the entry
    pub(crate) name: String,
    /// Line number of the entry, if several entries have this name
    #[arg(long, value_name = "NUMBER")]
    pub(crate) line: Option<usize>,
    /// Disable the entry instead
    #[arg(long)]
    pub(crate) off: bool,
    #[command(flatten)]
    pub(crate) conf: EditedConf,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The other host, as HOST, HOST:PORT or `[ADDRESS]:PORT`. A program must listen there over usnic, or `datinfo
    /// doctor --serve` must run
    #[arg(conflicts_with = "serve")]
    pub(crate) host: Option<String>,
    /// Reply to `datinfo doctor` of other hosts, until this command is interrupted
    #[arg(long)]
    pub(crate) serve: bool,
    /// UDP port of both hosts; default: the port on which usnic sets up connections
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Number of bytes that programs of this host register over verbs; doctor checks that the limit of locked memory
    /// allows them
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub(crate) need: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Show the totals once, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Seconds between updates, from 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval, conflicts_with = "once")]
    pub(crate) interval: Duration,
    /// Show every counter of each adapter and endpoint that is not 0
    #[arg(short, long, conflicts_with_all = ["json", "openmetrics"])]
    pub(crate) verbose: bool,
    /// Print the counters once as OpenMetrics text, for monitoring systems
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    pub(crate) openmetrics: bool,
    /// With --openmetrics: also print the samples of each endpoint, up to about 50 per endpoint
    #[arg(long, requires = "openmetrics")]
    pub(crate) endpoints: bool,
    /// Omit endpoints from -v and --json; show only their number
    #[arg(long, conflicts_with = "openmetrics")]
    pub(crate) no_endpoints: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let interval = seconds.and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok());
    interval.ok_or_else(|| format!("\"{text}\" is not a number of seconds from 0.1 to 3600"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_version_is_a_major_number_with_an_optional_minor() {
        assert_eq!(Api::parse("2"), Ok(Api { major: 2, minor: None }));
        assert_eq!(Api::parse("u1.2"), Ok(Api { major: 1, minor: Some(2) }));
        for wrong in ["", "u", "1.", ".2", "1.2.3", "+1", "k1.2", "70000", "0", "3.0"] {
            assert!(Api::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!((Api { major: 2, minor: Some(0) }).to_string() + &Api { major: 2, minor: None }.to_string(), "2.02");
    }

    #[test]
    fn intervals_are_decimal_seconds() {
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("3600"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "0", "0.09", "3600.1", "-1", "nan", "inf", "2s", "1e400"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
