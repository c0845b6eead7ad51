//! Tests of the attributes of EPs: which are supported, their defaults, and the error of each invalid one.

use super::*;

const BOTH: AttachedQueues = AttachedQueues { recv: true, request: true, shared: false };
const NONE: AttachedQueues = AttachedQueues { recv: false, request: false, shared: false };
const SHARED: AttachedQueues = AttachedQueues { shared: true, ..BOTH };

fn limits() -> Limits {
    Limits {
        max_eps: 100,
        max_dtos: 1000,
        max_evds: 100,
        max_evd_qlen: 1000,
        max_iov: 6,
        max_lmrs: 100,
        max_lmr_size: 1 << 40,
        max_pzs: 100,
        max_message: 1 << 32,
        max_rdma: 1 << 20,
        max_rmrs: 0,
        max_srqs: 0,
        max_reads_in: 4,
        max_reads_out: 16,
        private_data_connect: 64,
        private_data_connect_1_2: 64,
        private_data_accept: 64,
        private_data_reject: 64,
        extensions: Extensions::default(),
        vendor: String::new(),
        hardware_version: (0, 0),
        firmware_version: (0, 0),
    }
}

fn plain() -> Attributes {
    Attributes::default_for(BOTH, &limits())
}

#[test]
fn default_attributes_pass_the_checks_of_ep_create() {
    for attached in [BOTH, NONE, AttachedQueues { recv: true, ..NONE }] {
        let defaults = Attributes::default_for(attached, &limits());
        assert_eq!(defaults.check_for_create(attached, &limits()), Ok(defaults));
    }
    assert_eq!((plain().recv(), plain().max_rdma_read_in, plain().max_rdma_read_out), (DEFAULT, 4, 8));
    assert_eq!((plain().max_message_size, plain().max_rdma_size), (0x8000_0000, 1 << 20));
}

#[test]
fn a_direction_has_both_an_evd_and_dtos_or_neither() {
    let mut bare = plain();
    bare.max_recv_dtos = 0;
    assert_eq!(bare.check_for_create(BOTH, &limits()), Err(InvalidAttributes));
    assert!(bare.check_for_create(AttachedQueues { request: true, ..NONE }, &limits()).is_ok());
    assert_eq!(plain().check_for_create(NONE, &limits()), Err(InvalidAttributes));
    let mut flat = plain();
    flat.max_recv_iov = 0;
    assert_eq!(flat.check_for_create(BOTH, &limits()), Err(InvalidAttributes));
    flat.max_recv_dtos = 0;
    assert!(flat.check_for_create(AttachedQueues { request: true, ..NONE }, &limits()).is_ok());
}

#[test]
fn too_many_dtos_are_clamped_and_negative_numbers_refused() {
    let mut large = plain();
    large.max_request_dtos = 50_000;
    assert_eq!(large.check_for_create(BOTH, &limits()).unwrap().max_request_dtos, 1000);
    large.max_request_dtos = -1;
    assert_eq!(large.check_for_create(BOTH, &limits()), Err(InvalidAttributes));
}

#[test]
fn each_unsupported_attribute_alone_is_refused() {
    let break_one: [fn(&mut Attributes); 9] = [
        |a| a.service_type = 1,
        |a| a.recv_completion_flags = DAT_COMPLETION_SUPPRESS_FLAG,
        |a| a.max_message_size = (1 << 32) + 1,
        |a| a.max_rdma_size = (1 << 20) + 1,
        |a| a.max_recv_iov = 7,
        |a| a.max_request_iov = 7,
        |a| a.max_rdma_read_in = 5,
        |a| a.max_rdma_read_out = 17,
        |a| a.max_rdma_read_out = -1,
    ];
    for (n, spoil) in break_one.into_iter().enumerate() {
        let mut bad = plain();
        spoil(&mut bad);
        assert_eq!(bad.check_for_create(BOTH, &limits()), Err(InvalidAttributes), "{n}");
    }
}

#[test]
fn zero_ep_attributes_mean_not_set() {
    let mut zero = plain();
    (zero.max_message_size, zero.max_rdma_size) = (0, 0);
    (zero.recv_completion_flags, zero.request_completion_flags) = (0, 0);
    assert!(zero.check_for_create(BOTH, &limits()).is_ok());
    zero.max_request_iov = 2;
    let posts = zero.post_limits(BOTH, &limits());
    assert_eq!((posts.request_iov, posts.read_iov, posts.write_iov), (2, 2, 2));
    zero.max_rdma_write_iov = 5;
    assert_eq!(zero.post_limits(BOTH, &limits()).write_iov, 5);
    assert_eq!(zero.shape(BOTH, &limits()).max_request_iov, 5);
}

#[test]
fn queues_have_default_depths_without_an_evd() {
    let shape = Attributes::default_for(NONE, &limits()).shape(NONE, &limits());
    assert_eq!((shape.max_recvs, shape.max_requests), (16, 16));
}

#[test]
fn with_an_srq_max_recv_dtos_is_a_watermark_without_a_limit() {
    let mut plain = plain();
    (plain.max_recv_dtos, plain.max_recv_iov, plain.srq_soft_hw) = (-1, 0, -1);
    assert_eq!(plain.check_for_create(BOTH, &limits()), Err(InvalidAttributes));
    assert_eq!(plain.check_for_create(SHARED, &limits()), Ok(plain));
    assert_eq!(plain.marks(SHARED), HighWatermarks::default());
    assert_eq!(
        plain.check(AttachedQueues { recv: false, ..SHARED }, &limits()),
        Err(InvalidAttributes),
        "no EVD could take the completions"
    );
    (plain.max_recv_dtos, plain.srq_soft_hw) = (100_000, 0);
    assert_eq!(plain.check_for_create(SHARED, &limits()).map(|a| a.max_recv_dtos), Ok(100_000), "no limit");
    assert_eq!(
        plain.marks(SHARED),
        HighWatermarks { soft: None, hard: Some(100_000) },
        "a soft watermark of zero is none"
    );
    plain.srq_soft_hw = 1;
    assert_eq!(plain.marks(SHARED), HighWatermarks { soft: Some(1), hard: Some(100_000) });
    assert_eq!(plain.marks(BOTH), HighWatermarks::default());
    for spoil in [|a: &mut Attributes| a.max_recv_dtos = -2, |a: &mut Attributes| a.srq_soft_hw = -2] {
        let mut bad = plain;
        spoil(&mut bad);
        assert_eq!(bad.check_for_create(SHARED, &limits()), Err(InvalidAttributes));
    }
    plain.set_watermarks(HighWatermarks { soft: None, hard: Some(3) });
    assert_eq!((plain.srq_soft_hw, plain.max_recv_dtos), (-1, 3));
    assert_eq!((plain.shape(SHARED, &limits()).max_recvs, plain.post_limits(SHARED, &limits()).shared), (0, true));
}

#[test]
fn attached_evds_set_the_default_max_dtos_and_their_removal_sets_zero() {
    let initial = Attributes::default_for(NONE, &limits());
    let attached = initial.with_evds_changed(NONE, BOTH, &limits());
    assert_eq!((attached.max_recv_dtos, attached.max_request_dtos), (16, 16));
    assert_eq!(attached.with_evds_changed(BOTH, NONE, &limits()), initial);
}
