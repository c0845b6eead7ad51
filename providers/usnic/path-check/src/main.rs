//! `dapl-path-check HOST [PORT]`: says what the path to a host carries on which somebody listens over `usnic`.
//!
//! Exit status: 0 all that this host would send arrives and comes back, 1 it does not, 2 it could not be found out.
#![forbid(unsafe_code)]

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use dapl_path_check::{PORT, check};

/// An answer is waited for so long; a datagram counts as lost after three of these.
const PATIENCE: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("dapl-path-check: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (host, port) = match words.as_slice() {
        [host] if !host.starts_with('-') => (host, PORT),
        [host, port] => (host, port.parse().map_err(|_| format!("\"{port}\" is not a port, from 1 to 65535"))?),
        _ => return Err(format!("usage: dapl-path-check HOST [PORT]; without PORT it is {PORT}")),
    };
    let mut addresses = (host.as_str(), port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
    let to: SocketAddr = addresses.next().ok_or_else(|| format!("{host} has no address"))?;
    let report = check(to, PATIENCE).map_err(|error| format!("{to}: {error}"))?;
    println!("{report}");
    Ok(report.is_whole())
}
