//! A validator of OpenMetrics text with counters and gauges, for unit tests and tests of the program.

use std::collections::HashSet;

/// Validates a text and returns the number of its samples. Errors: the first invalid line, and the reason.
pub(crate) fn samples(text: &str) -> Result<usize, String> {
    let lines = text.strip_suffix("# EOF\n").ok_or("the text does not end with the line # EOF")?;
    if !lines.is_empty() && !lines.ends_with('\n') {
        return Err("the last line before # EOF has no newline".into());
    }
    let mut validator = Validator::default();
    for line in lines.lines() {
        validator.line(line).map_err(|why| format!("{why}: {line}"))?;
    }
    Ok(validator.samples.len())
}

#[derive(Default)]
struct Validator {
    /// Names of the families so far, and all sample names that these families may use.
    taken: HashSet<String>,
    /// Name of the current family, to which the next samples must belong, and the suffix of its sample names.
    family: (String, &'static str),
    has_help: bool,
    samples: HashSet<String>,
}

impl Validator {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            return self.family(rest);
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("HELP has no text")?;
            let is_fresh = name == self.family.0 && !std::mem::replace(&mut self.has_help, true);
            return (is_fresh && is_escaped(help))
                .then_some(())
                .ok_or("HELP is not for the family above, is repeated, or has an invalid escape");
        }
        let (name, rest) = line.split_once('{').ok_or("the sample has no labels")?;
        if name.strip_suffix(self.family.1) != Some(&self.family.0) {
            return Err("the sample is not of the family above");
        }
        let rest = labels(rest)?;
        let value = rest.strip_prefix("} ").ok_or("the sample has no value")?;
        value.parse::<u64>().map_err(|_| "the value is not a number")?;
        let sample = line.strip_suffix(value).unwrap_or_default().to_owned();
        self.samples.insert(sample).then_some(()).ok_or("the sample is a duplicate")
    }

    fn family(&mut self, rest: &str) -> Result<(), &'static str> {
        let (name, kind) = rest.split_once(' ').ok_or("TYPE has no type")?;
        let (ends, end): (&[&str], _) = match kind {
            "counter" => (&["", "_total", "_created"], "_total"),
            "gauge" => (&[""], ""),
            _ => return Err("the type is neither counter nor gauge"),
        };
        (self.family, self.has_help) = ((name.to_owned(), end), false);
        let is_fresh = ends.iter().all(|end| self.taken.insert(format!("{name}{end}")));
        (is_name(name) && is_fresh).then_some(()).ok_or("the family's name is invalid or already used")
    }
}

/// Validates labels, and returns the text after them.
fn labels(mut rest: &str) -> Result<&str, &'static str> {
    let mut known = HashSet::new();
    loop {
        let (name, value) = rest.split_once("=\"").ok_or("a label is missing or has no value")?;
        if !is_name(name) || !known.insert(name) {
            return Err("the label's name is invalid or repeated");
        }
        let mut letters = value.char_indices();
        let end = loop {
            match letters.next().ok_or("the label's value is not closed")? {
                (at, '"') => break at,
                (_, '\\') if !matches!(letters.next(), Some((_, '\\' | '"' | 'n'))) => {
                    return Err("the label's value has an invalid escape");
                }
                _ => {}
            }
        };
        rest = &value[end + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok(rest),
        }
    }
}

fn is_escaped(text: &str) -> bool {
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let is_well = match letter {
            '\\' => matches!(letters.next(), Some('\\' | '"' | 'n')),
            other => other != '"',
        };
        if !is_well {
            return false;
        }
    }
    true
}

fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    name.starts_with(is_letter) && name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
}

#[test]
fn openmetrics_validator_refuses_malformed_text() {
    let good = "# TYPE a counter\n# HELP a \\\"x\\\"\na_total{b=\"c\",d=\"\\\"}\"} 5\n# TYPE g gauge\ng{b=\"c\"} 1\ng{b=\"d\"} 1\n# EOF\n";
    assert_eq!((samples(good), samples("# EOF\n")), (Ok(3), Ok(0)));
    let wrong = [
        "",
        "# EOF",
        "x # EOF\n",
        "a{b=\"c\"} 1\n# EOF\n",
        "# TYPE a counter\na{b=\"c\"} 1\n# EOF\n",
        "# TYPE a gauge\na{b=\"c\"} 1\na{b=\"c\"} 2\n# EOF\n",
        "# TYPE a gauge\n# TYPE a gauge\n# EOF\n",
        "# TYPE a counter\n# TYPE a_total gauge\n# EOF\n",
        "# TYPE a gauge\na{b=\"c\"d\"} 1\n# EOF\n",
        "# TYPE a gauge\na{b=\"\\x\"} 1\n# EOF\n",
        "# TYPE a gauge\na{b=\"c\",b=\"d\"} 1\n# EOF\n",
        "# TYPE a gauge\na{b=\"c\"} x\n# EOF\n",
        "# TYPE a gauge\n\na{b=\"c\"} 1\n# EOF\n",
        "# TYPE 1a gauge\n# EOF\n",
        "# TYPE a gauge\n# HELP b c\n# EOF\n",
    ];
    wrong.into_iter().for_each(|text| assert!(samples(text).is_err(), "{text}"));
}
