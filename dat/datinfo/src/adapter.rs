//! Opens adapters in child processes, and derives from the output and exit status of each child whether the adapter
//! opens, and if not, why.
#![forbid(unsafe_code)]

use dat_settings::log_line::text_of;
use serde::Serialize;
use serde_json::{Value, json};

use crate::child::{self, ChildExit, ChildResult};
use crate::options::{Api, Options};
use crate::registry::ReportedEntry;

/// Maximum number of concurrent child processes.
const AT_ONCE: usize = 4;

#[derive(Clone, Debug)]
pub(crate) enum OpenResult {
    /// The adapter opens: its attributes, and the error of its close, if any.
    Yes(Value, Option<String>),
    /// The adapter does not open.
    No(OpenError),
}

/// Reason why an adapter cannot be opened.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct OpenError {
    /// The kind reported by libdat (`name`, `library`, `device`, ...), or `crash`, `hang`, `error`. Empty if a libdat
    /// of another project refuses the open.
    pub(crate) kind: String,
    /// Names of the return code's type and subtype; empty if the open returned no code.
    pub(crate) code: String,
    /// The return code in hexadecimal; empty if the open returned no code.
    number: String,
    pub(crate) cause: String,
    pub(crate) remedy: String,
}

/// Opens each adapter, [`AT_ONCE`] at a time. Returns the results in the order of the entries.
pub(crate) fn open_all(options: &Options, entries: &[ReportedEntry]) -> Vec<OpenResult> {
    let mut all = Vec::new();
    for some in entries.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let open = |entry: &ReportedEntry| {
                let name = entry.name.clone();
                // With --all, the entries have different API versions, so each is opened with its own version.
                let own = entry.api().filter(|_| options.all).map(|(major, minor)| Api { major, minor: Some(minor) });
                scope.spawn(move || open(options, &name, own.unwrap_or(options.api)))
            };
            let threads: Vec<_> = some.iter().map(open).collect();
            all.extend(threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| OpenResult::No(broken("the thread of the probe panicked")))
            }));
        });
    }
    all
}

fn open(options: &Options, name: &str, api: Api) -> OpenResult {
    match child::probe(options, Some(name), api, None) {
        Ok(outcome) => read(outcome),
        Err(error) => OpenResult::No(broken(&error)),
    }
}

/// Error for a probe without a valid answer.
fn broken(cause: &str) -> OpenError {
    OpenError { kind: "error".to_owned(), cause: cause.to_owned(), ..OpenError::default() }
}

fn read(outcome: ChildResult) -> OpenResult {
    let ChildResult { mut answers, stderr, end } = outcome;
    let said = |cause: String| match stderr.trim().lines().last() {
        Some(line) => format!("{cause}; its last message: {}", text_of(line)),
        None => cause,
    };
    let unanswered = |end: ChildExit, doing: &str| match end {
        ChildExit::Well => ("error", said(format!("the probe ended without an answer {doing}"))),
        ChildExit::Badly(how) => ("crash", said(format!("{how} {doing}"))),
        ChildExit::Hung(seconds) => ("hang", said(format!("no answer within {seconds} s {doing}"))),
    };
    if answers.is_empty() {
        let (kind, cause) = unanswered(end, "while opening or querying the adapter");
        let remedy =
            "disable its line in dat.conf (nondefault), and report this to the author of the provider".to_owned();
        return OpenResult::No(OpenError { kind: kind.to_owned(), remedy, ..broken(&cause) });
    }
    let first = answers.remove(0);
    let text = |name: &str| first[name].as_str().unwrap_or_default().to_owned();
    if let Some(error) = first["error"].as_str() {
        return OpenResult::No(broken(error));
    }
    if first["opened"].as_bool() == Some(true) {
        let closed = match answers.first() {
            Some(answer) if answer["closed"].as_bool() == Some(true) => None,
            Some(answer) => Some(format!("its close returned {}", answer["code"].as_str().unwrap_or("an error"))),
            None => Some(unanswered(end, "while closing the adapter").1),
        };
        return OpenResult::Yes(first, closed);
    }
    let code = format!("{} {}", text("type"), text("subtype")).trim_end().to_owned();
    let cause = match text("cause") {
        cause if cause.is_empty() => said(format!("libdat returned {code}")),
        cause => cause,
    };
    OpenResult::No(OpenError { kind: text("kind"), code, number: text("code"), cause, remedy: text("remedy") })
}

impl OpenResult {
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, OpenResult::Yes(..))
    }

    /// Adds the result to the JSON object of the adapter's entry.
    pub(crate) fn add_to(&self, entry: &mut Value, with_attributes: bool) {
        entry["opens"] = json!(self.is_open());
        match self {
            OpenResult::Yes(attributes, closed) => {
                entry["close"] = json!(closed);
                entry["address"] = attributes["address"].clone();
                if with_attributes {
                    entry["attributes"] = attributes.clone();
                }
            }
            OpenResult::No(reason) => entry["reason"] = json!(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(answers: &[Value], end: ChildExit) -> OpenResult {
        read(ChildResult { answers: answers.to_vec(), stderr: "a\nb\n".to_owned(), end })
    }

    fn reason(opened: OpenResult) -> OpenError {
        match opened {
            OpenResult::No(reason) => reason,
            OpenResult::Yes(..) => panic!("{opened:?}"),
        }
    }

    #[test]
    fn failure_without_an_answer_names_how_the_probe_process_ended() {
        let hung = reason(outcome(&[], ChildExit::Hung(3)));
        assert_eq!(
            (hung.kind.as_str(), hung.cause.as_str()),
            ("hang", "no answer within 3 s while opening or querying the adapter; its last message: b")
        );
        let died = reason(outcome(&[], ChildExit::Badly("it died".to_owned())));
        assert_eq!(
            (died.kind.as_str(), died.cause.starts_with("it died while opening or querying the adapter")),
            ("crash", true)
        );
        assert_eq!(reason(outcome(&[], ChildExit::Well)).kind, "error");
    }

    #[test]
    fn refused_open_shows_the_cause_from_libdat_or_its_last_message() {
        let answer = json!({"opened": false, "code": "0x800a0000", "type": "T", "subtype": "S", "kind": "library",
                            "cause": "it is not there", "remedy": "bring it"});
        let text = reason(outcome(&[answer], ChildExit::Well));
        assert_eq!(
            (text.kind.as_str(), text.code.as_str(), text.cause.as_str(), text.remedy.as_str()),
            ("library", "T S", "it is not there", "bring it")
        );
        let foreign = reason(outcome(&[json!({"opened": false, "type": "T", "subtype": ""})], ChildExit::Well));
        assert_eq!(foreign.cause, "libdat returned T; its last message: b");
    }

    #[test]
    fn adapter_whose_close_fails_counts_as_usable() {
        let opened = json!({"opened": true});
        let closed = |answers: &[Value], end| match outcome(answers, end) {
            OpenResult::Yes(_, closed) => closed,
            OpenResult::No(reason) => panic!("{reason:?}"),
        };
        assert_eq!(closed(&[opened.clone(), json!({"closed": true})], ChildExit::Well), None);
        assert!(
            closed(std::slice::from_ref(&opened), ChildExit::Hung(1))
                .is_some_and(|why| why.contains("while closing the adapter"))
        );
        assert!(
            closed(&[opened, json!({"closed": false, "code": "X"})], ChildExit::Well)
                .is_some_and(|why| why.contains('X'))
        );
    }
}
