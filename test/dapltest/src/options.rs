//! Parses the command line into a command: a test with its options. Reports invalid arguments.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, Parser, ValueEnum};
use dat_abi::*;

use crate::amounts::{self, Extent};
use crate::common::Common;
use crate::functional::Choice;
use crate::limits::{self, Limit};
use crate::operation::{self, Operation};
use crate::performance::{self, Connects};
use crate::script;
use crate::wire::{Performance, Transaction};

#[cfg(test)]
mod tests;

/// Default port of a server.
const PORT: u64 = 45_278;

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Test {
    /// server: runs tests for clients until a client ends it
    #[value(name = "S")]
    Server,
    /// quit: ends a server after its running tests
    #[value(name = "Q")]
    Quit,
    /// transaction: transfers data between client and server as OPERATIONS specify
    #[value(name = "T")]
    Transaction,
    /// performance: measures the time of one operation
    #[value(name = "P")]
    Performance,
    /// limits: creates objects until a call fails; needs no server
    #[value(name = "L")]
    Limits,
    /// functional: checks the results of calls; needs no server
    #[value(name = "F")]
    Functional,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Service {
    /// high throughput
    #[value(name = "HT")]
    Throughput,
    /// low latency
    #[value(name = "LL")]
    Latency,
    /// economy
    #[value(name = "EC")]
    Economy,
    /// premium
    #[value(name = "PM")]
    Premium,
    /// best effort
    #[value(name = "BE")]
    Best,
}

const AFTER: &str = "\
OPERATIONS of -T T:
  client|server SR|RR|RW [BYTES [SEGMENTS]] [-f] [-p] ...
  Each thread does all of them on each of its endpoints, and repeats this -i
  times. SR: send and receive, RR: RDMA read, RW: RDMA write. Default: 4096
  bytes in 1 segment. -p: poll for the completion. -f, on a client SR and on
  the server SR after it: fetch the completion of the send together with that
  of the next receive. Without -V, each side must do at least one SR.
OPERATION of -T P:
  SR|RR|RW [BYTES [SEGMENTS]], or connect, which connects and disconnects one
  endpoint at a time.
LIMITS of -T L; default: all of
  limit_ia limit_pz limit_cno limit_evd limit_ep limit_rsp limit_psp
  limit_lmr limit_rmr limit_rpost limit_size_lmr
CASES of -T F; default: all
  A group, such as pz, or one case of a group, such as pz:2. --list prints all.

Exit status: 0 for success; 1 if a test failed or an error occurred; 2 if the
command line is invalid.";

#[derive(Debug, Parser)]
#[command(name = "dapltest", bin_name = "dapltest1", about = "Tests an interface adapter through uDAPL", after_help = AFTER, version)]
#[command(disable_version_flag = true, args_override_self = true, max_term_width = 80)]
struct Arguments {
    /// Test to run
    #[arg(short = 'T', value_enum, ignore_case = true, default_value = "S")]
    test: Test,
    /// Name of the interface adapter in dat.conf
    #[arg(short = 'D', value_name = "DEVICE", default_value = "sm0")]
    device: String,
    /// Port (connection qualifier) of the server
    #[arg(short = 'n', value_name = "PORT", default_value_t = PORT)]
    port: u64,
    /// Print what the test does: attempts to connect, operations, requests of clients, limits and cases
    #[arg(short = 'd', action = ArgAction::Count)]
    debug: u8,
    /// Service level of connections
    #[arg(short = 'R', value_enum, ignore_case = true, default_value = "BE")]
    service: Service,
    /// File with more arguments, which are appended to those of the command line
    #[arg(short = 'f', value_name = "SCRIPT")]
    script: Option<OsString>,
    /// T, P, Q: host name or address of the server
    #[arg(short = 's', value_name = "SERVER")]
    server: Option<String>,
    /// T, P: number of iterations [default: 1000]
    #[arg(short = 'i', value_name = "ITERATIONS")]
    iterations: Option<u32>,
    /// T: number of threads [default: 1]
    #[arg(short = 't', value_name = "THREADS")]
    threads: Option<u32>,
    /// T: number of endpoints per thread; L: number of sets of objects to create before the test [default: 1]
    #[arg(short = 'w', value_name = "WIDTH")]
    width: Option<u32>,
    /// T: wait for completions on a consumer notification object (CNO)
    #[arg(short = 'Q')]
    notified: bool,
    /// T: check all received data
    #[arg(short = 'V')]
    validate: bool,
    /// T: poll for completions
    #[arg(short = 'P')]
    poll: bool,
    /// P: b waits for completions, p polls for them [default: b]; L: maximum number of objects to create
    #[arg(short = 'm', value_name = "MODE|MAXIMUM")]
    maximum: Option<String>,
    /// P: measure each of these sizes in bytes: a list such as 64,4K,1M, or a range such as 1..1M, in which each size
    /// is twice the previous one
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    sizes: Option<String>,
    /// P: measure each size for this time, such as 500ms, 10s or 2m, instead of for -i operations
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<String>,
    /// P: number of operations before the measurement begins [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    warm_up: Option<u32>,
    /// P: both sides start operations at the same time
    #[arg(long)]
    bidirectional: bool,
    /// P: number of operations in flight, at most half of the adapter's max_dto_per_ep [default: 64]
    #[arg(short = 'p', value_name = "PIPELINE")]
    pipeline: Option<u32>,
    /// F: print the name of each passed case
    #[arg(short = 'v')]
    verbose: bool,
    /// F: print the names of all cases, and run none
    #[arg(long)]
    list: bool,
    /// Fail if an expected event does not arrive within this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
    /// S: drop a client that does not send its version, or then its request, within this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    greeting: u32,
    /// T, P, Q: number of attempts to connect, one per second, while no server listens
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=3600))]
    tries: u32,
    /// Print results to standard output, one JSON object per test
    #[arg(long)]
    json: bool,
    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    version: (),
    #[arg(trailing_var_arg = true, value_name = "OPERATIONS|LIMITS|CASES")]
    words: Vec<String>,
}

/// A test with its options, or a command without a test.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Serve,
    Quit { host: String },
    Transaction { host: String, test: Transaction },
    Performance { host: String, test: performance::Measurements },
    Limits { width: usize, maximum: Option<usize>, limits: Vec<Limit> },
    Functional { choices: Vec<Choice>, is_verbose: bool },
    List,
}

/// Parses the arguments into a command. Returns clap's help or error otherwise.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<(Common, Command), clap::Error> {
    let mut read = Arguments::try_parse_from(&arguments)?;
    if let Some(file) = read.script.take() {
        let wrong = |reason: String| error(&format!("{}: {reason}", file.to_string_lossy()));
        let text = std::fs::read_to_string(&file).map_err(|reason| wrong(reason.to_string()))?;
        let words = script::words(&text).map_err(wrong)?;
        read = Arguments::try_parse_from(arguments.iter().cloned().chain(words.into_iter().map(OsString::from)))?;
        if read.script.as_ref() != Some(&file) {
            return Err(wrong("a script cannot contain -f".to_owned()));
        }
    }
    let command = read.selected().map_err(|reason| error(&reason))?;
    Ok((read.common(), command))
}

fn error(reason: &str) -> clap::Error {
    Arguments::command().error(clap::error::ErrorKind::ValueValidation, reason)
}

impl Arguments {
    fn common(&self) -> Common {
        let qos = match self.service {
            Service::Throughput => DAT_QOS_HIGH_THROUGHPUT,
            Service::Latency => DAT_QOS_LOW_LATENCY,
            Service::Economy => DAT_QOS_ECONOMY,
            Service::Premium => DAT_QOS_PREMIUM,
            Service::Best => DAT_QOS_BEST_EFFORT,
        };
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Common {
            device: self.device.clone(),
            port: self.port,
            debug: self.debug,
            qos,
            limit: seconds(self.timeout),
            greeting: seconds(self.greeting),
            tries: self.tries,
            is_json: self.json,
        }
    }

    fn selected(&self) -> Result<Command, String> {
        self.refuse_options_of_other_tests()?;
        if self.list {
            return Ok(Command::List);
        }
        match self.test {
            Test::Server => Ok(Command::Serve),
            Test::Quit => Ok(Command::Quit { host: self.host()? }),
            Test::Transaction => Ok(Command::Transaction { host: self.host()?, test: self.transaction()? }),
            Test::Performance => Ok(Command::Performance { host: self.host()?, test: self.performance()? }),
            Test::Limits => Ok(Command::Limits {
                width: self.width.unwrap_or(1).clamp(1, 1024) as usize,
                maximum: self.most()?,
                limits: limits::parse(&self.words)?,
            }),
            Test::Functional => {
                let choices = self.words.iter().map(|word| Choice::parse(word)).collect::<Result<_, _>>()?;
                Ok(Command::Functional { choices, is_verbose: self.verbose })
            }
        }
    }

    /// Refuses options that apply only to other tests.
    fn refuse_options_of_other_tests(&self) -> Result<(), String> {
        use Test::*;
        let given = [
            ("-s", self.server.is_some(), &[Quit, Test::Transaction, Test::Performance][..]),
            ("-i", self.iterations.is_some(), &[Test::Transaction, Test::Performance]),
            ("-t", self.threads.is_some(), &[Test::Transaction]),
            ("-w", self.width.is_some(), &[Test::Transaction, Limits]),
            ("-Q", self.notified, &[Test::Transaction]),
            ("-V", self.validate, &[Test::Transaction]),
            ("-P", self.poll, &[Test::Transaction]),
            ("-m", self.maximum.is_some(), &[Test::Performance, Limits]),
            ("-p", self.pipeline.is_some(), &[Test::Performance]),
            ("--sizes", self.sizes.is_some(), &[Test::Performance]),
            ("--duration", self.duration.is_some(), &[Test::Performance]),
            ("--warm-up", self.warm_up.is_some(), &[Test::Performance]),
            ("--bidirectional", self.bidirectional, &[Test::Performance]),
            ("-v", self.verbose, &[Functional]),
            ("--list", self.list, &[Functional]),
            ("an operand", !self.words.is_empty(), &[Test::Transaction, Test::Performance, Limits, Functional]),
        ];
        match given.iter().find(|(_, is_given, tests)| *is_given && !tests.contains(&self.test)) {
            Some((option, ..)) => {
                Err(format!("{option} cannot be used with this test; dapltest -h lists the options of each test"))
            }
            None => Ok(()),
        }
    }

    fn host(&self) -> Result<String, String> {
        self.server.clone().ok_or_else(|| "-s SERVER is needed, the host or address of the server".to_owned())
    }

    fn transaction(&self) -> Result<Transaction, String> {
        let test = Transaction {
            threads: self.threads.unwrap_or(1),
            endpoints: self.width.unwrap_or(1),
            iterations: self.iterations.unwrap_or(1000),
            validates: self.validate,
            polls: self.poll,
            is_notified: self.notified,
            operations: operation::parse(&self.words)?,
        };
        test.check()?;
        Ok(test)
    }

    fn performance(&self) -> Result<performance::Measurements, String> {
        let polls = match self.maximum.as_deref() {
            None | Some("b") => false,
            Some("p") => true,
            Some(mode) => return Err(format!("-m {mode}: the mode must be b (wait) or p (poll)")),
        };
        let extent = match (&self.duration, self.iterations) {
            (Some(_), Some(_)) => return Err("-i and --duration cannot be used together".to_owned()),
            (Some(text), None) => Extent::Time(amounts::duration(text)?),
            (None, count) => Extent::Operations(count.unwrap_or(1000)),
        };
        extent.check()?;
        let warm_up = self.warm_up.unwrap_or(0);
        if let [word, rest @ ..] = &self.words[..]
            && word.eq_ignore_ascii_case("connect")
        {
            self.refuse_options_of_transfers(rest)?;
            return Ok(performance::Measurements::Connects(Connects { extent, warm_up, polls }));
        }
        let test = |operation| {
            // 0 selects the default pipeline depth.
            let (pipeline, is_bidirectional) = (self.pipeline.unwrap_or(0), self.bidirectional);
            let test = Performance { extent, warm_up, pipeline, polls, is_bidirectional, operation };
            test.check().map(|()| test)
        };
        self.operations()?.into_iter().map(test).collect::<Result<_, _>>().map(performance::Measurements::Transfers)
    }

    /// Returns the operation once for each size.
    fn operations(&self) -> Result<Vec<Operation>, String> {
        let operation = operation::parse_one(&self.words)?;
        let Some(sizes) = &self.sizes else { return Ok(vec![operation]) };
        if self.words.len() > 1 {
            return Err(format!("--sizes {sizes} cannot be used with the size in \"{}\"", self.words.join(" ")));
        }
        Ok(amounts::sizes(sizes)?.into_iter().map(|size| Operation { size, ..operation }).collect())
    }

    fn refuse_options_of_transfers(&self, rest: &[String]) -> Result<(), String> {
        let given = [
            ("--sizes", self.sizes.is_some()),
            ("--bidirectional", self.bidirectional),
            ("-p", self.pipeline.is_some()),
        ];
        if let Some(word) = rest.first() {
            return Err(format!("\"{word}\": connect takes no parameters, and options must precede it"));
        }
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(format!("{option} cannot be used with connect")),
            None => Ok(()),
        }
    }

    fn most(&self) -> Result<Option<usize>, String> {
        let most = |text: &String| match text.parse() {
            Ok(0) | Err(_) => Err(format!("-m {text}: the maximum number of objects must be 1 or more")),
            Ok(most) => Ok(most),
        };
        self.maximum.as_ref().map(most).transpose()
    }
}
