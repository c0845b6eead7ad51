//! The process under test: loads the library, runs one role (or both, as threads), writes its result, and exits.
//!
//! Only the driver starts it. Its standard input is the channel to the partner process.
#![forbid(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::case::{Body, Case};
use crate::ctx::{Ctx, Mode, OtherEnded, Role, Unsupported};
use crate::ending::Ending;
use crate::{api, cases, flight, kit, os};

/// Time limit for a role to end after its partner has failed.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// The deadline of a case is this long before the watchdog. A role that waits for the other role until the deadline
/// can then still report its failure.
const MARGIN: Duration = Duration::from_secs(3);

/// Arguments from the driver to a process.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) case: String,
    /// Area of the case. Only this area's list is created: creating all lists would take longer than most cases.
    pub(crate) area: usize,
    pub(crate) mode: Mode,
    pub(crate) role: Role,
    pub(crate) provider: String,
    pub(crate) libdat: String,
    pub(crate) first_qual: u64,
    /// Factor for time limits.
    pub(crate) time_factor: u32,
    /// Path of the flight record; the result is written beside it.
    pub(crate) record: PathBuf,
}

impl Task {
    /// Encodes the task as program arguments.
    pub(crate) fn to_words(&self) -> Vec<String> {
        let record = self.record.to_string_lossy().into_owned();
        let words = [self.mode.word(), self.role.word(), &self.provider, &self.libdat, &record];
        let numbers = [self.area as u64, self.first_qual, u64::from(self.time_factor)];
        let mut all = vec!["worker".to_owned(), self.case.clone()];
        all.extend(numbers.map(|number| number.to_string()));
        all.extend(words.map(str::to_owned));
        all
    }

    /// Decodes the task from program arguments.
    pub(crate) fn from_words(words: &[String]) -> Option<Self> {
        let [case, area, first_qual, time_factor, mode, role, provider, libdat, record] = words else { return None };
        Some(Task {
            case: case.clone(),
            area: area.parse().ok()?,
            mode: if mode == "two" { Mode::Two } else { Mode::One },
            role: if role == "server" { Role::Server } else { Role::Client },
            provider: provider.clone(),
            libdat: libdat.clone(),
            first_qual: first_qual.parse().ok()?,
            time_factor: time_factor.parse().ok()?,
            record: record.into(),
        })
    }

    /// Path of the result file.
    pub(crate) fn ending(&self) -> PathBuf {
        self.record.with_extension("ending")
    }
}

/// Runs a role and ends the process.
pub(crate) fn main(task: &Task) -> ! {
    os::die_with_parent();
    watch_panics();
    let _ = crate::kit::PROVIDER.set(task.provider.clone());
    crate::kit::TIMEOUT_FACTOR.store(task.time_factor, std::sync::atomic::Ordering::Relaxed);
    let ending = match prepare(task) {
        Ok(case) => play(task, case),
        Err(why) => Ending::Failed(why),
    };
    if let Err(error) = std::fs::write(task.ending(), ending.to_text()) {
        eprintln!("{}: {error}", task.ending().display());
    }
    // A role may still be asleep in the library. An orderly exit would test the library's exit handling, which is not
    // the claim.
    if matches!(ending, Ending::Failed(_)) {
        os::leave(1);
    }
    std::process::exit(0)
}

fn prepare(task: &Task) -> Result<Case, String> {
    flight::open(&task.record).map_err(|error| format!("{}: {error}", task.record.display()))?;
    api::load(&task.libdat)?;
    let area = cases::area(task.area);
    area.into_iter().find(|case| case.name == task.case).ok_or_else(|| format!("no case {}", task.case))
}

fn play(task: &Task, case: Case) -> Ending {
    if let Some(absent) = case.needs.iter().find(|need| !kit::has(&task.provider, **need)) {
        return Ending::Unsupported(format!("{absent:?}"));
    }
    let channel = || io::stdin().as_fd().try_clone_to_owned().ok().map(UnixStream::from);
    match (&case.body, task.mode) {
        (Body::Local(body), Mode::One) => run(body, &ctx(task, &case, task.role, None)),
        // For a local case the channel only makes both processes start at the same time.
        (Body::Local(body), Mode::Two) => {
            let (start, own) = (ctx(task, &case, task.role, channel()), ctx(task, &case, task.role, None));
            catch(|| start.meet()).worse(run(body, &own))
        }
        (Body::Pair(client, _), Mode::Two) if task.role == Role::Client => {
            run(client, &ctx(task, &case, Role::Client, channel()))
        }
        (Body::Pair(_, server), Mode::Two) => run(server, &ctx(task, &case, Role::Server, channel())),
        (Body::Pair(..), Mode::One) => threads(task, case),
    }
}

/// Runs both roles, each in a thread. If the first result is not a success, the other role gets only a short time to
/// end.
fn threads(task: &Task, case: Case) -> Ending {
    let (one, other) = UnixStream::pair().expect("the system permits another socket pair");
    let case = Arc::new(case);
    let (sender, receive) = mpsc::channel();
    for (role, channel) in [(Role::Client, one), (Role::Server, other)] {
        let (case, sender, ctx) = (Arc::clone(&case), sender.clone(), ctx(task, &case, role, Some(channel)));
        let run_role = move || {
            let Body::Pair(client, server) = &case.body else {
                unreachable!("this function runs only cases with two roles")
            };
            let ending = run(if role == Role::Client { client } else { server }, &ctx);
            // Close the channel before this role's result is reported, so that the partner sees the end.
            drop(ctx);
            let _ = sender.send(ending);
        };
        std::thread::Builder::new()
            .name(role.word().to_owned())
            .spawn(run_role)
            .expect("the system permits another thread");
    }
    let first = receive.recv().expect("a role thread sends its result before it ends");
    let second = match first {
        Ending::Passed => receive.recv().expect("a role thread sends its result before it ends"),
        _ => match receive.recv_timeout(GRACE * task.time_factor) {
            Ok(second) => second,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ending::Followed,
        },
    };
    first.worse(second)
}

fn ctx(task: &Task, case: &Case, role: Role, channel: Option<UnixStream>) -> Ctx {
    let is_twin = role == Role::Server && matches!(case.body, Body::Local(_));
    Ctx {
        mode: task.mode,
        role,
        provider: task.provider.clone(),
        case: case.name.to_string(),
        shares_ia: case.shares_ia && task.mode == Mode::One,
        ending: task.ending(),
        first_qual: task.first_qual + if is_twin { 16 } else { 0 },
        deadline: Instant::now() + Duration::from_secs(case.limit) * task.time_factor - MARGIN,
        channel,
    }
}

fn run(body: &(dyn Fn(&Ctx) + Send + Sync), ctx: &Ctx) -> Ending {
    let ending = catch(|| body(ctx));
    match ending {
        Ending::Failed(why) if ctx.channel.is_some() => Ending::Failed(format!("{}: {why}", ctx.role.word())),
        _ => ending,
    }
}

fn catch(body: impl FnOnce()) -> Ending {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(()) => Ending::Passed,
        Err(payload) if payload.is::<OtherEnded>() => Ending::Followed,
        Err(payload) => match payload.downcast::<Unsupported>() {
            Ok(what) => Ending::Unsupported(what.0),
            Err(payload) => Ending::Failed(first_panic().unwrap_or_else(|| text(&*payload))),
        },
    }
}

thread_local! {
    static OWN: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// First panic of a thread that a case started. Joining such a thread reports the panic without its message.
static OTHERS: Mutex<Option<String>> = Mutex::new(None);

fn first_panic() -> Option<String> {
    let other = OTHERS.lock().unwrap_or_else(PoisonError::into_inner).take();
    OWN.take().filter(|own| other.is_none() || !own.contains("a scoped thread panicked")).or(other)
}

/// Stores location and reason of a panic instead of printing them.
fn watch_panics() {
    let main = std::thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
        let message = format!("{place}: {}", text(panic.payload()));
        let thread = std::thread::current();
        let is_role = thread.id() == main || matches!(thread.name(), Some("client" | "server"));
        if !is_role {
            _ = OTHERS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(message);
        } else {
            OWN.with_borrow_mut(|own| _ = own.get_or_insert(message));
        }
    }));
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked").to_owned()
}
