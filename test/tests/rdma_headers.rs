//! Every declaration of `ibverbs-sys` and `rdma-cm-sys` matches the installed headers: sizes, field offsets, numbers,
//! functions.
//!
//! The C compiler checks: each Rust structure and constant becomes a static assertion, each function a pointer of the
//! declared type. Skipped if the headers are missing.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Output};

use ibverbs_sys::*;
use rdma_cm_sys::*;

const NUMBERS: &str = include_str!("../../providers/ibverbs-sys/src/constants.rs");
const TYPES: &str = include_str!("../../providers/ibverbs-sys/src/types.rs");
const VERBS: &str = include_str!("../../providers/ibverbs-sys/src/lib.rs");
const MANAGER: &str = include_str!("../../providers/rdma-cm-sys/src/lib.rs");

/// Layout of a Rust structure, for comparison with the C structure of the same name.
struct Layout {
    name: &'static str,
    size: usize,
    /// Name, offset, size.
    fields: Vec<(&'static str, usize, usize)>,
}

/// Lists all fields of a structure. A missing field is a compile error.
macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        vec![$({
            fn _all_fields_are_named(value: $name) {
                let $name { $($field: _),* } = value;
            }
            let fields = vec![$((stringify!($field), offset_of!($name, $field), size_of_field(|it: &$name| &it.$field))),*];
            Layout { name: stringify!($name), size: size_of::<$name>(), fields }
        }),*]
    };
}

fn size_of_field<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

#[rustfmt::skip]
fn verbs_layouts() -> Vec<Layout> {
    layouts! {
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops {
            _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr, _compat_rereg_mr,
            _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event,
            _compat_resize_cq, _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
            _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp, _compat_modify_qp, _compat_destroy_qp,
            post_send, post_recv, _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast,
            _compat_async_event,
        }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr,
            device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom,
            max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp,
            max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
            max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len,
            lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state,
            link_layer, flags, port_cap_flags2,
        }
        ibv_async_event { element, event_type }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
        }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, r#type }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_mw_bind { wr_id, send_flags, bind_info }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed,
        }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
            alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type, bind_mw }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
    }
}

#[rustfmt::skip]
fn manager_layouts() -> Vec<Layout> {
    layouts! {
        rdma_event_channel { fd }
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_addr { src_storage, dst_storage, addr }
        rdma_route { addr, path_rec, num_paths }
        rdma_cm_id {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd,
            qp_type,
        }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count,
            srq, qp_num,
        }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
    }
}

/// Sizes and offsets that `layouts!` does not cover: of unions, of types without a name in C, and of members that have
/// such types.
fn unnamed() -> Vec<(&'static str, usize)> {
    vec![
        ("sizeof(union ibv_gid)", size_of::<ibv_gid>()),
        ("sizeof(((union ibv_gid *)0)->global)", size_of::<ibv_gid_global>()),
        ("offsetof(union ibv_gid, global.interface_id)", offset_of!(ibv_gid_global, interface_id)),
        ("sizeof(((struct ibv_async_event *)0)->element)", size_of::<ibv_async_event_element>()),
        ("sizeof(((struct ibv_send_wr *)0)->wr)", size_of::<ibv_send_wr_operands>()),
        ("sizeof(((struct ibv_send_wr *)0)->wr.rdma)", size_of::<ibv_send_wr_rdma>()),
        ("sizeof(((struct ibv_send_wr *)0)->wr.atomic)", size_of::<ibv_send_wr_atomic>()),
        ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", OPERANDS + offset_of!(ibv_send_wr_rdma, rkey)),
        ("offsetof(struct ibv_send_wr, wr.atomic.swap)", OPERANDS + offset_of!(ibv_send_wr_atomic, swap)),
        ("offsetof(struct ibv_send_wr, bind_mw.bind_info)", BIND + offset_of!(ibv_send_wr_bind_mw, bind_info)),
        ("sizeof(((struct rdma_addr *)0)->addr.ibaddr)", size_of::<rdma_ib_addr>()),
        ("sizeof(((struct rdma_cm_event *)0)->param.conn)", size_of::<rdma_conn_param>()),
        ("sizeof(((struct rdma_cm_event *)0)->param.ud)", size_of::<rdma_ud_param>()),
    ]
}

const OPERANDS: usize = offset_of!(ibv_send_wr, wr);
const BIND: usize = offset_of!(ibv_send_wr, bind_mw);

#[test]
fn structures_match_the_rdma_core_headers() {
    if !has_headers() {
        return;
    }
    let mut checks = String::new();
    for Layout { name, size, fields } in verbs_layouts().into_iter().chain(manager_layouts()) {
        assert_same(&mut checks, &format!("sizeof(struct {name})"), size);
        for (field, offset, size) in fields {
            let field = field.trim_start_matches("r#");
            assert_same(&mut checks, &format!("offsetof(struct {name}, {field})"), offset);
            assert_same(&mut checks, &format!("sizeof(((struct {name} *)0)->{field})"), size);
        }
    }
    unnamed().into_iter().for_each(|(place, value)| assert_same(&mut checks, place, value));
    compile("layout", &checks);
}

#[test]
fn constants_match_the_rdma_core_headers() {
    if !has_headers() {
        return;
    }
    let mut checks = String::new();
    let (verbs, manager) = (verbs_numbers(), manager_numbers());
    assert!(verbs.len() > 80 && manager.len() > 15, "too few constants were found: {verbs:?} {manager:?}");
    verbs.iter().chain(&manager).for_each(|(name, value)| assert_same(&mut checks, name, value));
    compile("numbers", &checks);
}

#[test]
fn functions_match_the_rdma_core_headers() {
    if !has_headers() {
        return;
    }
    let all: Vec<String> = [VERBS, MANAGER].iter().flat_map(|source| functions(source)).collect();
    assert!(all.len() > 40, "too few functions were found: {all:#?}");
    let pointers: String = all.iter().map(|function| pointer(function, "")).collect();
    let members = operations();
    assert_eq!(members.len(), 8, "{members:#?}");
    let operations: String = members.iter().map(|function| pointer(function, "ops->")).collect();
    compile("functions", &format!("{pointers}void operations(struct ibv_context_ops *ops) {{\n{operations}}}\n"));
}

#[test]
fn every_rdma_core_structure_is_checked() {
    let declared = |source: &'static str, start: &str| -> BTreeSet<&str> {
        let lines = source.lines().filter_map(|line| line.trim_start().strip_prefix(start));
        lines.filter_map(|rest| rest.split([' ', ':']).next()).filter(|name| !name.starts_with('$')).collect()
    };
    // C has no name for these types, so `unnamed` checks them.
    let parts = ["ibv_gid_global", "ibv_send_wr_rdma", "ibv_send_wr_atomic", "ibv_send_wr_bind_mw"];
    let compared: BTreeSet<&str> = verbs_layouts().iter().map(|layout| layout.name).chain(parts).collect();
    assert_eq!(declared(TYPES, "pub struct "), compared);
    let unions = ["ibv_gid", "ibv_async_event_element", "ibv_send_wr_operands"];
    assert_eq!(declared(TYPES, "pub union "), BTreeSet::from(unions));
    let compared: BTreeSet<&str> =
        manager_layouts().iter().map(|layout| layout.name).chain(["ibv_sa_path_rec"]).collect();
    assert_eq!(declared(MANAGER, "pub struct "), compared);
    assert_eq!(declared(MANAGER, "pub union "), BTreeSet::from(["rdma_addr_ib", "rdma_cm_event_param"]));
}

/// Checks that a wrong offset, function type and operation type do not compile.
#[test]
fn a_wrong_declaration_does_not_compile() {
    if !has_headers() {
        return;
    }
    let mut wrong = String::new();
    assert_same(&mut wrong, "offsetof(struct rdma_cm_id, port_num)", offset_of!(rdma_cm_id, port_num) + 1);
    let output = try_to_compile("wrong-layout", &wrong);
    assert!(!output.status.success() && text(&output).contains("static assertion failed"), "{output:?}");
    let function = pointer("rdma_listen(id: *mut rdma_cm_id, backlog: u8) -> c_int", "");
    let output = try_to_compile("wrong-function", &function);
    assert!(!output.status.success() && text(&output).contains("rdma_listen"), "{output:?}");
    let operation = pointer("poll_cq(cq: *mut ibv_cq, num_entries: c_int) -> c_int", "ops->");
    let output = try_to_compile("wrong-operation", &format!("void f(struct ibv_context_ops *ops) {{ {operation} }}"));
    assert!(!output.status.success() && text(&output).contains("poll_cq"), "{output:?}");
}

/// Whether the headers are installed. If not, prints a line.
fn has_headers() -> bool {
    let is_there = try_to_compile("headers", "").status.success();
    if !is_there {
        println!("skipped: rdma-core's headers are missing; install the Debian packages libibverbs-dev librdmacm-dev");
    }
    is_there
}

fn assert_same(checks: &mut String, what: &str, value: impl std::fmt::Display) {
    writeln!(checks, "_Static_assert(({what}) == ({value}), \"{what}\");").unwrap();
}

/// The `NAME = VALUE` entries in `constants.rs`. The values are also valid C.
fn verbs_numbers() -> Vec<(&'static str, &'static str)> {
    let pieces = NUMBERS.lines().flat_map(|line| line.split([',', ':', '{', '}']));
    pieces.filter_map(|piece| piece.trim().split_once(" = ")).filter(|(name, _)| name.starts_with("IBV_")).collect()
}

/// The `pub const NAME: TYPE = VALUE;` entries, except values of the InfiniBand specification, which no header has.
fn manager_numbers() -> Vec<(&'static str, &'static str)> {
    let lines =
        MANAGER.lines().filter_map(|line| line.strip_prefix("pub const RDMA_").map(|_| &line["pub const ".len()..]));
    lines.filter_map(|line| Some((line.split_once(':')?.0, line.split_once(" = ")?.1.trim_end_matches(';')))).collect()
}

/// The prototypes in a source, one per line, without `pub fn` and the semicolon.
fn functions(source: &str) -> Vec<String> {
    let block = source.split_once("library! {").expect("the source has a `library!` block").1;
    let one = |text: &str| text.split_once(';').unwrap().0.split_whitespace().collect::<Vec<_>>().join(" ");
    block.split("pub fn ").skip(1).map(one).collect()
}

/// The members of `ibv_context_ops`, as prototypes.
fn operations() -> Vec<String> {
    let table = TYPES.split_once("pub struct ibv_context_ops {").unwrap().1.split_once("\n}").unwrap().0;
    let members = table.split("pub ").filter_map(|member| {
        member
            .split_once(": Option<unsafe extern \"C\" fn")
            .or(member.split_once(":\n        Option<unsafe extern \"C\" fn"))
    });
    members.map(|(name, rest)| format!("{name}{}", rest.trim_end().trim_end_matches(">,"))).collect()
}

/// Translates `f(a: *mut x, b: y) -> z` to `z (*const check_f)(struct x *, y) = f;`.
fn pointer(function: &str, of: &str) -> String {
    let (name, rest) = function.split_once('(').unwrap();
    let (arguments, result) = rest.rsplit_once(')').unwrap();
    let types: Vec<String> =
        arguments.split(", ").filter_map(|argument| Some(c_type(argument.split_once(": ")?.1))).collect();
    let types = if types.is_empty() { "void".to_owned() } else { types.join(", ") };
    let result = result.trim().strip_prefix("-> ").map_or("void".to_owned(), c_type);
    format!("{result} (*const check_{name})({types}) = {of}{name};\n")
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
        "c_uint" => "unsigned int",
        "c_void" => "void",
        "c_char" => "char",
        "usize" => "size_t",
        "isize" => "ssize_t",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "rdma_cm_event_type" | "rdma_port_space" | "ibv_event_type" | "ibv_mw_type" => return format!("enum {rust}"),
        structure => return format!("struct {structure}"),
    }
    .to_owned()
}

fn compile(name: &str, body: &str) {
    let output = try_to_compile(name, body);
    assert!(output.status.success(), "{}\n{body}", text(&output));
}

fn try_to_compile(name: &str, body: &str) -> Output {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rdma-{name}.c"));
    fs::write(&source, format!("#include <stddef.h>\n#include <rdma/rdma_cma.h>\n{body}")).unwrap();
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    // Without -Werror, a pointer of another type is only a warning.
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Wno-unused", "-Werror"]).arg(&source);
    cc.output().unwrap_or_else(|error| panic!("{cc:?}: {error}"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
