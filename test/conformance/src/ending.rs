//! The result of a role, which its process writes to a file for the driver.
#![forbid(unsafe_code)]

/// Result of a role.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    Passed,
    /// The case ended the process by a signal, as intended.
    Died,
    /// The role ended only because its partner had ended.
    Followed,
    Unsupported(String),
    Failed(String),
}

impl Ending {
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Passed => "passed\n".to_owned(),
            Self::Died => "died\n".to_owned(),
            Self::Followed => "followed\n".to_owned(),
            Self::Unsupported(what) => format!("unsupported\n{what}"),
            Self::Failed(why) => format!("failed\n{why}"),
        }
    }

    /// Decodes a result; `None` if the process wrote none.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once('\n')?;
        Some(match word {
            "passed" => Self::Passed,
            "died" => Self::Died,
            "followed" => Self::Followed,
            "unsupported" => Self::Unsupported(rest.to_owned()),
            _ => Self::Failed(rest.to_owned()),
        })
    }

    /// Returns the result of the two that explains the failure.
    pub(crate) fn worse(self, other: Self) -> Self {
        let rank = |ending: &Self| match ending {
            Self::Passed | Self::Died => 0,
            Self::Followed => 1,
            Self::Unsupported(_) => 2,
            Self::Failed(_) => 3,
        };
        if rank(&other) > rank(&self) { other } else { self }
    }
}
