//! Tests of the conversions. Most of them compare constants that have the same name in both versions.

use super::*;

/// Returns the name of each constant, and its values in 1.2 and in 2.0.
macro_rules! pairs {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), v1::$name as u64, v2::$name as u64)),*] };
}

#[test]
fn every_1_2_subtype_maps_to_the_2_0_subtype_of_the_same_name() {
    let of_1_2 = v1::error::DAT_RETURN_SUBTYPE_NAMES;
    let of_2_0 = v2::error::DAT_RETURN_SUBTYPE_NAMES;
    let name = |names: &[&'static std::ffi::CStr], at: u32| names[at as usize - 1];
    for subtype in 1..=of_1_2.len() as u32 {
        let old = v1::DAT_CLASS_ERROR | v1::DAT_INVALID_STATE | subtype;
        let new = code(old);
        assert_eq!(new & !v2::DAT_SUBTYPE_MASK, v2::DAT_CLASS_ERROR | v2::DAT_INVALID_STATE);
        assert_eq!(name(of_1_2, subtype), name(of_2_0, new & v2::DAT_SUBTYPE_MASK));
    }
    assert_eq!((code(v1::DAT_SUCCESS), code(v1::DAT_QUEUE_EMPTY)), (v2::DAT_SUCCESS, v2::DAT_QUEUE_EMPTY));
}

#[test]
fn errors_that_only_2_0_has_get_their_codes() {
    assert_eq!(error(Error::PortInUse), 0x8016_0000);
    assert_eq!(error(Error::CommNotSupported), 0x8017_0000);
    assert_eq!(error(Error::InvalidHandle(Handle::Csp)), 0x8005_001A);
    assert_eq!(error(Error::InvalidHandle(Handle::Any)), 0x8005_001B);
    assert_eq!(error(Error::InvalidParameter(1)), 0x8006_0025);
    assert_eq!(error(Error::QueueEmpty), 0x000D_0000);
}

#[test]
fn converted_errors_name_the_parameter_numbers_of_2_0() {
    let bad = |n: u32| v1::DAT_CLASS_ERROR | v1::DAT_INVALID_PARAMETER | (v1::DAT_INVALID_ARG1 + n - 1);
    let moved = |n: u32| code_with_arguments(bad(n), &[(2, 3), (3, 4)]) & v2::DAT_SUBTYPE_MASK;
    assert_eq!([moved(1), moved(2), moved(3)], [v2::DAT_INVALID_ARG1, v2::DAT_INVALID_ARG3, v2::DAT_INVALID_ARG4]);
    let state = v1::DAT_CLASS_ERROR | v1::DAT_INVALID_STATE | v1::DAT_INVALID_STATE_EP_NOTREADY;
    assert_eq!(code_with_arguments(state, &[(2, 3)]), code(state), "no parameter");
}

#[test]
fn ep_mask_maps_each_2_0_field_to_the_1_2_field_of_the_same_name() {
    let pairs = pairs![
        DAT_EP_FIELD_IA_HANDLE,
        DAT_EP_FIELD_EP_STATE,
        DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR,
        DAT_EP_FIELD_LOCAL_PORT_QUAL,
        DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR,
        DAT_EP_FIELD_REMOTE_PORT_QUAL,
        DAT_EP_FIELD_PZ_HANDLE,
        DAT_EP_FIELD_RECV_EVD_HANDLE,
        DAT_EP_FIELD_REQUEST_EVD_HANDLE,
        DAT_EP_FIELD_CONNECT_EVD_HANDLE,
        DAT_EP_FIELD_SRQ_HANDLE,
        DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE,
        DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE,
        DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV,
        DAT_EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR,
    ];
    for (name, old, new) in pairs {
        assert_eq!(ep_mask(new), old, "{name}");
    }
    assert_eq!(ep_mask(v2::DAT_EP_FIELD_COMM), 0);
    assert_eq!(ep_mask(v2::DAT_EP_FIELD_ALL), v1::DAT_EP_FIELD_ALL);
}

#[test]
fn ia_mask_selects_all_fields_and_is_invalid_for_unknown_bits() {
    assert_eq!((ia_mask(0), ia_mask(v2::DAT_IA_FIELD_IA_EXTENSION_VERSION)), (0, v1::DAT_IA_FIELD_ALL));
    assert_eq!(ia_mask(v2::DAT_IA_FIELD_ALL + 1), !v1::DAT_IA_FIELD_ALL);
    assert_eq!(ia_mask(!0), !0);
}

#[test]
fn constants_without_a_conversion_are_equal_in_both_versions() {
    let same = pairs![
        DAT_DTO_COMPLETION_EVENT,
        DAT_RMR_BIND_COMPLETION_EVENT,
        DAT_CONNECTION_REQUEST_EVENT,
        DAT_CONNECTION_EVENT_ESTABLISHED,
        DAT_CONNECTION_EVENT_UNREACHABLE,
        DAT_ASYNC_ERROR_EVD_OVERFLOW,
        DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
        DAT_SOFTWARE_EVENT,
        DAT_DTO_ERR_RECEIVER_NOT_READY,
        DAT_RMR_OPERATION_FAILED,
        DAT_EP_STATE_COMPLETION_PENDING,
        DAT_HANDLE_TYPE_SRQ,
        DAT_MEM_PRIV_ALL_FLAG,
        DAT_COMPLETION_EVD_THRESHOLD_FLAG,
        DAT_SERVICE_TYPE_RC,
        DAT_EVD_ASYNC_FLAG,
        DAT_CONNECT_MULTIPATH_FLAG,
    ];
    for (name, old, new) in same {
        assert_eq!(old, new, "{name}");
    }
}

#[test]
fn srq_states_map_to_the_2_0_values_of_the_same_name() {
    assert_eq!(srq_state(v1::DAT_SRQ_STATE_OPERATIONAL), v2::DAT_SRQ_STATE_OPERATIONAL);
    assert_eq!(srq_state(v1::DAT_SRQ_STATE_ERROR), v2::DAT_SRQ_STATE_ERROR);
}
