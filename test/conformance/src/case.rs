//! A case: its name, the section of the specification that it proves, one body (local) or two bodies (pair), a time
//! limit, and the features and modes that it needs. Cases keep no state between runs.
#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::ctx::{Ctx, Mode};

/// Body of one role.
pub(crate) type RoleBody = Box<dyn Fn(&Ctx) + Send + Sync>;

/// The bodies of a case, one per role.
pub(crate) enum Body {
    /// One role. In mode `two` both processes run it at the same time.
    Local(RoleBody),
    /// Two roles. In mode `one` they are two threads of one process.
    Pair(RoleBody, RoleBody),
}

/// An optional feature of a library. Without it, a case that needs it counts as unsupported, not as failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    /// Shared receive queues.
    Srq,
    /// RMRs that can be bound.
    Rmr,
    /// Service points that create the EP.
    ProviderEp,
    /// More than one path to a peer.
    Multipath,
    /// EVDs that merge DTO and connection events.
    Merging,
}

/// A claim and the bodies that prove it.
pub(crate) struct Case {
    pub(crate) name: Cow<'static, str>,
    pub(crate) section: Cow<'static, str>,
    /// Index of the case's area.
    pub(crate) area: usize,
    pub(crate) body: Body,
    /// Time limit of the watchdog in seconds: 20 by default, at most 60.
    pub(crate) limit: u64,
    pub(crate) needs: Vec<Need>,
    /// In mode `one` both roles use the same IA.
    pub(crate) shares_ia: bool,
    /// If set, the case runs in this mode only.
    pub(crate) only: Option<Mode>,
}

/// Creates a case of one role.
pub(crate) fn local(body: impl Fn(&Ctx) + Send + Sync + 'static) -> Case {
    Case::of_body(Body::Local(Box::new(body)))
}

/// Creates a case of two roles; by convention the client connects and the server listens.
pub(crate) fn pair(
    client: impl Fn(&Ctx) + Send + Sync + 'static,
    server: impl Fn(&Ctx) + Send + Sync + 'static,
) -> Case {
    Case::of_body(Body::Pair(Box::new(client), Box::new(server)))
}

impl Case {
    fn of_body(body: Body) -> Self {
        Case {
            name: "".into(),
            section: "".into(),
            area: 0,
            body,
            limit: 20,
            needs: Vec::new(),
            shares_ia: false,
            only: None,
        }
    }

    /// Sets the case's name, which must be unique in the suite.
    pub(crate) fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the section that the case proves, as file and number: `spec/events 6.1` is section 6.1 of
    /// docs/spec/events.md.
    pub(crate) fn proves(mut self, section: impl Into<Cow<'static, str>>) -> Self {
        self.section = section.into();
        self
    }

    /// Sets a longer limit of the watchdog.
    pub(crate) fn limit(mut self, seconds: u64) -> Self {
        assert!(seconds <= 60, "the time limit of a case is at most 60 s");
        self.limit = seconds;
        self
    }

    /// Adds a feature that the case needs.
    pub(crate) fn needs(mut self, need: Need) -> Self {
        self.needs.push(need);
        self
    }

    /// Makes both roles use the same IA in mode `one`.
    pub(crate) fn shares_ia(mut self) -> Self {
        self.shares_ia = true;
        self
    }

    /// Runs the case only with two processes, for example because the case kills a process.
    pub(crate) fn only_two(mut self) -> Self {
        self.only = Some(Mode::Two);
        self
    }

    /// Runs the case only with one process.
    pub(crate) fn only_one(mut self) -> Self {
        self.only = Some(Mode::One);
        self
    }

    /// Returns the modes in which the case runs.
    pub(crate) fn modes(&self) -> Vec<Mode> {
        [Mode::One, Mode::Two].into_iter().filter(|mode| self.only.is_none_or(|only| only == *mode)).collect()
    }
}

/// Builds a list of cases: `"section": name` for a local case whose body is the function `name`, or `"section": name
/// => case`.
macro_rules! cases {
    (@ $all:ident) => {};
    (@ $all:ident $section:literal : $name:ident => $case:expr $(, $($rest:tt)*)?) => {
        $all.extend([$case.named(stringify!($name)).proves($section)]);
        cases!(@ $all $($($rest)*)?);
    };
    (@ $all:ident $section:literal : $name:ident $(, $($rest:tt)*)?) => {
        $all.extend([$crate::case::local($name).named(stringify!($name)).proves($section)]);
        cases!(@ $all $($($rest)*)?);
    };
    ($($list:tt)*) => {{
        #[allow(unused_mut, reason = "the list may be empty")]
        let mut all: Vec<$crate::case::Case> = Vec::new();
        cases!(@ all $($list)*);
        all
    }};
}
pub(crate) use cases;
