//! Prototypes from the installed headers, for SYNOPSIS and for checking PARAMETERS.
#![forbid(unsafe_code)]

/// A function of a header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Prototype {
    /// Its name.
    pub(crate) name: String,
    /// Its C declaration, in lines.
    pub(crate) lines: Vec<String>,
    /// The names of its parameters, in order.
    pub(crate) parameters: Vec<String>,
}

/// All functions that a header declares.
pub(crate) fn prototypes(header: &str) -> Vec<Prototype> {
    header.split("\nextern DAT_RETURN ").skip(1).filter_map(prototype).collect()
}

fn prototype(text: &str) -> Option<Prototype> {
    let (name, rest) = text.split_once('(')?;
    let (inside, _) = rest.split_once(");")?;
    let declared: Vec<String> = inside.split(',').map(declaration).collect();
    let last = |text: &String| {
        let name = text.trim_end_matches("[]").rsplit([' ', '*']).next().unwrap_or_default();
        name.trim_end_matches(')').to_owned()
    };
    let parameters = declared.iter().map(last).collect();
    let mut lines = vec![format!("DAT_RETURN {name}(")];
    let count = declared.len();
    lines.extend(declared.into_iter().enumerate().map(|(at, one)| {
        let end = if at + 1 == count { ");" } else { "," };
        format!("    {one}{end}")
    }));
    Some(Prototype { name: name.to_owned(), lines, parameters })
}

/// One parameter, without the words that only say its direction, and with single blanks.
fn declaration(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !["IN", "OUT", "INOUT"].contains(word));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_and_comments_are_left_out() {
        let header = "\n/* x */\nextern DAT_RETURN dat_a(\n    IN    const T  *one,\n    INOUT U two[]);\nextern DAT_RETURN dat_b(IN V v);\n";
        let [a, b] = &prototypes(header)[..] else { panic!() };
        assert_eq!((a.name.as_str(), &a.parameters[..]), ("dat_a", &["one".to_owned(), "two".to_owned()][..]));
        assert_eq!(a.lines, ["DAT_RETURN dat_a(", "    const T *one,", "    U two[]);"]);
        assert_eq!(b.lines, ["DAT_RETURN dat_b(", "    V v);"]);
    }
}
