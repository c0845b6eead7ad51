//! Parses prototypes and type declarations in the installed headers: for SYNOPSIS and the check of PARAMETERS, for the
//! declarations that pages show, and for the differences between the versions of DAT.
#![forbid(unsafe_code)]

/// A function of a header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Prototype {
    pub(crate) name: String,
    /// C declaration in lines.
    pub(crate) lines: Vec<String>,
    /// Names of the parameters, in order.
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

/// Formats a parameter without the direction macros (IN, OUT), with single spaces.
fn declaration(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !["IN", "OUT", "INOUT"].contains(word));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a structure, union or enumeration as the header declares it, without comments; `None` if it is not
/// declared.
pub(crate) fn type_declaration(header: &str, name: &str) -> Option<Vec<String>> {
    let tag = format!("struct {} {{", name.to_ascii_lowercase());
    let lines: Vec<&str> = header.lines().collect();
    let (first, last) = match lines.iter().position(|line| *line == format!("}} {name};")) {
        Some(last) => {
            (lines[..last].iter().rposition(|line| line.starts_with("typedef ") && line.ends_with('{'))?, last)
        }
        None => {
            let first = lines.iter().position(|line| *line == tag)?;
            (first, first + lines[first..].iter().position(|line| *line == "};")?)
        }
    };
    let without_comment = |line: &&str| line.split("/*").next().unwrap_or_default().trim_end().to_owned();
    Some(lines[first..=last].iter().map(without_comment).collect())
}

/// The names of the members or values of a declaration.
pub(crate) fn members(declaration: &[String]) -> Vec<String> {
    let inner = declaration.iter().skip(1).take(declaration.len().saturating_sub(2));
    let name = |line: &String| {
        let text = line.split(['=', ';', ',', '[']).next().unwrap_or_default().trim();
        text.rsplit([' ', '*']).next().unwrap_or_default().to_owned()
    };
    inner.map(name).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_enum_and_struct_declarations_are_found() {
        let header = "/* x */\ntypedef enum a {\n    ONE = 1, /* y */\n    TWO = 2\n} A;\n\nstruct dat_b {\n    int  one;\n    \
                      T    *two; /* z */\n    char three[6][6];\n};\n";
        let a = type_declaration(header, "A").unwrap();
        assert_eq!((a[1].as_str(), members(&a)), ("    ONE = 1,", vec!["ONE".to_owned(), "TWO".to_owned()]));
        let b = type_declaration(header, "DAT_B").unwrap();
        assert_eq!((b.len(), members(&b)), (5, ["one", "two", "three"].map(str::to_owned).to_vec()));
        assert_eq!(type_declaration(header, "C"), None);
    }

    #[test]
    fn in_out_macros_and_comments_are_omitted_from_prototypes() {
        let header = "\n/* x */\nextern DAT_RETURN dat_a(\n    IN    const T  *one,\n    INOUT U two[]);\nextern DAT_RETURN dat_b(IN V v);\n";
        let [a, b] = &prototypes(header)[..] else { panic!() };
        assert_eq!((a.name.as_str(), &a.parameters[..]), ("dat_a", &["one".to_owned(), "two".to_owned()][..]));
        assert_eq!(a.lines, ["DAT_RETURN dat_a(", "    const T *one,", "    U two[]);"]);
        assert_eq!(b.lines, ["DAT_RETURN dat_b(", "    V v);"]);
    }
}
