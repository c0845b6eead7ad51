//! What little of JSON is read here: a number by its name.
#![forbid(unsafe_code)]

/// The number of a field, the first that has this name.
pub(crate) fn field(text: &str, name: &str) -> Option<f64> {
    let rest = text.split_once(&format!("\"{name}\":"))?.1;
    rest.split([',', '}']).next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found() {
        assert_eq!(field("{\"what\":\"lat\",\"size\":8,\"usec\":0.123}\n", "usec"), Some(0.123));
        assert_eq!(field("{\"what\":\"rate\",\"mps\": 12.5 }", "mps"), Some(12.5));
        assert_eq!(field("", "usec"), None);
    }
}
