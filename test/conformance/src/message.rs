//! Messages between the driver and the fork server, over a stream socket: a length, then words that are separated by
//! NUL bytes, because paths and names contain none.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::worker::Task;

/// Requests of the driver.
pub(crate) enum Request {
    /// Start the processes of a run, one per task.
    Start(usize, Vec<Task>),
    /// Kill the processes of a run that have not ended, with their process groups.
    Kill(usize),
}

/// Reports of the fork server about the processes of a run.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Report {
    /// The processes were started, with these ids.
    Started(Vec<u32>),
    /// The process of the task with this index has ended.
    Ended(usize, ExitStatus),
    /// The processes could not be started, for this reason. Those that were started are killed.
    Failed(String),
}

impl Request {
    /// Sends the request.
    pub(crate) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let words = match self {
            Self::Start(run, tasks) => {
                ["start".to_owned(), run.to_string()].into_iter().chain(tasks.iter().flat_map(Task::to_words)).collect()
            }
            Self::Kill(run) => vec!["kill".to_owned(), run.to_string()],
        };
        to.write_all(&encode(&words))
    }

    /// Decodes a request; `None` if it is invalid.
    pub(crate) fn from_words(words: &[String]) -> Option<Self> {
        let [kind, run, rest @ ..] = words else { return None };
        let run = run.parse().ok()?;
        match kind.as_str() {
            "start" => {
                rest.chunks(Task::WORDS).map(Task::from_words).collect::<Option<_>>().map(|all| Self::Start(run, all))
            }
            "kill" => Some(Self::Kill(run)),
            _ => None,
        }
    }
}

impl Report {
    /// Sends the report about a run.
    pub(crate) fn send(&self, run: usize, to: &mut impl Write) -> io::Result<()> {
        let mut words = vec![run.to_string()];
        match self {
            Self::Started(ids) => {
                words.push("started".to_owned());
                words.extend(ids.iter().map(u32::to_string));
            }
            Self::Ended(process, status) => {
                words.extend(["ended".to_owned(), process.to_string(), status.into_raw().to_string()]);
            }
            Self::Failed(why) => words.extend(["failed".to_owned(), why.clone()]),
        }
        to.write_all(&encode(&words))
    }

    /// Decodes the number of a run and a report about it; `None` if the message is invalid.
    pub(crate) fn from_words(words: &[String]) -> Option<(usize, Self)> {
        let [run, kind, rest @ ..] = words else { return None };
        let report = match (kind.as_str(), rest) {
            ("started", ids) => Self::Started(ids.iter().map(|id| id.parse().ok()).collect::<Option<_>>()?),
            ("ended", [process, status]) => {
                Self::Ended(process.parse().ok()?, ExitStatus::from_raw(status.parse().ok()?))
            }
            ("failed", [why]) => Self::Failed(why.clone()),
            _ => return None,
        };
        Some((run.parse().ok()?, report))
    }
}

fn encode(words: &[String]) -> Vec<u8> {
    let text = words.join("\0");
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// Received bytes that are not yet decoded.
#[derive(Default)]
pub(crate) struct Input(Vec<u8>);

impl Input {
    /// Reads what has arrived, and waits if nothing has. Returns whether the sender is still connected.
    pub(crate) fn read(&mut self, from: &mut impl Read) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let length = loop {
            match from.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                length => break length?,
            }
        };
        self.0.extend(&bytes[..length]);
        Ok(length > 0)
    }

    /// Removes the first complete message and returns its words.
    pub(crate) fn next(&mut self) -> Option<Vec<String>> {
        let (length, rest) = self.0.split_first_chunk()?;
        let text = rest.get(..u32::from_le_bytes(*length) as usize)?;
        let words = String::from_utf8_lossy(text).split('\0').map(str::to_owned).collect();
        let used = length.len() + text.len();
        self.0.drain(..used);
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctx::{Mode, Role};

    fn task(role: Role) -> Task {
        Task {
            case: "evd_wait".to_owned(),
            mode: Mode::Two,
            role,
            provider: "sm0".to_owned(),
            libdat: "lib dat\n.so".to_owned(),
            first_qual: 2048,
            time_factor: 5,
            record: "/dev/shm/x y/1-client.flight".into(),
        }
    }

    #[test]
    fn requests_arrive_in_any_pieces() {
        let mut bytes = Vec::new();
        Request::Start(7, vec![task(Role::Client), task(Role::Server)]).send(&mut bytes).unwrap();
        Request::Kill(7).send(&mut bytes).unwrap();
        let (mut input, mut all) = (Input::default(), Vec::new());
        for byte in bytes {
            assert!(input.read(&mut &[byte][..]).unwrap());
            all.extend(input.next().map(|words| Request::from_words(&words).unwrap()));
        }
        let [Request::Start(7, tasks), Request::Kill(7)] = &all[..] else { panic!("{} requests", all.len()) };
        assert_eq!(tasks[..], [task(Role::Client), task(Role::Server)]);
        assert!(!input.read(&mut &[][..]).unwrap());
    }

    #[test]
    fn reports_keep_ids_and_statuses() {
        let (killed, failed) = (ExitStatus::from_raw(9), ExitStatus::from_raw(1 << 8));
        let reports = || {
            let texts = [Report::Failed("out of memory (os error 12)".to_owned()), Report::Started(vec![4, 5])];
            texts.into_iter().chain([Report::Ended(0, killed), Report::Ended(1, failed)])
        };
        let mut bytes = Vec::new();
        reports().for_each(|report| report.send(3, &mut bytes).unwrap());
        let mut input = Input::default();
        input.read(&mut &bytes[..]).unwrap();
        let all = std::iter::from_fn(|| Report::from_words(&input.next()?));
        assert!(all.eq(reports().map(|report| (3, report))));
    }
}
