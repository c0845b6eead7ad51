//! Tests of events in the layout of 2.0, and of the descriptors of CNOs.

use super::*;

#[test]
fn dto_completion_of_2_0_names_its_operation() {
    let world = World::new(c"v2 operations");
    let (client, server) = world.pair(40);
    let mut iov = [DAT_LMR_TRIPLET { virtual_address: 0x1000, segment_length: 40, lmr_context: 3 }; 2];
    let remote = DAT_RMR_TRIPLET { virtual_address: 0x2000, segment_length: 0, rmr_context: 4 };
    assert_eq!(call!(ep_post_recv_func(server, 2, iov.as_mut_ptr(), cookie(1), 0)), DAT_SUCCESS);
    let flags = DAT_COMPLETION_LMR_INVALIDATE_FENCE_FLAG;
    assert_eq!(call!(ep_post_send_func(client, 2, iov.as_mut_ptr(), cookie(2), flags)), DAT_SUCCESS);
    assert_eq!(call!(ep_post_rdma_write_func(client, 1, iov.as_mut_ptr(), cookie(3), &remote, 0)), DAT_SUCCESS);
    assert_eq!(call!(ep_post_rdma_read_func(client, 1, iov.as_mut_ptr(), cookie(4), &remote, 0)), DAT_SUCCESS);
    world.deliver();
    let mut seen: Vec<_> = std::iter::from_fn(|| next(world.dto))
        .map(|event| {
            assert_eq!(event.event_extension_data, [0; 8]);
            assert_eq!((event.event_number, event.evd_handle), (DAT_DTO_COMPLETION_EVENT, world.dto));
            // SAFETY: the event number selects the union member; every union member of a cookie has eight bytes, and
            // any bits are a valid integer.
            let (done, cookie) = unsafe {
                let done = event.event_data.dto_completion_event_data;
                (done, done.user_cookie.as_64)
            };
            (cookie, done.operation, done.transfered_length, done.ep_handle == client)
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        [
            (1, DAT_DTO_RECEIVE, 80, false),
            (2, DAT_DTO_SEND, 80, true),
            (3, DAT_DTO_RDMA_WRITE, 40, true),
            (4, DAT_DTO_RDMA_READ, 40, true)
        ]
    );
    let read = |iov, count, remote| call!(ep_post_rdma_read_func(client, count, iov, cookie(4), remote, 0));
    assert_eq!(read(iov.as_mut_ptr(), 1, null()), bad_argument(5));
    assert_eq!(read(null_mut(), 1, &raw const remote), bad_argument(3));
    assert_eq!(read(iov.as_mut_ptr(), -1, &raw const remote), bad_argument(2));
    assert_eq!(read(iov.as_mut_ptr(), i32::MAX, &raw const remote), bad_argument(2));
    let mut many = [iov[0]; 9];
    assert_eq!(read(many.as_mut_ptr(), 9, &raw const remote), bad_argument(2));
}

#[test]
fn wait_returns_a_posted_software_event_in_the_layout_of_2_0() {
    let world = World::new(c"v2 wait");
    let evd = world.evd(DAT_EVD_SOFTWARE_FLAG | DAT_EVD_DTO_FLAG | DAT_IB_EVD_EXTENSION_FLAG);
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
    let mut event = unsafe { std::mem::zeroed::<DAT_EVENT>() };
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = 77 as *mut c_void;
    assert_eq!(call!(evd_post_se_func(evd, &event)), DAT_SUCCESS);
    event.event_number = DAT_HA_DOWN_TO_1;
    assert_eq!(call!(evd_post_se_func(evd, &event)), bad_argument(2));
    let (mut taken, mut more) = (MaybeUninit::<DAT_EVENT>::uninit(), 9);
    assert_eq!(call!(evd_wait_func(evd, 1_000_000, 1, taken.as_mut_ptr(), &mut more)), DAT_SUCCESS);
    // SAFETY: the call has succeeded, so it has written the record.
    let taken = unsafe { taken.assume_init() };
    assert_eq!((taken.event_number, taken.evd_handle, more), (DAT_SOFTWARE_EVENT, evd, 0));
    // SAFETY: the event number selects the union member.
    assert_eq!(unsafe { taken.event_data.software_event_data.pointer }, 77 as *mut c_void);
    assert_eq!(taken.event_extension_data, [0; 8]);
    let timed_out = call!(evd_wait_func(evd, 0, 1, &mut event, &mut more));
    assert_eq!(timed_out, error(DAT_TIMEOUT_EXPIRED, 0));
    assert_eq!(call!(evd_wait_func(evd, 0, 1, null_mut(), &mut more)), bad_argument(4));
    assert_eq!(call!(evd_dequeue_func(evd, null_mut())), bad_argument(2));

    let param: DAT_EVD_PARAM = written(|out| call!(evd_query_func(evd, DAT_EVD_FIELD_ALL, out)));
    assert_eq!(param.evd_flags, DAT_EVD_SOFTWARE_FLAG | DAT_EVD_DTO_FLAG | DAT_IB_EVD_EXTENSION_FLAG);
    let mut out = null_mut();
    let create = |flags, out| call!(evd_create_func(world.ia(), 4, null_mut(), flags, out));
    assert_eq!(create(0x400, &mut out), bad_argument(4));
    assert_eq!(create(0, &mut out), bad_argument(4));
    assert_eq!(create(DAT_EVD_DTO_FLAG, null_mut()), bad_argument(5));
}

#[test]
fn a_cno_has_a_descriptor_or_an_agent_or_neither() {
    let world = World::new(c"v2 cno");
    let query = |cno| written::<DAT_CNO_PARAM>(|out| call!(cno_query_func(cno, DAT_CNO_FIELD_ALL, out)));
    let (mut fd, mut cno) = (-1, null_mut());
    assert_eq!(call!(cno_fd_create_func(world.ia(), &mut fd, &mut cno)), DAT_SUCCESS);
    let param = query(cno);
    // SAFETY: the proxy's type selects the union member.
    assert_eq!((param.proxy_type, unsafe { param.proxy.fd }), (DAT_PROXY_TYPE_FD, fd));
    assert!(fd >= 0);
    let mut evd = 9 as H;
    assert_eq!((call!(cno_trigger_func(cno, &mut evd)), evd), (DAT_QUEUE_EMPTY, null_mut()));
    let source = written(|out| call!(evd_create_func(world.ia(), 4, cno, DAT_EVD_SOFTWARE_FLAG, out)));
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
    let mut event = unsafe { std::mem::zeroed::<DAT_EVENT>() };
    event.event_number = DAT_SOFTWARE_EVENT;
    assert_eq!(call!(evd_post_se_func(source, &event)), DAT_SUCCESS);
    assert_eq!((call!(cno_trigger_func(cno, &mut evd)), evd), (DAT_SUCCESS, source));
    assert_eq!(call!(cno_trigger_func(cno, null_mut())), bad_argument(2));
    assert_eq!(call!(cno_trigger_func(source, &mut evd)), bad_handle(DAT_INVALID_HANDLE_CNO));
    assert_eq!(call!(cno_fd_create_func(world.ia(), null_mut(), &mut cno)), bad_argument(2));
    assert_eq!(call!(cno_fd_create_func(world.ia(), &mut fd, null_mut())), bad_argument(3));
    assert_eq!(call!(cno_query_func(cno, 8, null_mut())), bad_argument(2));
    assert_eq!(call!(cno_query_func(cno, DAT_CNO_FIELD_ALL, null_mut())), bad_argument(3));

    unsafe extern "C" fn ignore(_: DAT_PVOID, _: DAT_EVD_HANDLE) {}
    let agent = DAT_OS_WAIT_PROXY_AGENT { instance_data: 5 as H, proxy_agent_func: Some(ignore) };
    let with_agent = written(|out| call!(cno_create_func(world.ia(), agent, out)));
    let param = query(with_agent);
    // SAFETY: the proxy's type selects the union member.
    assert_eq!((param.proxy_type, unsafe { param.proxy.agent.instance_data }), (DAT_PROXY_TYPE_AGENT, 5 as H));
    let none = DAT_OS_WAIT_PROXY_AGENT { instance_data: null_mut(), proxy_agent_func: None };
    assert_eq!(call!(cno_modify_agent_func(with_agent, none)), DAT_SUCCESS);
    assert_eq!(query(with_agent).proxy_type, DAT_PROXY_TYPE_NONE);
    assert_eq!(call!(cno_free_func(with_agent)), DAT_SUCCESS);
}
