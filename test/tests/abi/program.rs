//! The generated program: its DAT version, its language, and its assertions.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::{headers, number, root};

/// A DAT version.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Version {
    V1,
    V2,
}

pub(super) use Version::{V1, V2};

impl Version {
    /// Name of the JSON file.
    pub(super) fn name(self) -> &'static str {
        match self {
            V1 => "dat-1.2",
            V2 => "dat-2.0",
        }
    }

    /// Folder of the C headers.
    pub(super) fn folder(self) -> &'static str {
        match self {
            V1 => "dat",
            V2 => "dat2",
        }
    }

    /// Headers that include all others.
    pub(super) fn includes(self) -> &'static [&'static str] {
        match self {
            V1 => &["udat.h", "dat_registry.h"],
            V2 => &["udat.h", "dat_registry.h", "dat_ib_extensions.h"],
        }
    }

    pub(super) fn facts(self) -> Value {
        self.json(self.name())
    }

    pub(super) fn symbols(self) -> Value {
        self.json(&format!("{}-symbols", self.name()))
    }

    pub(super) fn json(self, name: &str) -> Value {
        let path = root().join(format!("test/abi/{name}.json"));
        let text = std::fs::read_to_string(path).expect("the JSON files of test/abi are readable");
        serde_json::from_str(&text).expect("the files of test/abi are valid JSON")
    }
}

/// Language of the program.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Tongue {
    C,
    Cxx,
}

impl Tongue {
    pub(super) fn compiler(self) -> Command {
        let (variable, default) = match self {
            Tongue::C => ("CC", "cc"),
            Tongue::Cxx => ("CXX", "c++"),
        };
        Command::new(std::env::var(variable).unwrap_or_else(|_| default.into()))
    }

    pub(super) fn extension(self) -> &'static str {
        match self {
            Tongue::C => "c",
            Tongue::Cxx => "cc",
        }
    }

    /// An expression that is true if both types are the same. Pointers are compared with all their qualifiers.
    pub(super) fn same(self, a: &str, b: &str) -> String {
        match self {
            Tongue::C => format!("__builtin_types_compatible_p({a}, {b})"),
            Tongue::Cxx => format!("(std::is_same<{a}, {b}>::value)"),
        }
    }

    /// Like `same`, for the type of an lvalue: the qualifiers of the object are also compared.
    pub(super) fn same_object(self, lvalue: &str, c_type: &str) -> String {
        match self {
            Tongue::C => self.same(&format!("__typeof__(&{lvalue})"), &format!("__typeof__({c_type}) *")),
            Tongue::Cxx => self.same(&format!("std::remove_reference<decltype(({lvalue}))>::type"), c_type),
        }
    }

    pub(super) fn type_of(self, expression: &str) -> String {
        match self {
            Tongue::C => format!("__typeof__({expression})"),
            Tongue::Cxx => format!("decltype({expression})"),
        }
    }

    pub(super) fn null(self, record: &str) -> String {
        match self {
            Tongue::C => format!("(({record} *)0)"),
            Tongue::Cxx => format!("std::declval<{record} *>()"),
        }
    }

    pub(super) fn compile(self, standard: &str, flags: &[&str], source: &Path, out: Option<&Path>) -> Output {
        let mut compiler = self.compiler();
        compiler.arg(format!("-std={standard}")).args(flags).arg("-I").arg(headers());
        match out {
            Some(path) => compiler.arg("-o").arg(path),
            None => compiler.arg("-fsyntax-only"),
        };
        compiler.arg(source).output().expect("the compiler starts: cc and c++ are installed")
    }
}

/// The program under construction: compile-time assertions, run-time checks, and their numbers.
pub(super) struct Program {
    pub(super) version: Version,
    pub(super) tongue: Tongue,
    pub(super) top: String,
    pub(super) run: String,
    pub(super) statics: usize,
    pub(super) checks: usize,
}

impl Program {
    pub(super) fn new(version: Version, tongue: Tongue) -> Self {
        Program { version, tongue, top: String::new(), run: String::new(), statics: 0, checks: 0 }
    }

    /// Adds an assertion that the compiler checks.
    pub(super) fn holds(&mut self, condition: &str, what: &str) {
        let keyword = if self.tongue == Tongue::C { "_Static_assert" } else { "static_assert" };
        writeln!(self.top, "{keyword}({condition}, \"{what}\");").expect("a String grows");
        self.statics += 1;
    }

    /// Adds a check that the program makes at run time.
    pub(super) fn check(&mut self, condition: &str, what: &str) {
        writeln!(self.run, "    check({condition}, \"{what}\");").expect("a String grows");
        self.checks += 1;
    }

    pub(super) fn defined(&mut self, name: &str) {
        writeln!(self.top, "#ifndef {name}\n#error \"{name} is not defined\"\n#endif").expect("a String grows");
        self.statics += 1;
    }

    pub(super) fn size_align(&mut self, name: &str, fact: &Value) {
        let align = if self.tongue == Tongue::C { "_Alignof" } else { "alignof" };
        self.holds(&format!("sizeof({name}) == {}", number(fact, "size")), &format!("size of {name}"));
        self.holds(&format!("{align}({name}) == {}", number(fact, "align")), &format!("alignment of {name}"));
    }

    pub(super) fn text(&self) -> String {
        let typing = if self.tongue == Tongue::C { "" } else { "#include <type_traits>\n#include <utility>\n" };
        let (name, folder) = (self.version.name(), self.version.folder());
        let headers = self.version.includes().iter().map(|header| format!("#include <{folder}/{header}>\n"));
        let headers: String = headers.collect();
        format!(
            "/* Written by test/tests/abi.rs from test/abi/{name}.json. */\n\
             #include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <string.h>\n\
             #include <netinet/in.h>\n{typing}{headers}\
             #define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)\n\
             static int failed, done;\n\
             static void check(int ok, const char *what) {{ done++; if (!ok) {{ failed++; fprintf(stderr, \"FAILED: %s\\n\", what); }} }}\n\
             {}\nint main(void) {{\n{}    printf(\"%d checks\\n\", done);\n    return failed != 0;\n}}\n",
            self.top, self.run
        )
    }
}
