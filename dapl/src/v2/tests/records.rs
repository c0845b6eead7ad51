//! Tests of queries and changes of objects through the records of 2.0, of `dat_ia_ha_related`, and of handles of 1.2 in
//! calls of 2.0.

use super::*;

#[test]
fn an_ia_reports_the_attributes_of_2_0() {
    let world = World::new(c"v2 ia query");
    let mut evd = null_mut();
    let (mut ia, mut provider) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let query = |ia_mask, ia, provider_mask, provider| {
        call!(ia_query_func(world.ia(), null_mut(), ia_mask, ia, provider_mask, provider))
    };
    let code = call!(ia_query_func(
        world.ia(),
        &mut evd,
        DAT_IA_FIELD_ALL,
        ia.as_mut_ptr(),
        DAT_PROVIDER_FIELD_ALL,
        provider.as_mut_ptr()
    ));
    assert_eq!((code, evd), (DAT_SUCCESS, world.opened.async_evd));
    // SAFETY: the call has succeeded, so it has written the record.
    let (ia, provider) = unsafe { (ia.assume_init(), provider.assume_init()) };
    assert_eq!((ia.max_message_size, ia.max_lmr_block_size), (1 << 31, u32::MAX), "the largest that fits");
    assert_eq!((ia.zb_supported, ia.extension_supported), (DAT_FALSE, DAT_EXTENSION_IB));
    assert_eq!((ia.extension_version, ia.max_iov_segments_per_dto), (DAT_IB_EXTENSION_VERSION, 4));
    assert_eq!((provider.rmr_scope_supported, provider.ha_supported), (DAT_RMR_SCOPE_ANY, DAT_FALSE));
    assert_eq!((provider.is_signal_safe, provider.ha_loadbalancing), (DAT_FALSE, DAT_HA_LB_NONE));
    assert!(provider.num_provider_specific_attr > 0 && !provider.provider_specific_attr.is_null());
    assert_eq!(query(DAT_IA_FIELD_IA_EXTENSION, null_mut(), 0, null_mut()), bad_argument(4));
    assert_eq!(query(DAT_IA_FIELD_ALL + 1, null_mut(), 0, null_mut()), bad_argument(3));
    assert_eq!(query(0, null_mut(), DAT_PROVIDER_FIELD_HA_LB, null_mut()), bad_argument(6));
    assert_eq!(query(0, null_mut(), 0, null_mut()), DAT_SUCCESS);
}

#[test]
fn ia_ha_related_reports_two_adapters_as_unrelated() {
    let world = World::new(c"v2 related");
    let (name, mut answer) = (c"other".as_ptr().cast_mut(), 7);
    assert_eq!(call!(ia_ha_related_func(world.ia(), name, &mut answer)), DAT_SUCCESS);
    assert_eq!(answer, DAT_FALSE);
    assert_eq!(call!(ia_ha_related_func(world.ia(), null_mut(), &mut answer)), bad_argument(2));
    assert_eq!(call!(ia_ha_related_func(world.ia(), name, null_mut())), bad_argument(3));
    assert_eq!(call!(ia_ha_related_func(null_mut(), name, &mut answer)), bad_handle(DAT_INVALID_HANDLE_IA));
}

#[test]
fn ep_modify_of_2_0_changes_communicator_and_attributes_or_neither() {
    let world = World::new(c"v2 ep attributes");
    let ep = world.ep();
    let query = |ep| written::<DAT_EP_PARAM>(|out| call!(ep_query_func(ep, DAT_EP_FIELD_COMM, out)));
    let mut param = query(ep);
    assert_eq!((param.comm.domain, param.ep_attr.max_message_size), (0, 1 << 31));
    assert_eq!((param.pz_handle, param.connect_evd_handle), (world.pz, world.conn));
    assert_eq!(param.ep_attr.max_recv_dtos, 16);

    param.comm = DAT_COMM { domain: libc::AF_INET, r#type: libc::SOCK_STREAM, protocol: 0 };
    param.ep_attr.max_recv_dtos = 9;
    let mask = DAT_EP_FIELD_COMM | DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS;
    assert_eq!(call!(ep_modify_func(ep, mask, &param)), DAT_SUCCESS);
    let changed = query(ep);
    assert_eq!((changed.comm.domain, changed.comm.r#type), (libc::AF_INET, libc::SOCK_STREAM));
    assert_eq!(changed.ep_attr.max_recv_dtos, 9);

    // A refused communicator leaves the attributes unchanged, and a refused attribute leaves the communicator
    // unchanged.
    param.comm.domain = libc::AF_UNIX;
    param.ep_attr.max_recv_dtos = 8;
    assert_eq!(call!(ep_modify_func(ep, mask, &param)), error(DAT_COMM_NOT_SUPPORTED, 0));
    param.comm.domain = libc::AF_INET6;
    param.ep_attr.max_recv_dtos = -8;
    assert_eq!(call!(ep_modify_func(ep, mask, &param)), bad_argument(3));
    assert_eq!((query(ep).comm.domain, query(ep).ep_attr.max_recv_dtos), (libc::AF_INET, 9));
    assert_eq!(call!(ep_modify_func(ep, DAT_EP_FIELD_EP_STATE, &param)), bad_argument(2));
    assert_eq!(call!(ep_modify_func(ep, mask, null())), bad_argument(3));
    assert_eq!(call!(ep_query_func(ep, DAT_EP_FIELD_COMM, null_mut())), bad_argument(3));

    let mut attributes = changed.ep_attr;
    let create = |attributes: *const DAT_EP_ATTR| {
        let mut out = null_mut();
        call!(ep_create_func(world.ia(), world.pz, world.dto, world.dto, world.conn, attributes, &mut out))
    };
    assert_eq!(create(&attributes), DAT_SUCCESS);
    attributes.service_type = DAT_IB_SERVICE_TYPE_UD;
    assert_eq!(create(&attributes), error(DAT_MODEL_NOT_SUPPORTED, 0));
    attributes.service_type = 7;
    assert_eq!(create(&attributes), bad_argument(6));
}

#[test]
fn srq_calls_of_2_0_return_its_states_and_argument_numbers() {
    let world = World::new(c"v2 srq");
    let mut attr = DAT_SRQ_ATTR { max_recv_dtos: 4, max_recv_iov: 2, low_watermark: 0 };
    let srq = written(|out| call!(srq_create_func(world.ia(), world.pz, &mut attr, out)));
    let param: DAT_SRQ_PARAM = written(|out| call!(srq_query_func(srq, DAT_SRQ_FIELD_ALL, out)));
    assert_eq!((param.srq_state, param.max_recv_dtos), (DAT_SRQ_STATE_OPERATIONAL, 4));
    let mut iov = [DAT_LMR_TRIPLET { virtual_address: 1, segment_length: 2, lmr_context: 3 }; 3];
    assert_eq!(call!(srq_post_recv_func(srq, 2, iov.as_mut_ptr(), cookie(1))), DAT_SUCCESS);
    assert_eq!(call!(srq_post_recv_func(srq, 3, iov.as_mut_ptr(), cookie(1))), bad_argument(2));
    assert_eq!(call!(srq_post_recv_func(srq, 2, null_mut(), cookie(1))), bad_argument(3));
    let mut attributes = written::<DAT_EP_PARAM>(|out| call!(ep_query_func(world.ep(), DAT_EP_FIELD_ALL, out))).ep_attr;
    (attributes.max_recv_dtos, attributes.srq_soft_hw) = (DAT_HW_DEFAULT, DAT_HW_DEFAULT);
    let (ia, pz, dto) = (world.ia(), world.pz, world.dto);
    let ep = written(|out| call!(ep_create_with_srq_func(ia, pz, dto, dto, world.conn, srq, &attributes, out)));
    let post = call!(ep_post_recv_func(ep, 0, null_mut(), cookie(1), 0));
    assert_eq!(post, error(DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE));
    assert_eq!(call!(srq_free_func(srq)), error(DAT_INVALID_STATE, DAT_INVALID_STATE_SRQ_IN_USE));
    assert_eq!(call!(ep_free_func(ep)), DAT_SUCCESS);
    assert_eq!(call!(srq_free_func(srq)), DAT_SUCCESS);
}

#[test]
fn handles_of_1_2_are_accepted_by_calls_of_2_0() {
    let world = World::new(c"v2 handles");
    let mut old = null_mut();
    // SAFETY: the PZ is live, and the out parameter is writable.
    let code = unsafe { crate::rmr::dapl_rmr::dapl_rmr_create::<FakeProvider>(world.pz, &mut old) };
    assert_eq!(code, DAT_SUCCESS);
    let param: DAT_RMR_PARAM = written(|out| call!(rmr_query_func(old, DAT_RMR_FIELD_ALL, out)));
    assert_eq!((param.pz_handle, param.rmr_scope), (world.pz, DAT_RMR_SCOPE_PZ));
    let mut kind = 99;
    assert_eq!(call!(get_handle_type_func(old, &mut kind)), DAT_SUCCESS);
    assert_eq!(kind, DAT_HANDLE_TYPE_RMR);
}
