//! Differences between DAT 2.0 and 1.2, for the pages of calls and for the lists in dat2(7). Differences of the headers
//! are found by comparison; differences of behaviour are in a table. Does no I/O.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::header::{self, Prototype};
use super::source::Block;

/// The headers of both versions, and their functions.
pub(crate) struct Versions {
    old: (String, BTreeMap<String, Prototype>),
    new: (String, BTreeMap<String, Prototype>),
}

/// Heading of the section about 2.0.
pub(crate) const HEADING: &str = "DAT 2.0";

/// Differences in behaviour that the headers do not show.
const BEHAVIOUR: [(&str, &str); 14] = [
    (
        "dat_ep_connect",
        "`DAT_CONNECT_MULTIPATH_REQUESTED_FLAG` uses one path; `DAT_CONNECT_MULTIPATH_REQUIRED_FLAG` is refused with `DAT_MODEL_NOT_SUPPORTED`.",
    ),
    ("dat_cno_query", "`proxy_type` says whether `proxy` is the agent or the descriptor of `dat_cno_fd_create(3)`."),
    ("dat_ep_create", "An endpoint of an unreliable service is refused with `DAT_MODEL_NOT_SUPPORTED`."),
    ("dat_ep_create_with_srq", "An endpoint of an unreliable service is refused with `DAT_MODEL_NOT_SUPPORTED`."),
    ("dat_ep_free", "The free of a connected endpoint queues `DAT_CONNECTION_EVENT_DISCONNECTED`; in 1.2 it does not."),
    (
        "dat_ep_modify",
        "`DAT_EP_FIELD_COMM` sets the communicator of `dat_ep_common_connect(3)`; one that is not supported is refused with `DAT_COMM_NOT_SUPPORTED`.",
    ),
    (
        "dat_evd_create",
        "`DAT_IB_EVD_EXTENSION_FLAG` (`dat2/dat_ib_extensions.h`) is a flag too: the EVD takes completions of extension operations.",
    ),
    (
        "dat_evd_dequeue",
        "A completion also has its operation, and the remote context that a received send has invalidated.",
    ),
    (
        "dat_evd_wait",
        "A completion also has its operation, and the remote context that a received send has invalidated.",
    ),
    ("dat_ia_openv", "The name needs a line with `u2.0` in dat.conf; with other lines only, the open is refused."),
    (
        "dat_registry_add_provider",
        "The table is `DAT_PROVIDER` of 2.0. A registration of version 1.2 is passed to `libdat.so.1` if the process has loaded it.",
    ),
    (
        "dat_registry_remove_provider",
        "A registration of version 1.2 is removed from `libdat.so.1` if the process has loaded it.",
    ),
    ("dat_registry_list_providers", "The entries of `u2.0` lines come first."),
    ("dat_strerror", "The return code is one of 2.0, in which subtypes have other numbers than in 1.2."),
];

impl Versions {
    /// Parses the texts of the headers.
    pub(crate) fn of(old: String, new: String) -> Self {
        let functions = |text: &str| {
            let all = header::prototypes(text).into_iter();
            all.map(|prototype| (prototype.name.clone(), prototype)).collect::<BTreeMap<_, _>>()
        };
        let (of_old, of_new) = (functions(&old), functions(&new));
        Versions { old: (old, of_old), new: (new, of_new) }
    }

    /// The section for the page of a call; empty if the call is the same in both versions, or exists in one only.
    pub(crate) fn section(&self, call: &str) -> Vec<Block> {
        let (Some(old), Some(new)) = (self.old.1.get(call), self.new.1.get(call)) else { return Vec::new() };
        let mut blocks = Vec::new();
        if old.lines != new.lines {
            blocks.push(Block::Text("The prototype of 2.0 (`dat2/udat.h`, `-ldat2`):".to_owned()));
            blocks.push(Block::Code(new.lines.clone()));
        }
        let types: Vec<String> = self.types_of(new).into_iter().map(|name| format!("`{name}`")).collect();
        if !types.is_empty() {
            blocks.push(Block::Text(format!("Declared differently in 2.0, see `dat2(7)`: {}.", types.join(", "))));
        }
        let behaviour = BEHAVIOUR.iter().filter(|(name, _)| *name == call);
        blocks.extend(behaviour.map(|(_, text)| Block::Text((*text).to_owned())));
        blocks
    }

    /// Returns, as terms, the calls whose parameter names differ.
    pub(crate) fn changed_calls(&self) -> Vec<Block> {
        let both = self.old.1.values().filter_map(|old| Some((old, self.new.1.get(&old.name)?)));
        let changed = both.filter(|(old, new)| old.parameters != new.parameters);
        changed
            .map(|(old, new)| {
                let more = new.parameters.iter().filter(|name| !old.parameters.contains(name));
                let more: Vec<String> = more.map(|name| format!("`{name}`")).collect();
                Block::Term(format!("`{}`", old.name), format!("takes {} as well.", more.join(", ")))
            })
            .collect()
    }

    /// Returns, as terms, the types that differ, with the members or values that 1.2 does not have.
    pub(crate) fn changed_types(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for name in type_names(&self.old.0) {
            let Some((old, new)) = self.declarations(&name).filter(|(old, new)| old != new) else { continue };
            let known = header::members(&old);
            let is_new = |member: &String| !known.contains(member) && member.starts_with(char::is_alphabetic);
            let more = header::members(&new).into_iter().filter(is_new);
            let more: Vec<String> = more.map(|member| format!("`{member}`")).collect();
            let text = match more.is_empty() {
                true => "other values, types or order.".to_owned(),
                false => format!("new: {}.", more.join(", ")),
            };
            blocks.push(Block::Term(format!("`{name}`"), text));
        }
        blocks
    }

    /// The declarations of a type in both versions, without the first and last line.
    fn declarations(&self, name: &str) -> Option<(Vec<String>, Vec<String>)> {
        let inner = |text: &str| {
            let lines = header::type_declaration(text, name)?;
            Some(
                lines.into_iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>(),
            )
        };
        let (mut old, mut new) = (inner(&self.old.0)?, inner(&self.new.0)?);
        for lines in [&mut old, &mut new] {
            // Makes `typedef struct x {...} X` and `struct x {...}` compare equal.
            lines[0].clear();
            lines.last_mut()?.clear();
        }
        Some((old, new))
    }

    /// Types in a prototype, and types of their members, that differ between the versions.
    fn types_of(&self, prototype: &Prototype) -> BTreeSet<String> {
        let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
        let mut queue = type_words(&prototype.lines);
        while let Some(name) = queue.pop() {
            let Some((old, new)) = self.declarations(&name).filter(|_| seen.insert(name.clone())) else { continue };
            queue.extend(type_words(&new));
            if old != new && name != "DAT_PROVIDER" {
                found.insert(name);
            }
        }
        found
    }
}

/// Words that may be names of types.
fn type_words(lines: &[String]) -> Vec<String> {
    let words = lines.iter().flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| word.starts_with("DAT_")).map(str::to_owned).collect()
}

/// Structures, unions and enumerations that headers declare.
fn type_names(headers: &str) -> BTreeSet<String> {
    let typedefs = headers.lines().filter_map(|line| line.strip_prefix("} ")?.strip_suffix(';'));
    let tags = headers.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    let names = typedefs.map(str::to_owned).chain(tags.map(str::to_ascii_uppercase));
    names.filter(|name| name.starts_with("DAT_") && name != "DAT_PROVIDER").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_calls_and_types_are_found() {
        let old = "typedef struct dat_a {\n    int x;\n} DAT_A;\n\nextern DAT_RETURN f(IN DAT_A *a);\nextern DAT_RETURN g(IN int a);\n";
        let new = "struct dat_a {\n    long x;\n    int y; /* more */\n};\n\nextern DAT_RETURN f(IN DAT_A *a);\nextern DAT_RETURN g(IN int a, IN int b);\n";
        let versions = Versions::of(old.to_owned(), new.to_owned());
        assert_eq!(
            versions.section("f"),
            [Block::Text("Declared differently in 2.0, see `dat2(7)`: `DAT_A`.".to_owned())]
        );
        let lines = ["DAT_RETURN g(", "    int a,", "    int b);"].map(str::to_owned).to_vec();
        assert_eq!(versions.section("g")[1], Block::Code(lines));
        assert_eq!(versions.changed_calls(), [Block::Term("`g`".to_owned(), "takes `b` as well.".to_owned())]);
        assert_eq!(versions.changed_types(), [Block::Term("`DAT_A`".to_owned(), "new: `y`.".to_owned())]);
        assert!(versions.section("h").is_empty());
        let types = |b: &str| {
            format!(
                "typedef struct dat_b {{\n    DAT_C c;\n}} DAT_B;\n\ntypedef enum dat_c {{\n    {b}\n}} DAT_C;\n\nextern DAT_RETURN f(IN DAT_B *b);\n"
            )
        };
        let nested = Versions::of(types("ONE = 1"), types("ONE = 2"));
        assert_eq!(
            nested.section("f"),
            [Block::Text("Declared differently in 2.0, see `dat2(7)`: `DAT_C`.".to_owned())],
            "a type of a member"
        );
    }
}
