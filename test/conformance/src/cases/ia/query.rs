//! `dat_ia_query`: its checks, and whether the attributes of adapters and providers have the specified values.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        "spec/registry 10": ia_query_with_empty_masks_succeeds,
        "spec/registry 10": ia_query_returns_the_async_evd_alone,
        "spec/registry 10": ia_query_returns_adapter_and_provider_attributes_in_one_call,
        "spec/registry 10": ia_query_without_a_record_returns_invalid_arg4,
        "spec/registry 10": ia_query_without_a_provider_record_returns_invalid_arg6,
        "spec/registry 10": ia_query_unknown_adapter_bits_return_invalid_arg3,
        "spec/registry 10": ia_query_unknown_provider_bits_are_ignored,
        "spec/registry 10": ia_query_errors_write_nothing,
        "spec/registry 10": ia_query_reports_a_missing_record_before_unknown_bits,
        "spec/registry 10": ia_query_accepts_each_adapter_bit_alone,
        "spec/registry 10": ia_query_accepts_each_provider_bit_alone,
        "spec/registry 10": ia_query_writes_every_field,
        "spec/registry 10": ia_query_returns_the_same_values_every_time,
        "spec/registry 10": ia_query_clears_padding,
        "spec/registry 10": ia_query_of_an_adapter_with_all_objects_returns_the_api_version,
        "spec/registry 11": ia_attr_names_have_a_nul_and_the_adapter_name_is_the_opened_one,
        "spec/consumers 7": ia_attr_address_is_a_stable_ipv4_address_without_port,
        "spec/registry 11": ia_attr_limits_are_positive_and_optional_ones_are_not_negative,
        "spec/registry 11": ia_attr_limits_are_at_least_those_that_programs_require,
        "spec/registry 11": ia_attr_maximum_message_sizes_are_accepted_by_ep_create,
        "spec/registry 11": ia_attr_maximum_dtos_are_accepted_by_ep_create,
        "spec/registry 11": ia_attr_maximum_segments_are_accepted_by_ep_create,
        "spec/registry 11": ia_attr_maximum_reads_are_accepted_by_ep_create,
        "spec/registry 11": ia_attr_named_attributes_have_names,
        "spec/registry 12": provider_attr_returns_the_provider_name_and_the_api_version,
        "spec/registry 12": provider_attr_memory_types_are_all_supported,
        "spec/registry 12": provider_attr_thread_safety_is_a_boolean,
        "spec/registry 12": provider_attr_has_the_specified_constants,
        "spec/registry 12": provider_attr_private_data_size_is_at_least_48,
        "spec/registry 12": provider_attr_reports_that_all_evd_streams_merge,
        "spec/registry 12": provider_attr_srq_fields_agree_with_srq_create,
        "spec/registry 12": provider_attr_has_values_for_implementation_version_and_transport,
        "spec/registry 12": provider_attr_reports_all_completion_flags_and_sends_accept_them,
    ]
}

fn query(ia: &Ia, adapter: DAT_IA_ATTR_MASK, provider: DAT_PROVIDER_ATTR_MASK) -> (DAT_IA_ATTR, DAT_PROVIDER_ATTR) {
    let (mut attr, mut theirs) = (zeroed(), zeroed());
    ok(dat_ia_query(ia.h(), null_mut(), adapter, &mut attr, provider, &mut theirs));
    (attr, theirs)
}

/// Returns every byte of a record that was filled with `fill` before the call.
fn bytes<T: CRecord>(fill: u8, call: impl FnOnce(*mut T) -> DAT_RETURN) -> Vec<u8> {
    let place = Buffer::new(size_of::<T>());
    place.fill(fill);
    ok(call(place.pointer().cast()));
    place.take(0, place.length())
}

fn ia_query_with_empty_masks_succeeds(ctx: &Ctx) {
    let ia = ctx.ia();
    ok(dat_ia_query(ia.h(), null_mut(), 0, null_mut(), 0, null_mut()));
}

fn ia_query_returns_the_async_evd_alone(ctx: &Ctx) {
    let ia = ctx.ia();
    assert_eq!(filled::<DAT_HANDLE>(|evd| dat_ia_query(ia.h(), evd, 0, null_mut(), 0, null_mut())), ia.errors());
}

fn ia_query_returns_adapter_and_provider_attributes_in_one_call(ctx: &Ctx) {
    let ia = ctx.ia();
    let (mut evd, mut attr, mut theirs) = (DAT_HANDLE_NULL, zeroed(), zeroed());
    let (all, everything) = (DAT_IA_FIELD_ALL, DAT_PROVIDER_FIELD_ALL);
    ok(dat_ia_query(ia.h(), &mut evd, all, &mut attr, everything, &mut theirs));
    assert_eq!(evd, ia.errors());
    let (alone, theirs_alone) = (ia.attr(), ia.provider_attr());
    assert_eq!((attr.max_eps, attr.max_message_size), (alone.max_eps, alone.max_message_size));
    assert_eq!(theirs.max_private_data_size, theirs_alone.max_private_data_size);
}

fn ia_query_without_a_record_returns_invalid_arg4(ctx: &Ctx) {
    let ia = ctx.ia();
    for mask in [DAT_IA_FIELD_ALL, 1, 1 << 34] {
        let code = untouched(|evd| dat_ia_query(ia.h(), evd, mask, null_mut(), 0, null_mut()));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    }
}

fn ia_query_without_a_provider_record_returns_invalid_arg6(ctx: &Ctx) {
    let ia = ctx.ia();
    for mask in [DAT_PROVIDER_FIELD_ALL, 1, 1 << 25] {
        let code = untouched(|evd| dat_ia_query(ia.h(), evd, 0, null_mut(), mask, null_mut()));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
    }
}

fn ia_query_unknown_adapter_bits_return_invalid_arg3(ctx: &Ctx) {
    let ia = ctx.ia();
    for mask in [1 << 35, 1 << 63, DAT_IA_FIELD_ALL | 1 << 40, DAT_IA_ATTR_MASK::MAX] {
        let code = untouched(|attr| dat_ia_query(ia.h(), null_mut(), mask, attr, 0, null_mut()));
        refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    }
}

/// Programs compiled against other headers pass a larger ALL mask.
fn ia_query_unknown_provider_bits_are_ignored(ctx: &Ctx) {
    let ia = ctx.ia();
    ok(dat_ia_query(ia.h(), null_mut(), 0, null_mut(), 1 << 26, null_mut()));
    let (_, theirs) = query(&ia, 0, DAT_PROVIDER_ATTR_MASK::MAX);
    assert_eq!(theirs.dapl_version_major, 1);
}

fn ia_query_errors_write_nothing(ctx: &Ctx) {
    let ia = ctx.ia();
    let code = untouched(|evd| {
        untouched(|attr| dat_ia_query(ia.h(), evd, DAT_IA_FIELD_ALL, attr, DAT_PROVIDER_FIELD_ALL, null_mut()))
    });
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG6);
    let code =
        untouched(|evd| untouched(|theirs| dat_ia_query(ia.h(), evd, 1, null_mut(), DAT_PROVIDER_FIELD_ALL, theirs)));
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    let code = untouched(|evd| {
        untouched(|attr| untouched(|theirs| dat_ia_query(ia.h(), evd, 1 << 35, attr, DAT_PROVIDER_FIELD_ALL, theirs)))
    });
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

fn ia_query_reports_a_missing_record_before_unknown_bits(ctx: &Ctx) {
    let ia = ctx.ia();
    let code = dat_ia_query(ia.h(), null_mut(), DAT_IA_FIELD_ALL | 1 << 35, null_mut(), 1, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG4);
    let (mut attr, mask) = (zeroed(), 1 << 35);
    let code = dat_ia_query(ia.h(), null_mut(), mask, &mut attr, 1, null_mut());
    refused(code, DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
}

/// Compares only some of the fields with those of a full query.
fn ia_query_accepts_each_adapter_bit_alone(ctx: &Ctx) {
    let ia = ctx.ia();
    let all = ia.attr();
    for bit in 0..35 {
        // The library may return more fields than requested.
        let attr: DAT_IA_ATTR = filled(|out| dat_ia_query(ia.h(), null_mut(), 1 << bit, out, 0, null_mut()));
        match bit {
            6 => assert_eq!(address_at(attr.ia_address_ptr), address_at(all.ia_address_ptr)),
            7 => assert_eq!(attr.max_eps, all.max_eps),
            8 => assert_eq!(attr.max_dto_per_ep, all.max_dto_per_ep),
            12 => assert_eq!(attr.max_evd_qlen, all.max_evd_qlen),
            18 => assert_eq!(attr.max_message_size, all.max_message_size),
            _ => {}
        }
    }
}

/// Compares only some of the fields with those of a full query.
fn ia_query_accepts_each_provider_bit_alone(ctx: &Ctx) {
    let ia = ctx.ia();
    let all = ia.provider_attr();
    for bit in 0..26 {
        let attr: DAT_PROVIDER_ATTR = filled(|out| dat_ia_query(ia.h(), null_mut(), 0, null_mut(), 1 << bit, out));
        match bit {
            3 => assert_eq!(attr.dapl_version_major, all.dapl_version_major),
            4 => assert_eq!(attr.dapl_version_minor, all.dapl_version_minor),
            9 => assert_eq!(attr.is_thread_safe, all.is_thread_safe),
            10 => assert_eq!(attr.max_private_data_size, all.max_private_data_size),
            _ => {}
        }
    }
}

fn ia_query_writes_every_field(ctx: &Ctx) {
    let ia = ctx.ia();
    let adapter =
        |fill| bytes::<DAT_IA_ATTR>(fill, |out| dat_ia_query(ia.h(), null_mut(), DAT_IA_FIELD_ALL, out, 0, null_mut()));
    let provider = |fill| {
        bytes::<DAT_PROVIDER_ATTR>(fill, |out| {
            dat_ia_query(ia.h(), null_mut(), 0, null_mut(), DAT_PROVIDER_FIELD_ALL, out)
        })
    };
    for (zeros, ones) in [(adapter(0), adapter(0xff)), (provider(0), provider(0xff))] {
        // Allows a few unset bytes of padding; `ia_query_clears_padding` allows none.
        let unset = zeros.iter().zip(&ones).filter(|(zero, one)| zero != one).count();
        assert!(unset <= 8, "{unset} bytes were not written");
    }
}

fn ia_query_returns_the_same_values_every_time(ctx: &Ctx) {
    let ia = ctx.ia();
    let all = || {
        let attr = ia.attr();
        let counts = [attr.max_eps, attr.max_evds, attr.max_evd_qlen, attr.max_lmrs, attr.max_pzs, attr.max_rmrs];
        let sizes = [attr.max_lmr_block_size, attr.max_message_size, attr.max_rdma_size];
        (counts, sizes, attr.ia_address_ptr, attr.max_srqs, attr.max_rdma_read_in, attr.max_rdma_read_out)
    };
    let before = all();
    let objects = OneOfEach::within(ctx, &ia, 0);
    assert_eq!(all(), before, "the attributes changed when objects were created");
    drop(objects);
    assert_eq!(all(), before);
}

/// Programs compare whole records, so padding is cleared.
fn ia_query_clears_padding(ctx: &Ctx) {
    let ia = ctx.ia();
    let records = |before| {
        let (adapter, provider) = (Buffer::new(size_of::<DAT_IA_ATTR>()), Buffer::new(size_of::<DAT_PROVIDER_ATTR>()));
        adapter.fill(before);
        provider.fill(before);
        let (out, provider_out) = (adapter.pointer().cast(), provider.pointer().cast());
        ok(dat_ia_query(ia.h(), null_mut(), DAT_IA_FIELD_ALL, out, DAT_PROVIDER_FIELD_ALL, provider_out));
        (adapter.take(0, adapter.length()), provider.take(0, provider.length()))
    };
    assert!(records(0xAA) == records(0x55));
}

fn ia_query_of_an_adapter_with_all_objects_returns_the_api_version(ctx: &Ctx) {
    let objects = OneOfEach::of(ctx);
    let attr = objects.ia.provider_attr();
    assert_eq!((attr.dapl_version_major, attr.dapl_version_minor), (1, 2));
}

fn ia_attr_names_have_a_nul_and_the_adapter_name_is_the_opened_one(ctx: &Ctx) {
    let attr = ctx.ia().attr();
    for name in [attr.adapter_name, attr.vendor_name] {
        assert!(name.contains(&0), "the name has no NUL");
    }
    assert_eq!(text_at(attr.adapter_name.as_ptr()), ctx.provider);
}

fn ia_attr_address_is_a_stable_ipv4_address_without_port(ctx: &Ctx) {
    let ia = ctx.ia();
    let pointer = ia.attr().ia_address_ptr;
    let address = address_at(pointer);
    assert_eq!(i32::from(u16::from_ne_bytes([address[0], address[1]])), libc::AF_INET);
    assert_eq!(address[2..4], [0, 0], "the address has a port");
    assert_eq!(address[8..16], [0; 8], "the padding of the address is not zero");
    assert_eq!(bytes_at(pointer.cast(), 28)[16..], [0; 12], "the bytes after the address are not zero");
    assert_eq!(ia.attr().ia_address_ptr, pointer, "the address moved");
}

fn ia_attr_limits_are_positive_and_optional_ones_are_not_negative(ctx: &Ctx) {
    let attr = ctx.ia().attr();
    let counts = [
        attr.max_eps,
        attr.max_dto_per_ep,
        attr.max_rdma_read_per_ep_in,
        attr.max_rdma_read_per_ep_out,
        attr.max_evds,
        attr.max_evd_qlen,
        attr.max_iov_segments_per_dto,
        attr.max_lmrs,
        attr.max_pzs,
        attr.max_iov_segments_per_rdma_read,
        attr.max_iov_segments_per_rdma_write,
        attr.max_rdma_read_in,
        attr.max_rdma_read_out,
    ];
    for (at, count) in counts.into_iter().enumerate() {
        assert!(count > 0, "the limit at index {at} is {count}, wanted more than 0");
    }
    let sizes = [attr.max_lmr_block_size, attr.max_lmr_virtual_address, attr.max_message_size, attr.max_rdma_size];
    assert!(sizes.iter().all(|size| *size > 0));
    assert!([attr.max_rmrs, attr.max_srqs, attr.max_ep_per_srq, attr.max_recv_per_srq].iter().all(|count| *count >= 0));
}

fn ia_attr_limits_are_at_least_those_that_programs_require(ctx: &Ctx) {
    let attr = ctx.ia().attr();
    assert!(attr.max_evd_qlen >= 65_535, "max_evd_qlen is {}, MPI libraries require 65,535", attr.max_evd_qlen);
    assert!(attr.max_iov_segments_per_dto >= 4);
    assert!(attr.max_rdma_read_per_ep_in >= 4 && attr.max_rdma_read_per_ep_out >= 4);
}

/// Checks that an EP with changed attributes can be created.
#[track_caller]
fn expect_ep_creation(ia: &Ia, change: impl FnOnce(&mut DAT_EP_ATTR)) {
    let mut setup = Setup::default();
    change(&mut setup.attr);
    let conn = Conn::unconnected(ia, &setup);
    conn.ep.expect_state(DAT_EP_STATE_UNCONNECTED);
}

fn ia_attr_maximum_message_sizes_are_accepted_by_ep_create(ctx: &Ctx) {
    let ia = ctx.ia();
    let most = ia.attr();
    expect_ep_creation(&ia, |attr| {
        attr.max_message_size = most.max_message_size;
        attr.max_rdma_size = most.max_rdma_size;
    });
}

fn ia_attr_maximum_dtos_are_accepted_by_ep_create(ctx: &Ctx) {
    let ia = ctx.ia();
    let most = ia.attr().max_dto_per_ep;
    expect_ep_creation(&ia, |attr| attr.max_request_dtos = most);
    expect_ep_creation(&ia, |attr| attr.max_recv_dtos = most);
}

fn ia_attr_maximum_segments_are_accepted_by_ep_create(ctx: &Ctx) {
    let ia = ctx.ia();
    let most = ia.attr();
    expect_ep_creation(&ia, |attr| {
        attr.max_request_iov = most.max_iov_segments_per_dto;
        attr.max_recv_iov = most.max_iov_segments_per_dto;
        attr.max_rdma_read_iov = most.max_iov_segments_per_rdma_read;
        attr.max_rdma_write_iov = most.max_iov_segments_per_rdma_write;
    });
}

fn ia_attr_maximum_reads_are_accepted_by_ep_create(ctx: &Ctx) {
    let ia = ctx.ia();
    let most = ia.attr();
    expect_ep_creation(&ia, |attr| {
        attr.max_rdma_read_in = most.max_rdma_read_per_ep_in;
        attr.max_rdma_read_out = most.max_rdma_read_per_ep_out;
    });
}

#[track_caller]
fn have_names(array: *const DAT_NAMED_ATTR, count: DAT_COUNT) {
    assert!(count >= 0 && (count == 0 || !array.is_null()));
    for (name, _value) in named_attributes(array, count) {
        assert!(!name.is_empty());
    }
}

fn ia_attr_named_attributes_have_names(ctx: &Ctx) {
    let ia = ctx.ia();
    let attr = ia.attr();
    have_names(attr.transport_attr, attr.num_transport_attr);
    have_names(attr.vendor_attr, attr.num_vendor_attr);
}

fn provider_attr_returns_the_provider_name_and_the_api_version(ctx: &Ctx) {
    let attr = ctx.ia().provider_attr();
    assert_eq!(text_at(attr.provider_name.as_ptr()), ctx.provider);
    assert_eq!((attr.dapl_version_major, attr.dapl_version_minor), (1, 2));
}

fn provider_attr_memory_types_are_all_supported(ctx: &Ctx) {
    let ia = ctx.ia();
    assert_eq!(
        ia.provider_attr().lmr_mem_types_supported,
        3,
        "lmr_mem_types_supported is not 3, the mask of all three types"
    );
    let pz = ia.pz();
    let memory = ia.memory(&pz, 64);
    let region = DAT_REGION_DESCRIPTION { for_lmr_handle: memory.h() };
    let rights = DAT_MEM_PRIV_ALL_FLAG;
    let (mut lmr, mut context) = (DAT_HANDLE_NULL, 0);
    let none = null_mut();
    let kind = DAT_MEM_TYPE_LMR;
    ok(dat_lmr_create(ia.h(), kind, region, 0, pz.h(), rights, &mut lmr, &mut context, none, null_mut(), null_mut()));
    Lmr::own(lmr).free();
}

fn provider_attr_thread_safety_is_a_boolean(ctx: &Ctx) {
    // Some libdats decide by this attribute which IAs to close at exit. The attribute repeats the argument of
    // `dat_provider_init`, or is true over this project's libdat. The case does not know the argument, so it checks
    // only that the value is a boolean.
    let truth = ctx.ia().provider_attr().is_thread_safe;
    assert!([DAT_FALSE, DAT_TRUE].contains(&truth), "is_thread_safe is {truth}, wanted 0 or 1");
}

fn provider_attr_has_the_specified_constants(ctx: &Ctx) {
    let attr = ctx.ia().provider_attr();
    assert_eq!(attr.iov_ownership_on_return, DAT_IOV_CONSUMER);
    assert_eq!(attr.dat_qos_supported, DAT_QOS_BEST_EFFORT);
    assert_eq!(attr.pz_support, DAT_PZ_UNIQUE);
    assert_eq!(attr.supports_multipath, DAT_FALSE);
    assert_eq!(attr.lmr_sync_req, DAT_FALSE);
    assert_eq!(attr.dto_async_return_guaranteed, DAT_FALSE);
    assert!([DAT_FALSE, DAT_TRUE].contains(&attr.rdma_write_for_rdma_read_req));
    let alignment = attr.optimal_buffer_alignment;
    assert!(alignment > 0 && 256 % alignment == 0, "the alignment {alignment} does not divide 256");
}

fn provider_attr_private_data_size_is_at_least_48(ctx: &Ctx) {
    let size = ctx.ia().provider_attr().max_private_data_size;
    assert!(size >= 48, "only {size} bytes of private data, programs send 48");
}

fn provider_attr_reports_that_all_evd_streams_merge(ctx: &Ctx) {
    let merging = ctx.ia().provider_attr().evd_stream_merging_supported;
    for (one, row) in merging.iter().enumerate() {
        for (other, merges) in row.iter().enumerate() {
            assert_eq!(*merges, DAT_TRUE, "the streams {one} and {other} do not merge");
            assert_eq!(*merges, merging[other][one]);
        }
    }
}

fn provider_attr_srq_fields_agree_with_srq_create(ctx: &Ctx) {
    let ia = ctx.ia();
    let (attr, adapter) = (ia.provider_attr(), ia.attr());
    let has_srq = attr.srq_supported != DAT_FALSE;
    assert_eq!(has_srq, adapter.max_srqs > 0);
    assert_eq!(has_srq, adapter.max_recv_per_srq > 0);
    assert_eq!(has_srq, adapter.max_ep_per_srq > 0);
    assert_eq!(attr.srq_watermarks_supported & !0x111, 0);
    assert_eq!(attr.srq_info_supported & !0x11, 0);
    assert_eq!(attr.ep_recv_info_supported & !0x11, 0);
    if !has_srq {
        assert_eq!((attr.srq_watermarks_supported & 1, attr.srq_info_supported), (0, 0));
    }
    let pz = ia.pz();
    let mut wanted = DAT_SRQ_ATTR { max_recv_dtos: 1, max_recv_iov: 1, low_watermark: 0 };
    let mut srq = DAT_HANDLE_NULL;
    let code = dat_srq_create(ia.h(), pz.h(), &mut wanted, &mut srq);
    assert_eq!(code == DAT_SUCCESS, has_srq, "srq_supported differs from what dat_srq_create does");
    if has_srq {
        Srq::own(srq).free();
    }
}

fn provider_attr_has_values_for_implementation_version_and_transport(ctx: &Ctx) {
    let ia = ctx.ia();
    let attr = ia.provider_attr();
    have_names(attr.provider_specific_attr, attr.num_provider_specific_attr);
    let named = named_attributes(attr.provider_specific_attr, attr.num_provider_specific_attr);
    for wanted in ["implementation", "version", "transport"] {
        assert!(
            named.iter().any(|(name, value)| name == wanted && !value.is_empty()),
            "no value for {wanted} in {named:?}"
        );
    }
}

fn provider_attr_reports_all_completion_flags_and_sends_accept_them(ctx: &Ctx) {
    let ia = ctx.ia();
    let flags = ia.provider_attr().completion_flags_supported;
    let all = DAT_COMPLETION_SUPPRESS_FLAG
        | DAT_COMPLETION_SOLICITED_WAIT_FLAG
        | DAT_COMPLETION_UNSIGNALLED_FLAG
        | DAT_COMPLETION_BARRIER_FENCE_FLAG;
    assert_eq!(flags, all);
    let attr = DAT_EP_ATTR { request_completion_flags: DAT_COMPLETION_UNSIGNALLED_FLAG, ..Setup::default().attr };
    let (client, server) = ctx.loopback_with(&ia, &Setup { attr, ..Setup::default() });
    let (here, there) = (client.memory(64), server.memory(64));
    for (id, flag) in (1..).zip([0, DAT_COMPLETION_SUPPRESS_FLAG, DAT_COMPLETION_SOLICITED_WAIT_FLAG, all]) {
        server.post_recv(id, there.segment(0, 8));
        client.post_send_as(id, here.segment(0, 8), flag);
        expect_dto(server.recv.h(), id, DAT_DTO_SUCCESS, 8);
    }
}
