//! Why an open was refused: what of, the cause, and what helps; as one line for people and as fields for tools.
//!
//! `matching`, `loader` and `registry` find the causes, `report` tells them. Pure.
#![forbid(unsafe_code)]

use std::fmt;

/// A cause, and what helps.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Why {
    pub(crate) cause: String,
    /// Empty if the cause says it, or nothing is known to help.
    pub(crate) remedy: String,
}

impl Why {
    pub(crate) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into() }
    }

    /// Several in one: the causes as they come, each remedy once.
    pub(crate) fn all(several: Vec<Why>) -> Self {
        let mut remedies: Vec<String> = Vec::new();
        for why in &several {
            if !why.remedy.is_empty() && !remedies.contains(&why.remedy) {
                remedies.push(why.remedy.clone());
            }
        }
        let causes: Vec<_> = several.into_iter().map(|why| why.cause).collect();
        Self { cause: causes.join("; also "), remedy: remedies.join("; ") }
    }
}

/// Which of the reasons it is: each has its own return code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Nothing has this name.
    Name,
    /// Not in this major version.
    Major,
    /// Not in this minor version.
    Minor,
    /// Not thread-safe.
    ThreadSafety,
    /// No library that serves it.
    Library,
    /// Its provider does not open it.
    Device,
    /// It is being opened by the very call that asks.
    Busy,
}

impl Kind {
    /// For tools.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Major => "major-version",
            Self::Minor => "minor-version",
            Self::ThreadSafety => "thread-safety",
            Self::Library => "library",
            Self::Device => "device",
            Self::Busy => "busy",
        }
    }
}

/// One refusal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Refused {
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
    /// The line of a file that it is about; empty if there is none.
    pub(crate) place: String,
    pub(crate) why: Why,
}

impl Refused {
    /// Kind, name, place, cause, remedy.
    pub(crate) fn fields(&self) -> [String; 5] {
        let Self { kind, name, place, why } = self;
        let name = name.escape_ascii().to_string();
        [kind.word().to_owned(), name, place.clone(), why.cause.clone(), why.remedy.clone()]
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot open \"{}\": ", self.name.escape_ascii())?;
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.why.cause)?;
        if self.why.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.why.remedy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known_and_nothing_else() {
        let line = |place: &str, remedy: &str| {
            let why = Why::new("it is not there", remedy);
            Refused { kind: Kind::Library, name: b"a\tb".to_vec(), place: place.to_owned(), why }.to_string()
        };
        assert_eq!(line("", ""), r#"cannot open "a\tb": it is not there"#);
        assert_eq!(line("f:3", "bring it"), r#"cannot open "a\tb": f:3: it is not there; bring it"#);
    }

    #[test]
    fn several_causes_have_each_remedy_once() {
        let why = Why::all(vec![Why::new("a", "x"), Why::new("b", ""), Why::new("c", "x"), Why::new("d", "y")]);
        assert_eq!(why, Why::new("a; also b; also c; also d", "x; y"));
    }
}
