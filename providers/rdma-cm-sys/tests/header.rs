//! Every declaration of this package is the installed header's: sizes, places of fields, numbers, functions.
//!
//! C says it all itself: what Rust knows of a structure or a constant becomes a static assertion, and each function, as
//! `lib.rs` has it in text, becomes a pointer of the type that we believe it has. Links the library as well.
#![cfg(feature = "rdma-core")]

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use rdma_cm_sys::*;

const SOURCE: &str = include_str!("../src/lib.rs");

/// A structure of ours, asserted against C's of the same name.
#[derive(Debug)]
struct Layout {
    name: &'static str,
    size: usize,
    /// Name, offset, size.
    fields: Vec<(&'static str, usize, usize)>,
}

/// All fields of a structure: one that is left out does not compile.
macro_rules! layout {
    ($name:ident { $($field:ident),* }) => {{
        fn _all_fields_are_named(value: $name) {
            let $name { $($field: _),* } = value;
        }
        let fields = vec![$((stringify!($field), offset_of!($name, $field), size_of_field(|it: &$name| &it.$field))),*];
        Layout { name: stringify!($name), size: size_of::<$name>(), fields }
    }};
}

fn size_of_field<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

fn layouts() -> Vec<Layout> {
    vec![
        layout!(rdma_event_channel { fd }),
        layout!(rdma_ib_addr { sgid, dgid, pkey }),
        layout!(rdma_addr { src_storage, dst_storage, addr }),
        layout!(rdma_route { addr, path_rec, num_paths }),
        layout!(rdma_cm_id {
            verbs,
            channel,
            context,
            qp,
            route,
            ps,
            port_num,
            event,
            send_cq_channel,
            send_cq,
            recv_cq_channel,
            recv_cq,
            srq,
            pd,
            qp_type
        }),
        layout!(rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
            qp_num
        }),
        layout!(rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }),
        layout!(rdma_cm_event { id, listen_id, event, status, param }),
    ]
}

/// Names and values; those of the InfiniBand specification are in no header of the library's.
macro_rules! constants {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), i64::from($name))),*]
    };
}

const EVENTS: usize = 16;

fn constants() -> Vec<(&'static str, i64)> {
    constants![
        RDMA_CM_EVENT_ADDR_RESOLVED,
        RDMA_CM_EVENT_ADDR_ERROR,
        RDMA_CM_EVENT_ROUTE_RESOLVED,
        RDMA_CM_EVENT_ROUTE_ERROR,
        RDMA_CM_EVENT_CONNECT_REQUEST,
        RDMA_CM_EVENT_CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR,
        RDMA_CM_EVENT_UNREACHABLE,
        RDMA_CM_EVENT_REJECTED,
        RDMA_CM_EVENT_ESTABLISHED,
        RDMA_CM_EVENT_DISCONNECTED,
        RDMA_CM_EVENT_DEVICE_REMOVAL,
        RDMA_CM_EVENT_MULTICAST_JOIN,
        RDMA_CM_EVENT_MULTICAST_ERROR,
        RDMA_CM_EVENT_ADDR_CHANGE,
        RDMA_CM_EVENT_TIMEWAIT_EXIT,
        RDMA_PS_IPOIB,
        RDMA_PS_TCP,
        RDMA_PS_UDP,
        RDMA_PS_IB,
        RDMA_MAX_RESP_RES,
        RDMA_MAX_INIT_DEPTH,
        RDMA_OPTION_ID,
        RDMA_OPTION_ID_TOS,
        RDMA_OPTION_ID_REUSEADDR,
        RDMA_OPTION_ID_AFONLY,
        RDMA_OPTION_ID_ACK_TIMEOUT,
    ]
    .into()
}

#[test]
fn structures_and_constants_are_those_of_the_header() {
    let mut checks = String::new();
    for Layout { name, size, fields } in layouts() {
        assert_same(&mut checks, &format!("sizeof(struct {name})"), size);
        for (field, offset, size) in fields {
            assert_same(&mut checks, &format!("offsetof(struct {name}, {field})"), offset);
            assert_same(&mut checks, &format!("sizeof(((struct {name} *)0)->{field})"), size);
        }
    }
    // Members of the nameless unions.
    for (place, size) in [
        ("struct rdma_addr *)0)->addr.ibaddr", size_of::<rdma_ib_addr>()),
        ("struct rdma_cm_event *)0)->param.conn", size_of::<rdma_conn_param>()),
        ("struct rdma_cm_event *)0)->param.ud", size_of::<rdma_ud_param>()),
    ] {
        assert_same(&mut checks, &format!("sizeof((({place})"), size);
    }
    for (name, value) in constants() {
        assert_same(&mut checks, name, value);
    }
    compile("layout", &checks);
}

#[test]
fn functions_are_those_of_the_header() {
    let pointers: Vec<String> = functions().iter().map(|function| pointer(function)).collect();
    assert!(pointers.len() > 20, "all were found: {pointers:#?}");
    compile("functions", &pointers.concat());
}

#[test]
fn nothing_that_is_declared_is_left_out() {
    let declared = |start: &str| -> BTreeSet<&str> {
        let lines = SOURCE.lines().filter_map(|line| line.strip_prefix(start));
        lines.map(|rest| rest.split([' ', ':']).next().unwrap()).collect()
    };
    let layouts = layouts();
    let structures: BTreeSet<&str> = layouts.iter().map(|layout| layout.name).chain(["ibv_sa_path_rec"]).collect();
    assert_eq!(declared("pub struct "), structures);
    assert_eq!(declared("pub union "), BTreeSet::from(["rdma_addr_ib", "rdma_cm_event_param"]));
    let constants: BTreeSet<&str> = constants().into_iter().map(|(name, _)| name).collect();
    let reasons = ["IB_CM_REJ_INVALID_SERVICE_ID", "IB_CM_REJ_STALE_CONN", "IB_CM_REJ_CONSUMER_DEFINED"];
    assert_eq!(declared("pub const "), constants.into_iter().chain(reasons).collect());
}

/// One that is wrong is seen: otherwise the suites above would prove nothing.
#[test]
fn a_wrong_belief_does_not_compile() {
    let mut wrong = String::new();
    assert_same(&mut wrong, "offsetof(struct rdma_cm_id, port_num)", offset_of!(rdma_cm_id, port_num) + 1);
    let output = try_to_compile("wrong-layout", &wrong);
    assert!(!output.status.success() && text(&output).contains("static assertion failed"), "{output:?}");
    let output = try_to_compile("wrong-function", &pointer("rdma_listen(id: *mut rdma_cm_id, backlog: u8) -> c_int"));
    assert!(!output.status.success() && text(&output).contains("rdma_listen"), "{output:?}");
}

#[test]
fn the_library_knows_the_events_by_their_names() {
    let known = constants();
    for (name, value) in &known[..EVENTS] {
        // SAFETY: any number is allowed; the answer is a literal of the library's.
        let said = unsafe { CStr::from_ptr(rdma_event_str(u32::try_from(*value).unwrap())) };
        assert_eq!(said.to_str(), Ok(*name));
    }
    assert!(!known[EVENTS].0.starts_with("RDMA_CM_EVENT_"), "all events come first");
}

fn assert_same(checks: &mut String, what: &str, value: impl std::fmt::Display) {
    writeln!(checks, "_Static_assert(({what}) == {value}, \"{what}\");").unwrap();
}

/// The prototypes in `lib.rs`, without `pub fn` and the semicolon, each on one line.
fn functions() -> Vec<String> {
    let block = SOURCE.split_once("unsafe extern \"C\" {").expect("the functions stand in a block").1;
    let one = |text: &str| text.split_once(';').unwrap().0.split_whitespace().collect::<Vec<_>>().join(" ");
    block.split("pub fn ").skip(1).map(one).collect()
}

/// `f(a: *mut x, b: y) -> z` as `z (*const check_f)(struct x *, y) = f;`.
fn pointer(function: &str) -> String {
    let (name, rest) = function.split_once('(').unwrap();
    let (arguments, answer) = rest.rsplit_once(')').unwrap();
    let types: Vec<String> =
        arguments.split(", ").filter_map(|argument| Some(c_type(argument.split_once(": ")?.1))).collect();
    let types = if types.is_empty() { "void".to_owned() } else { types.join(", ") };
    let answer = answer.trim().strip_prefix("-> ").map_or("void".to_owned(), c_type);
    format!("{answer} (*const check_{name})({types}) = {name};\n")
}

fn c_type(rust: &str) -> String {
    let rust = rust.trim().trim_end_matches(',');
    if let Some(to) = rust.strip_prefix("*mut ") {
        return c_type(to) + " *";
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        return format!("const {} *", c_type(to));
    }
    match rust {
        "c_int" => "int",
        "c_void" => "void",
        "c_char" => "char",
        "size_t" => "size_t",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        // C knows these as enumerations.
        "rdma_cm_event_type" => "enum rdma_cm_event_type",
        "rdma_port_space" => "enum rdma_port_space",
        "ibv_event_type" => "enum ibv_event_type",
        structure => return format!("struct {structure}"),
    }
    .to_owned()
}

fn compile(name: &str, body: &str) {
    let output = try_to_compile(name, body);
    assert!(output.status.success(), "{}\n{body}", text(&output));
}

fn try_to_compile(name: &str, body: &str) -> Output {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    fs::write(&source, format!("#include <stddef.h>\n#include <rdma/rdma_cma.h>\n{body}")).unwrap();
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    // A pointer of another type is only a warning without the last.
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Wno-unused", "-Werror"]).arg(&source);
    cc.output().unwrap_or_else(|error| panic!("{cc:?}: {error}"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
