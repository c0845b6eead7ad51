/*
 * dat.h - most of the Direct Access Transport API 2.0: types, attributes, events, calls.
 *
 * Programs include <dat2/udat.h>.
 *
 * Conventions. A parameter mask selects the fields of a record that a query returns or a modify sets. Out pointers must
 * not be NULL, and are written only on success, unless a comment says otherwise. A call that starts an operation
 * (connect, post, bind) returns at once, and an event on an EVD reports its completion.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _UDAT_H_
#include <dat2/udat.h> /* includes this file at the right place */
#endif

#ifndef _DAT_H_
#define _DAT_H_

#include <dat2/dat_platform_specific.h>
#include <dat2/dat_error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Basic types ------------------------------------------------------------------------------------------------ */

typedef enum dat_boolean {
    DAT_FALSE = 0,
    DAT_TRUE  = 1
} DAT_BOOLEAN;

/* The name of an IA in dat.conf, at most 255 bytes and the NUL. */
#define DAT_NAME_MAX_LENGTH 256
typedef char *DAT_NAME_PTR;

/* An attribute that is specific to a transport or provider: name and value as text. */
typedef struct dat_named_attr {
    const char *name;
    const char *value;
} DAT_NAMED_ATTR;

/* 64 bits that a program passes to DAT; DAT returns them unchanged. */
typedef union dat_context {
    DAT_PVOID     as_ptr;
    DAT_UINT64    as_64;
    DAT_UVERYLONG as_index; /* the widest integer */
} DAT_CONTEXT;

typedef DAT_CONTEXT DAT_DTO_COOKIE;
typedef DAT_CONTEXT DAT_RMR_COOKIE;

/* Lengths and addresses in bytes. */
typedef DAT_UINT64 DAT_VLEN;
typedef DAT_UINT64 DAT_VADDR;
typedef DAT_UINT32 DAT_SEG_LENGTH; /* bytes of a segment or message */

/* Microseconds. */
typedef DAT_UINT32 DAT_TIMEOUT;
#define DAT_TIMEOUT_INFINITE ((DAT_TIMEOUT)~0)

/* ---- Handles ---------------------------------------------------------------------------------------------------- */

typedef DAT_PVOID  DAT_HANDLE;

typedef DAT_HANDLE DAT_IA_HANDLE;  /* interface adapter: a port of a transport */
typedef DAT_HANDLE DAT_PZ_HANDLE;  /* protection zone: EPs use memory of their own zone only */
typedef DAT_HANDLE DAT_EVD_HANDLE; /* event dispatcher: a queue of events */
typedef DAT_HANDLE DAT_EP_HANDLE;  /* endpoint: one end of a connection */
typedef DAT_HANDLE DAT_SRQ_HANDLE; /* shared receive queue: receives for many EPs */
typedef DAT_HANDLE DAT_LMR_HANDLE; /* local memory region: registered memory */
typedef DAT_HANDLE DAT_RMR_HANDLE; /* remote memory region: a memory window of an LMR, for peers */
typedef DAT_HANDLE DAT_PSP_HANDLE; /* public service point: a listener */
typedef DAT_HANDLE DAT_RSP_HANDLE; /* reserved service point: a listener for one connection, with a given EP */
typedef DAT_HANDLE DAT_CSP_HANDLE; /* common service point: a listener on an address, without a qualifier */
typedef DAT_HANDLE DAT_CR_HANDLE;  /* connection request: waits for an answer */

#define DAT_HANDLE_NULL ((DAT_HANDLE)NULL)

typedef union dat_sp_handle {
    DAT_RSP_HANDLE rsp_handle;
    DAT_PSP_HANDLE psp_handle;
    DAT_CSP_HANDLE csp_handle;
} DAT_SP_HANDLE;

/* Returns the kind of object that a handle refers to. */
extern DAT_RETURN dat_get_handle_type(IN DAT_HANDLE dat_handle, OUT DAT_HANDLE_TYPE *handle_type);

/* Stores or returns 64 bits that the program associates with an object of any kind. */
extern DAT_RETURN dat_set_consumer_context(IN DAT_HANDLE dat_handle, IN DAT_CONTEXT context);
extern DAT_RETURN dat_get_consumer_context(IN DAT_HANDLE dat_handle, OUT DAT_CONTEXT *context);

/* ---- Names of results ------------------------------------------------------------------------------------------- */

/* Returns the names of type and subtype of a result. Both strings are always set; do not free them. */
extern DAT_RETURN dat_strerror(
    IN  DAT_RETURN dat_function_return,
    OUT const char **major_message_string,
    OUT const char **minor_message_string);

/* ---- Interface adapters (IA) ------------------------------------------------------------------------------------ */

/* An IPv4 or IPv6 address; the family determines its length. The port is ignored, see DAT_CONN_QUAL. */
typedef DAT_SOCK_ADDR *DAT_IA_ADDRESS_PTR;

typedef enum dat_close_flags {
    DAT_CLOSE_ABRUPT_FLAG   = 0, /* at once; 0, so the default */
    DAT_CLOSE_GRACEFUL_FLAG = 1  /* EP: after all posted requests; IA: only if it has no objects */
} DAT_CLOSE_FLAGS;
#define DAT_CLOSE_DEFAULT DAT_CLOSE_ABRUPT_FLAG

/* Owner of the array of segments (IOV) after a post. */
typedef enum dat_iov_ownership {
    DAT_IOV_CONSUMER       = 0, /* the program, when the call returns */
    DAT_IOV_PROVIDER_NOMOD = 1, /* the provider, until the completion; does not modify it */
    DAT_IOV_PROVIDER_MOD   = 2  /* the provider, until the completion; may modify it */
} DAT_IOV_OWNERSHIP;

/* Whether the provider can create an EP for a connection request. */
typedef enum dat_ep_creator_for_psp {
    DAT_PSP_CREATES_EP_NEVER   = 0,
    DAT_PSP_CREATES_EP_IFASKED = 1,
    DAT_PSP_CREATES_EP_ALWAYS  = 2
} DAT_EP_CREATOR_FOR_PSP;

/* The extension of an IA. */
typedef enum dat_extension {
    DAT_EXTENSION_NONE = 0,
    DAT_EXTENSION_IB   = 1, /* dat_ib_extensions.h */
    DAT_EXTENSION_IW   = 2
} DAT_EXTENSION;
#define DAT_IB_EXTENSION 1
#define DAT_IW_EXTENSION 2

/* How a provider spreads the load of a connection over several paths. */
typedef DAT_UINT32 DAT_HA_LB;
#define DAT_HA_LB_NONE      ((DAT_HA_LB)0)
#define DAT_HA_LB_INTERCOMM ((DAT_HA_LB)1) /* connections take different paths */
#define DAT_HA_LB_INTRACOMM ((DAT_HA_LB)2) /* one connection takes several */

typedef struct dat_provider_attr DAT_PROVIDER_ATTR; /* udat.h */

typedef struct dat_ia_attr DAT_IA_ATTR; /* udat.h */

/* Selects fields of DAT_IA_ATTR; a bit per field, in their order. The last ones are in udat.h. */
typedef DAT_UINT64 DAT_IA_ATTR_MASK;

#define DAT_IA_FIELD_IA_ADAPTER_NAME                        UINT64_C(0x0000000001)
#define DAT_IA_FIELD_IA_VENDOR_NAME                         UINT64_C(0x0000000002)
#define DAT_IA_FIELD_IA_HARDWARE_MAJOR_VERSION              UINT64_C(0x0000000004)
#define DAT_IA_FIELD_IA_HARDWARE_MINOR_VERSION              UINT64_C(0x0000000008)
#define DAT_IA_FIELD_IA_FIRMWARE_MAJOR_VERSION              UINT64_C(0x0000000010)
#define DAT_IA_FIELD_IA_FIRMWARE_MINOR_VERSION              UINT64_C(0x0000000020)
#define DAT_IA_FIELD_IA_ADDRESS_PTR                         UINT64_C(0x0000000040)
#define DAT_IA_FIELD_IA_MAX_EPS                             UINT64_C(0x0000000080)
#define DAT_IA_FIELD_IA_MAX_DTO_PER_EP                      UINT64_C(0x0000000100)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN             UINT64_C(0x0000000200)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT            UINT64_C(0x0000000400)
#define DAT_IA_FIELD_IA_MAX_EVDS                            UINT64_C(0x0000000800)
#define DAT_IA_FIELD_IA_MAX_EVD_QLEN                        UINT64_C(0x0000001000)
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_DTO            UINT64_C(0x0000002000)
#define DAT_IA_FIELD_IA_MAX_LMRS                            UINT64_C(0x0000004000)
#define DAT_IA_FIELD_IA_MAX_LMR_BLOCK_SIZE                  UINT64_C(0x0000008000)
#define DAT_IA_FIELD_IA_MAX_LMR_VIRTUAL_ADDRESS             UINT64_C(0x0000010000)
#define DAT_IA_FIELD_IA_MAX_PZS                             UINT64_C(0x0000020000)
#define DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE                    UINT64_C(0x0000040000)
#define DAT_IA_FIELD_IA_MAX_RDMA_SIZE                       UINT64_C(0x0000080000)
#define DAT_IA_FIELD_IA_MAX_RMRS                            UINT64_C(0x0000100000)
#define DAT_IA_FIELD_IA_MAX_RMR_TARGET_ADDRESS              UINT64_C(0x0000200000)
#define DAT_IA_FIELD_IA_MAX_SRQS                            UINT64_C(0x0000400000)
#define DAT_IA_FIELD_IA_MAX_EP_PER_SRQ                      UINT64_C(0x0000800000)
#define DAT_IA_FIELD_IA_MAX_RECV_PER_SRQ                    UINT64_C(0x0001000000)
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_READ      UINT64_C(0x0002000000)
#define DAT_IA_FIELD_IA_MAX_IOV_SEGMENTS_PER_RDMA_WRITE     UINT64_C(0x0004000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_IN                    UINT64_C(0x0008000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_OUT                   UINT64_C(0x0010000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_IN_GUARANTEED  UINT64_C(0x0020000000)
#define DAT_IA_FIELD_IA_MAX_RDMA_READ_PER_EP_OUT_GUARANTEED UINT64_C(0x0040000000)
#define DAT_IA_FIELD_IA_ZB_SUPPORTED                        UINT64_C(0x0080000000)
#define DAT_IA_FIELD_IA_EXTENSIONS_SUPPORTED                UINT64_C(0x0100000000)
#define DAT_IA_FIELD_NONE                                   UINT64_C(0x0000000000)

/* A name in the registry, from a line of dat.conf or a registration. */
typedef struct dat_provider_info {
    char        ia_name[DAT_NAME_MAX_LENGTH];
    DAT_UINT32  dapl_version_major;           /* the version of the API */
    DAT_UINT32  dapl_version_minor;
    DAT_BOOLEAN is_thread_safe;
} DAT_PROVIDER_INFO;

/*
 * Opens an IA by name; programs call it through dat_ia_open. *asynch_evd_handle is an existing EVD for asynchronous
 * errors. If it is DAT_HANDLE_NULL, an EVD of asynch_evd_min_qlen events is created and its handle written; the EVD is
 * freed with the IA. If the open of a valid name fails, *ia_handle is DAT_HANDLE_NULL.
 */
extern DAT_RETURN dat_ia_openv(
    IN    const DAT_NAME_PTR provider,
    IN    DAT_COUNT          asynch_evd_min_qlen,
    INOUT DAT_EVD_HANDLE     *asynch_evd_handle,
    OUT   DAT_IA_HANDLE      *ia_handle,
    IN    DAT_UINT32         dat_major_version_number,
    IN    DAT_UINT32         dat_minor_version_number,
    IN    DAT_BOOLEAN        dat_thread_safety);

/* dat_ia_openv with the version and thread safety of udat_config.h. It is a macro: no library exports this name. */
#define dat_ia_open(name, qlen, async_evd, ia) \
    dat_ia_openv((name), (qlen), (async_evd), (ia), DAT_VERSION_MAJOR, DAT_VERSION_MINOR, DAT_THREADSAFE)

/* A record may be NULL if its mask is 0. async_evd_handle may be NULL. */
extern DAT_RETURN dat_ia_query(
    IN  DAT_IA_HANDLE          ia_handle,
    OUT DAT_EVD_HANDLE         *async_evd_handle,
    IN  DAT_IA_ATTR_MASK       ia_attr_mask,
    OUT DAT_IA_ATTR            *ia_attr,
    IN  DAT_PROVIDER_ATTR_MASK provider_attr_mask,
    OUT DAT_PROVIDER_ATTR      *provider_attr);

/* A graceful close fails without an effect while objects that the program created exist. An abrupt close frees all. */
extern DAT_RETURN dat_ia_close(IN DAT_IA_HANDLE ia_handle, IN DAT_CLOSE_FLAGS close_flags);

/*
 * Writes a record for each name, version and thread safety in dat.conf, at most max_to_return, and their number. If
 * max_to_return is 0, the call fails, and *entries_returned is the number of all records.
 */
extern DAT_RETURN dat_registry_list_providers(
    IN  DAT_COUNT         max_to_return,
    OUT DAT_COUNT         *entries_returned,
    OUT DAT_PROVIDER_INFO *dat_provider_list[]);

/* ---- Protection zones (PZ) -------------------------------------------------------------------------------------- */

typedef enum dat_pz_param_mask {
    DAT_PZ_FIELD_IA_HANDLE = 1,
    DAT_PZ_FIELD_ALL       = 1
} DAT_PZ_PARAM_MASK;

typedef struct dat_pz_param {
    DAT_IA_HANDLE ia_handle;
} DAT_PZ_PARAM;

extern DAT_RETURN dat_pz_create(IN DAT_IA_HANDLE ia_handle, OUT DAT_PZ_HANDLE *pz_handle);

extern DAT_RETURN dat_pz_query(
    IN  DAT_PZ_HANDLE     pz_handle,
    IN  DAT_PZ_PARAM_MASK pz_param_mask,
    OUT DAT_PZ_PARAM      *pz_param);

/* Fails while an EP, LMR, RMR or SRQ uses the PZ. */
extern DAT_RETURN dat_pz_free(IN DAT_PZ_HANDLE pz_handle);

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

/* Keys of registered memory: LMR for local segments, RMR for peers. 0 is not a key. */
typedef DAT_UINT32 DAT_LMR_CONTEXT;
typedef DAT_UINT32 DAT_RMR_CONTEXT;

typedef enum dat_mem_priv_flags {
    DAT_MEM_PRIV_NONE_FLAG         = 0x00,
    DAT_MEM_PRIV_LOCAL_READ_FLAG   = 0x01, /* for sends and RDMA writes from it; always granted */
    DAT_MEM_PRIV_REMOTE_READ_FLAG  = 0x02, /* for RDMA reads of peers */
    DAT_MEM_PRIV_LOCAL_WRITE_FLAG  = 0x10, /* for receives and RDMA reads into it */
    DAT_MEM_PRIV_REMOTE_WRITE_FLAG = 0x20, /* for RDMA writes of peers */
    DAT_MEM_PRIV_ALL_FLAG          = 0x33,
    DAT_MEM_PRIV_EXTENSION_BASE    = 0x40  /* privileges of extensions start here */
} DAT_MEM_PRIV_FLAGS;

/* A range of registered local memory, for transfers. */
typedef struct dat_lmr_triplet {
    DAT_VADDR       virtual_address;
    DAT_SEG_LENGTH  segment_length;  /* bytes; if 0 the rest of the triplet is ignored */
    DAT_LMR_CONTEXT lmr_context;
} DAT_LMR_TRIPLET;

/* A range of a peer's memory, for RDMA. */
typedef struct dat_rmr_triplet {
    DAT_VADDR       virtual_address; /* in the address space of the peer */
    DAT_SEG_LENGTH  segment_length;  /* ignored: the local segments give the length */
    DAT_RMR_CONTEXT rmr_context;
} DAT_RMR_TRIPLET;

/* Whether addresses in registered memory are virtual addresses or offsets from its start. */
typedef enum dat_va_type {
    DAT_VA_TYPE_VA = 0,
    DAT_VA_TYPE_ZB = 1
} DAT_VA_TYPE;

/* The endpoints whose peers may use an RMR. */
typedef enum dat_rmr_scope {
    DAT_RMR_SCOPE_EP  = 0, /* the EP on which it is bound */
    DAT_RMR_SCOPE_PZ  = 1, /* the EPs of its PZ */
    DAT_RMR_SCOPE_ANY = 2  /* attribute of the provider: dat_rmr_create and dat_rmr_create_for_ep give either */
} DAT_RMR_SCOPE;

typedef struct dat_lmr_param DAT_LMR_PARAM; /* udat.h, as DAT_LMR_PARAM_MASK */

/* Fails while an RMR is bound to the LMR. Outstanding transfers of the memory may fail; later ones fail. */
extern DAT_RETURN dat_lmr_free(IN DAT_LMR_HANDLE lmr_handle);

/*
 * sync_rdma_read makes writes of the processor visible to RDMA reads of peers. sync_rdma_write makes RDMA writes of
 * peers visible to the processor. Only needed if lmr_sync_req of the provider is DAT_TRUE.
 */
extern DAT_RETURN dat_lmr_sync_rdma_read(
    IN DAT_IA_HANDLE         ia_handle,
    IN const DAT_LMR_TRIPLET *local_segments,
    IN DAT_VLEN              num_segments);

extern DAT_RETURN dat_lmr_sync_rdma_write(
    IN DAT_IA_HANDLE         ia_handle,
    IN const DAT_LMR_TRIPLET *local_segments,
    IN DAT_VLEN              num_segments);

typedef enum dat_rmr_param_mask {
    DAT_RMR_FIELD_IA_HANDLE   = 0x01,
    DAT_RMR_FIELD_PZ_HANDLE   = 0x02,
    DAT_RMR_FIELD_LMR_TRIPLET = 0x04,
    DAT_RMR_FIELD_MEM_PRIV    = 0x08,
    DAT_RMR_FIELD_RMR_CONTEXT = 0x10,
    DAT_RMR_FIELD_RMR_SCOPE   = 0x20,
    DAT_RMR_FIELD_VA_TYPE     = 0x40,
    DAT_RMR_FIELD_ALL         = 0x7f
} DAT_RMR_PARAM_MASK;

typedef struct dat_rmr_param {
    DAT_IA_HANDLE      ia_handle;
    DAT_PZ_HANDLE      pz_handle;
    DAT_LMR_TRIPLET    lmr_triplet;
    DAT_MEM_PRIV_FLAGS mem_priv;
    DAT_RMR_CONTEXT    rmr_context;
    DAT_RMR_SCOPE      rmr_scope;
    DAT_VA_TYPE        va_type;
} DAT_RMR_PARAM;

/* ---- Transfers (DTO) -------------------------------------------------------------------------------------------- */

/* Whether the completion of a transfer generates an event and wakes a waiting thread; also the fence. */
typedef enum dat_completion_flags {
    DAT_COMPLETION_DEFAULT_FLAG              = 0x00, /* an event that wakes */
    DAT_COMPLETION_SUPPRESS_FLAG             = 0x01, /* an event only if it fails */
    DAT_COMPLETION_SOLICITED_WAIT_FLAG       = 0x02, /* send: solicited event at the receiver */
    DAT_COMPLETION_UNSIGNALLED_FLAG          = 0x04, /* an event that wakes only on failure; needs the EP attribute */
    DAT_COMPLETION_BARRIER_FENCE_FLAG        = 0x08, /* not before the earlier RDMA reads are done */
    DAT_COMPLETION_EVD_THRESHOLD_FLAG        = 0x10, /* EP attribute: every event wakes */
    DAT_COMPLETION_LMR_INVALIDATE_FENCE_FLAG = 0x20  /* not before the earlier LMR invalidations are done */
} DAT_COMPLETION_FLAGS;

/* Result of a transfer or bind. */
typedef enum dat_dto_completion_status {
    DAT_DTO_SUCCESS                = 0,  /* success */
    DAT_DTO_ERR_FLUSHED            = 1,  /* the connection ended before it was executed */
    DAT_DTO_ERR_LOCAL_LENGTH       = 2,  /* receive: shorter than the message; request: longer than the IA permits */
    DAT_DTO_ERR_LOCAL_EP           = 3,  /* the EP itself failed */
    DAT_DTO_ERR_LOCAL_PROTECTION   = 4,  /* local segment: not registered, out of bounds, in another PZ, not writable */
    DAT_DTO_ERR_BAD_RESPONSE       = 5,  /* the response of the peer is invalid */
    DAT_DTO_ERR_REMOTE_ACCESS      = 6,  /* the peer does not permit this RDMA */
    DAT_DTO_ERR_REMOTE_RESPONDER   = 7,  /* the peer could not complete it */
    DAT_DTO_ERR_TRANSPORT          = 8,  /* the peer does not answer any more */
    DAT_DTO_ERR_RECEIVER_NOT_READY = 9,  /* the peer has no posted receive */
    DAT_DTO_ERR_PARTIAL_PACKET     = 10, /* only a part was transferred */
    DAT_RMR_OPERATION_FAILED       = 11, /* the bind failed */
    DAT_DTO_ERR_LOCAL_MM_ERROR     = 12  /* the RMR cannot be invalidated */
} DAT_DTO_COMPLETION_STATUS;

/* The operation that a completion belongs to. */
typedef enum dat_dtos {
    DAT_DTO_SEND                    = 0,
    DAT_DTO_RDMA_WRITE              = 1,
    DAT_DTO_RDMA_READ               = 2,
    DAT_DTO_RECEIVE                 = 3,
    DAT_DTO_RECEIVE_WITH_INVALIDATE = 4, /* of a message from dat_ep_post_send_with_invalidate */
    DAT_DTO_BIND_MW                 = 5,
    DAT_DTO_LMR_FMR                 = 6,
    DAT_DTO_LMR_INVALIDATE          = 7,
    DAT_DTO_EXTENSION_BASE          = 8  /* operations of extensions start here */
} DAT_DTOS;

extern DAT_RETURN dat_rmr_create(IN DAT_PZ_HANDLE pz_handle, OUT DAT_RMR_HANDLE *rmr_handle);

/*
 * Creates an RMR whose bindings are valid only for the peer of the EP on which they are posted.
 *
 * libdat2 exports neither this function nor those with the comment "Not exported by libdat2". A provider's table has
 * them; the macro of the same name in upper case (dat_redirection.h) calls the provider.
 */
extern DAT_RETURN dat_rmr_create_for_ep(IN DAT_PZ_HANDLE pz_handle, OUT DAT_RMR_HANDLE *rmr_handle);

extern DAT_RETURN dat_rmr_query(
    IN  DAT_RMR_HANDLE     rmr_handle,
    IN  DAT_RMR_PARAM_MASK rmr_param_mask,
    OUT DAT_RMR_PARAM      *rmr_param);

/*
 * Binds the window to the memory of the triplet, a part of the LMR; a length of 0 unbinds it. A send posted to
 * ep_handle after the bind may already carry the new context to the peer.
 */
extern DAT_RETURN dat_rmr_bind(
    IN  DAT_RMR_HANDLE        rmr_handle,
    IN  DAT_LMR_HANDLE        lmr_handle,
    IN  const DAT_LMR_TRIPLET *lmr_triplet,
    IN  DAT_MEM_PRIV_FLAGS    mem_priv,
    IN  DAT_VA_TYPE           va_type,
    IN  DAT_EP_HANDLE         ep_handle,
    IN  DAT_RMR_COOKIE        user_cookie,
    IN  DAT_COMPLETION_FLAGS  completion_flags,
    OUT DAT_RMR_CONTEXT       *context);

extern DAT_RETURN dat_rmr_free(IN DAT_RMR_HANDLE rmr_handle);

/* ---- Endpoints (EP) --------------------------------------------------------------------------------------------- */

typedef enum dat_service_type {
    DAT_SERVICE_TYPE_RC             = 0,
    DAT_SERVICE_TYPE_EXTENSION_BASE = 1
} DAT_SERVICE_TYPE;

typedef enum dat_qos {
    DAT_QOS_BEST_EFFORT     = 0, /* the only one that every provider has */
    DAT_QOS_HIGH_THROUGHPUT = 1,
    DAT_QOS_LOW_LATENCY     = 2,
    DAT_QOS_ECONOMY         = 4,
    DAT_QOS_PREMIUM         = 8
} DAT_QOS;

#define DAT_CONNECT_MULTIPATH_REQUESTED_FLAG DAT_CONNECT_MULTIPATH_FLAG

typedef enum dat_connect_flags {
    DAT_CONNECT_DEFAULT_FLAG            = 0,
    DAT_CONNECT_MULTIPATH_FLAG          = 1, /* several paths, if there are any */
    DAT_CONNECT_MULTIPATH_REQUIRED_FLAG = 2
} DAT_CONNECT_FLAGS;

/*
 * UNCONNECTED  -- dat_ep_connect --> ACTIVE_CONNECTION_PENDING --> CONNECTED, or DISCONNECTED if the connect fails
 * UNCONNECTED  -- dat_cr_accept ---> COMPLETION_PENDING ---------> CONNECTED, or DISCONNECTED if the accept fails
 * CONNECTED    -- disconnect by either end, or error --> (DISCONNECT_PENDING, if graceful) --> DISCONNECTED
 * DISCONNECTED -- dat_ep_reset ----> UNCONNECTED
 */
typedef enum dat_ep_state {
    DAT_EP_STATE_UNCONNECTED                  = 0,  /* new, or after dat_ep_reset */
    DAT_EP_STATE_UNCONFIGURED_UNCONNECTED     = 1,  /* no EP of this project enters an UNCONFIGURED state */
    DAT_EP_STATE_RESERVED                     = 2,  /* reserved by an RSP, and no request has arrived */
    DAT_EP_STATE_UNCONFIGURED_RESERVED        = 3,
    DAT_EP_STATE_PASSIVE_CONNECTION_PENDING   = 4,  /* reserved by an RSP, and a request has arrived */
    DAT_EP_STATE_UNCONFIGURED_PASSIVE         = 5,
    DAT_EP_STATE_ACTIVE_CONNECTION_PENDING    = 6,  /* after dat_ep_connect */
    DAT_EP_STATE_TENTATIVE_CONNECTION_PENDING = 7,  /* created by the provider for a request */
    DAT_EP_STATE_UNCONFIGURED_TENTATIVE       = 8,
    DAT_EP_STATE_CONNECTED                    = 9,
    DAT_EP_STATE_DISCONNECT_PENDING           = 10, /* after a graceful dat_ep_disconnect */
    DAT_EP_STATE_DISCONNECTED                 = 11, /* posted work is flushed */
    DAT_EP_STATE_COMPLETION_PENDING           = 12, /* after dat_cr_accept */
    DAT_EP_STATE_CONNECTED_SINGLE_PATH        = 13, /* states of a connection over several paths */
    DAT_EP_STATE_CONNECTED_MULTI_PATH         = 14
} DAT_EP_STATE;

/* Connection qualifier: the 64-bit number that a listener listens on, comparable to a port. */
typedef DAT_UINT64 DAT_CONN_QUAL;
typedef DAT_UINT64 DAT_PORT_QUAL;

/* No watermark. DAT_HW_DEFAULT is the same value, for EPs with an SRQ. */
#define DAT_WATERMARK_INFINITE ((DAT_COUNT)~0)
#define DAT_HW_DEFAULT         DAT_WATERMARK_INFINITE

/* Returned instead of a count that the provider does not know. */
#define DAT_VALUE_UNKNOWN (((DAT_COUNT)~0) - 1)

/* Attributes of an EP. In max_message_size and max_rdma_size, 0 selects the provider's default. */
typedef struct dat_ep_attr {
    DAT_SERVICE_TYPE     service_type;
    DAT_SEG_LENGTH       max_message_size;
    DAT_SEG_LENGTH       max_rdma_size;
    DAT_QOS              qos;
    DAT_COMPLETION_FLAGS recv_completion_flags;       /* DEFAULT, EVD_THRESHOLD, UNSIGNALLED or SOLICITED_WAIT */
    DAT_COMPLETION_FLAGS request_completion_flags;    /* DEFAULT, EVD_THRESHOLD or UNSIGNALLED */
    DAT_COUNT            max_recv_dtos;               /* posted receives; with an SRQ the hard high watermark */
    DAT_COUNT            max_request_dtos;            /* posted sends, RDMAs and binds */
    DAT_COUNT            max_recv_iov;                /* segments of a receive */
    DAT_COUNT            max_request_iov;             /* segments of a request */
    DAT_COUNT            max_rdma_read_in;            /* reads of the peer in flight */
    DAT_COUNT            max_rdma_read_out;           /* own reads in flight */
    DAT_COUNT            srq_soft_hw;                 /* soft high watermark, with an SRQ */
    DAT_COUNT            max_rdma_read_iov;           /* 0: as max_request_iov */
    DAT_COUNT            max_rdma_write_iov;          /* 0: as max_request_iov */
    DAT_COUNT            ep_transport_specific_count;
    DAT_NAMED_ATTR       *ep_transport_specific;
    DAT_COUNT            ep_provider_specific_count;
    DAT_NAMED_ATTR       *ep_provider_specific;
} DAT_EP_ATTR;

typedef struct dat_ep_param {
    DAT_IA_HANDLE      ia_handle;
    DAT_EP_STATE       ep_state;
    DAT_COMM           comm;                  /* of dat_ep_common_connect */
    DAT_IA_ADDRESS_PTR local_ia_address_ptr;
    DAT_PORT_QUAL      local_port_qual;
    DAT_IA_ADDRESS_PTR remote_ia_address_ptr;
    DAT_PORT_QUAL      remote_port_qual;
    DAT_PZ_HANDLE      pz_handle;
    DAT_EVD_HANDLE     recv_evd_handle;
    DAT_EVD_HANDLE     request_evd_handle;
    DAT_EVD_HANDLE     connect_evd_handle;
    DAT_SRQ_HANDLE     srq_handle;
    DAT_EP_ATTR        ep_attr;
} DAT_EP_PARAM;

/* Selects fields of DAT_EP_PARAM. */
typedef DAT_UINT64 DAT_EP_PARAM_MASK;

#define DAT_EP_FIELD_IA_HANDLE                        UINT64_C(0x00000001)
#define DAT_EP_FIELD_EP_STATE                         UINT64_C(0x00000002)
#define DAT_EP_FIELD_COMM                             UINT64_C(0x00000004)
#define DAT_EP_FIELD_LOCAL_IA_ADDRESS_PTR             UINT64_C(0x00000008)
#define DAT_EP_FIELD_LOCAL_PORT_QUAL                  UINT64_C(0x00000010)
#define DAT_EP_FIELD_REMOTE_IA_ADDRESS_PTR            UINT64_C(0x00000020)
#define DAT_EP_FIELD_REMOTE_PORT_QUAL                 UINT64_C(0x00000040)
#define DAT_EP_FIELD_PZ_HANDLE                        UINT64_C(0x00000080)
#define DAT_EP_FIELD_RECV_EVD_HANDLE                  UINT64_C(0x00000100)
#define DAT_EP_FIELD_REQUEST_EVD_HANDLE               UINT64_C(0x00000200)
#define DAT_EP_FIELD_CONNECT_EVD_HANDLE               UINT64_C(0x00000400)
#define DAT_EP_FIELD_SRQ_HANDLE                       UINT64_C(0x00000800)
#define DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE             UINT64_C(0x00001000)
#define DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE         UINT64_C(0x00002000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE            UINT64_C(0x00004000)
#define DAT_EP_FIELD_EP_ATTR_QOS                      UINT64_C(0x00008000)
#define DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS    UINT64_C(0x00010000)
#define DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS UINT64_C(0x00020000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS            UINT64_C(0x00040000)
#define DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS         UINT64_C(0x00080000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV             UINT64_C(0x00100000)
#define DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV          UINT64_C(0x00200000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN         UINT64_C(0x00400000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT        UINT64_C(0x00800000)
#define DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW              UINT64_C(0x01000000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV        UINT64_C(0x02000000)
#define DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV       UINT64_C(0x04000000)
#define DAT_EP_FIELD_EP_ATTR_NUM_TRANSPORT_ATTR       UINT64_C(0x08000000)
#define DAT_EP_FIELD_EP_ATTR_TRANSPORT_SPECIFIC_ATTR  UINT64_C(0x10000000)
#define DAT_EP_FIELD_EP_ATTR_NUM_PROVIDER_ATTR        UINT64_C(0x20000000)
#define DAT_EP_FIELD_EP_ATTR_PROVIDER_SPECIFIC_ATTR   UINT64_C(0x40000000)
#define DAT_EP_FIELD_EP_ATTR_ALL                      UINT64_C(0x7ffff000)
#define DAT_EP_FIELD_ALL                              UINT64_C(0x7fffffff)

/* An EVD may be DAT_HANDLE_NULL: its events are dropped. If the attributes are NULL, the defaults apply. */
extern DAT_RETURN dat_ep_create(
    IN  DAT_IA_HANDLE     ia_handle,
    IN  DAT_PZ_HANDLE     pz_handle,
    IN  DAT_EVD_HANDLE    recv_completion_evd_handle,
    IN  DAT_EVD_HANDLE    request_completion_evd_handle,
    IN  DAT_EVD_HANDLE    connect_evd_handle,
    IN  const DAT_EP_ATTR *ep_attributes,
    OUT DAT_EP_HANDLE     *ep_handle);

extern DAT_RETURN dat_ep_query(
    IN  DAT_EP_HANDLE     ep_handle,
    IN  DAT_EP_PARAM_MASK ep_param_mask,
    OUT DAT_EP_PARAM      *ep_param);

extern DAT_RETURN dat_ep_modify(
    IN DAT_EP_HANDLE      ep_handle,
    IN DAT_EP_PARAM_MASK  ep_param_mask,
    IN const DAT_EP_PARAM *ep_param);

/* Each out pointer may be NULL. recv_idle: no receive is outstanding. request_idle: no request is outstanding. */
extern DAT_RETURN dat_ep_get_status(
    IN  DAT_EP_HANDLE ep_handle,
    OUT DAT_EP_STATE  *ep_state,
    OUT DAT_BOOLEAN   *recv_idle,
    OUT DAT_BOOLEAN   *request_idle);

/*
 * Ends a connection like an abrupt disconnect. A DISCONNECTED event is queued if the EP was connected, or if a connect
 * or an accept was in progress. Queued events stay queued.
 */
extern DAT_RETURN dat_ep_free(IN DAT_EP_HANDLE ep_handle);

/* Connecting. */

/*
 * Requests a connection to the listener on remote_conn_qual at remote_ia_address; the port in the address is ignored.
 * One event on the connect EVD reports the answer. The private data are sent with the request and copied before the
 * call returns.
 */
extern DAT_RETURN dat_ep_connect(
    IN DAT_EP_HANDLE      ep_handle,
    IN DAT_IA_ADDRESS_PTR remote_ia_address,
    IN DAT_CONN_QUAL      remote_conn_qual,
    IN DAT_TIMEOUT        timeout,
    IN DAT_COUNT          private_data_size,
    IN const DAT_PVOID    private_data,
    IN DAT_QOS            quality_of_service,
    IN DAT_CONNECT_FLAGS  connect_flags);

/* Connects to the peer of ep_dup_handle. */
extern DAT_RETURN dat_ep_dup_connect(
    IN DAT_EP_HANDLE   ep_handle,
    IN DAT_EP_HANDLE   ep_dup_handle,
    IN DAT_TIMEOUT     timeout,
    IN DAT_COUNT       private_data_size,
    IN const DAT_PVOID private_data,
    IN DAT_QOS         quality_of_service);

/* Not exported by libdat2. Connects to a common service point at the address and port of remote_ia_address. */
extern DAT_RETURN dat_ep_common_connect(
    IN DAT_EP_HANDLE      ep_handle,
    IN DAT_IA_ADDRESS_PTR remote_ia_address,
    IN DAT_TIMEOUT        timeout,
    IN DAT_COUNT          private_data_size,
    IN const DAT_PVOID    private_data);

/*
 * Ends a connection or an attempt. Both ends of a connection get one DISCONNECTED event, of an attempt only this end.
 * On a DISCONNECTED EP the call succeeds without an effect. On an UNCONNECTED EP it flushes the posted receives, with
 * one DISCONNECTED event, and fails if there are none.
 */
extern DAT_RETURN dat_ep_disconnect(IN DAT_EP_HANDLE ep_handle, IN DAT_CLOSE_FLAGS close_flags);

/* Returns a DISCONNECTED EP to the state UNCONNECTED, so that it can connect again. */
extern DAT_RETURN dat_ep_reset(IN DAT_EP_HANDLE ep_handle);

/* Moving data. */

/* Sends the segments as one message, into the oldest posted receive of the peer. */
extern DAT_RETURN dat_ep_post_send(
    IN DAT_EP_HANDLE        ep_handle,
    IN DAT_COUNT            num_segments,
    IN DAT_LMR_TRIPLET      *local_iov,
    IN DAT_DTO_COOKIE       user_cookie,
    IN DAT_COMPLETION_FLAGS completion_flags);

/*
 * Not exported by libdat2. As dat_ep_post_send; with invalidate_flag the message also invalidates the RMR context
 * rmr_to_invalidate of the peer.
 */
extern DAT_RETURN dat_ep_post_send_with_invalidate(
    IN DAT_EP_HANDLE        ep_handle,
    IN DAT_COUNT            num_segments,
    IN DAT_LMR_TRIPLET      *local_iov,
    IN DAT_DTO_COOKIE       user_cookie,
    IN DAT_COMPLETION_FLAGS completion_flags,
    IN DAT_BOOLEAN          invalidate_flag,
    IN DAT_RMR_CONTEXT      rmr_to_invalidate);

/* Posts a receive. It may be posted in any state of the EP, even before a connect, but not on an EP with an SRQ. */
extern DAT_RETURN dat_ep_post_recv(
    IN DAT_EP_HANDLE        ep_handle,
    IN DAT_COUNT            num_segments,
    IN DAT_LMR_TRIPLET      *local_iov,
    IN DAT_DTO_COOKIE       user_cookie,
    IN DAT_COMPLETION_FLAGS completion_flags);

/* RDMA read: reads the total length of the local segments from remote_iov, without an action of the peer. */
extern DAT_RETURN dat_ep_post_rdma_read(
    IN DAT_EP_HANDLE         ep_handle,
    IN DAT_COUNT             num_segments,
    IN DAT_LMR_TRIPLET       *local_iov,
    IN DAT_DTO_COOKIE        user_cookie,
    IN const DAT_RMR_TRIPLET *remote_iov,
    IN DAT_COMPLETION_FLAGS  completion_flags);

/* Not exported by libdat2. As dat_ep_post_rdma_read, into memory given by the context of an RMR. */
extern DAT_RETURN dat_ep_post_rdma_read_to_rmr(
    IN DAT_EP_HANDLE         ep_handle,
    IN const DAT_RMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE        user_cookie,
    IN const DAT_RMR_TRIPLET *remote_iov,
    IN DAT_COMPLETION_FLAGS  completion_flags);

/* RDMA write: writes the local segments to remote_iov, without an action of the peer. A later send arrives after it. */
extern DAT_RETURN dat_ep_post_rdma_write(
    IN DAT_EP_HANDLE         ep_handle,
    IN DAT_COUNT             num_segments,
    IN DAT_LMR_TRIPLET       *local_iov,
    IN DAT_DTO_COOKIE        user_cookie,
    IN const DAT_RMR_TRIPLET *remote_iov,
    IN DAT_COMPLETION_FLAGS  completion_flags);

/* ---- Shared receive queues (SRQ) -------------------------------------------------------------------------------- */

#define DAT_SRQ_LW_DEFAULT 0

typedef enum dat_srq_state {
    DAT_SRQ_STATE_ERROR       = 0, /* in reverse order in DAT 1.2 */
    DAT_SRQ_STATE_OPERATIONAL = 1,
    DAT_SRQ_STATE_SHUTDOWN    = 2
} DAT_SRQ_STATE;

typedef struct dat_srq_attr {
    DAT_COUNT max_recv_dtos;
    DAT_COUNT max_recv_iov;
    DAT_COUNT low_watermark; /* DAT_SRQ_LW_DEFAULT: none */
} DAT_SRQ_ATTR;

typedef enum dat_srq_param_mask {
    DAT_SRQ_FIELD_IA_HANDLE             = 0x01,
    DAT_SRQ_FIELD_SRQ_STATE             = 0x02,
    DAT_SRQ_FIELD_PZ_HANDLE             = 0x04,
    DAT_SRQ_FIELD_MAX_RECV_DTO          = 0x08,
    DAT_SRQ_FIELD_MAX_RECV_IOV          = 0x10,
    DAT_SRQ_FIELD_LOW_WATERMARK         = 0x20,
    DAT_SRQ_FIELD_AVAILABLE_DTO_COUNT   = 0x40,
    DAT_SRQ_FIELD_OUTSTANDING_DTO_COUNT = 0x80,
    DAT_SRQ_FIELD_ALL                   = 0xff
} DAT_SRQ_PARAM_MASK;

typedef struct dat_srq_param {
    DAT_IA_HANDLE ia_handle;
    DAT_SRQ_STATE srq_state;
    DAT_PZ_HANDLE pz_handle;
    DAT_COUNT     max_recv_dtos;
    DAT_COUNT     max_recv_iov;
    DAT_COUNT     low_watermark;
    DAT_COUNT     available_dto_count;   /* posted, not yet consumed by a message */
    DAT_COUNT     outstanding_dto_count; /* posted, and the completion not yet dequeued */
} DAT_SRQ_PARAM;

extern DAT_RETURN dat_srq_create(
    IN  DAT_IA_HANDLE  ia_handle,
    IN  DAT_PZ_HANDLE  pz_handle,
    IN  DAT_SRQ_ATTR   *srq_attr,
    OUT DAT_SRQ_HANDLE *srq_handle);

extern DAT_RETURN dat_srq_free(IN DAT_SRQ_HANDLE srq_handle);

extern DAT_RETURN dat_srq_post_recv(
    IN DAT_SRQ_HANDLE  srq_handle,
    IN DAT_COUNT       num_segments,
    IN DAT_LMR_TRIPLET *local_iov,
    IN DAT_DTO_COOKIE  user_cookie);

extern DAT_RETURN dat_srq_query(
    IN  DAT_SRQ_HANDLE     srq_handle,
    IN  DAT_SRQ_PARAM_MASK srq_param_mask,
    OUT DAT_SRQ_PARAM      *srq_param);

extern DAT_RETURN dat_srq_resize(IN DAT_SRQ_HANDLE srq_handle, IN DAT_COUNT srq_max_recv_dto);

/* Queues one asynchronous event when fewer than low_watermark receives are left. Another event needs another call. */
extern DAT_RETURN dat_srq_set_lw(IN DAT_SRQ_HANDLE srq_handle, IN DAT_COUNT low_watermark);

/* Creates an EP like dat_ep_create, but the EP receives into buffers of the SRQ. */
extern DAT_RETURN dat_ep_create_with_srq(
    IN  DAT_IA_HANDLE     ia_handle,
    IN  DAT_PZ_HANDLE     pz_handle,
    IN  DAT_EVD_HANDLE    recv_evd_handle,
    IN  DAT_EVD_HANDLE    request_evd_handle,
    IN  DAT_EVD_HANDLE    connect_evd_handle,
    IN  DAT_SRQ_HANDLE    srq_handle,
    IN  const DAT_EP_ATTR *ep_attributes,
    OUT DAT_EP_HANDLE     *ep_handle);

/*
 * Returns the number of outstanding receives of the EP, and the number of completions that they will cause. With an
 * SRQ, these are the receives that the EP has taken from it. Out pointers may be NULL.
 */
extern DAT_RETURN dat_ep_recv_query(
    IN  DAT_EP_HANDLE ep_handle,
    OUT DAT_COUNT     *nbufs_allocated,
    OUT DAT_COUNT     *bufs_alloc_span);

/*
 * Limits the outstanding receives of the EP: above soft, an asynchronous event is queued; above hard, the connection
 * ends.
 */
extern DAT_RETURN dat_ep_set_watermark(
    IN DAT_EP_HANDLE ep_handle,
    IN DAT_COUNT     soft_high_watermark,
    IN DAT_COUNT     hard_high_watermark);

/* ---- Service points (PSP, RSP, CSP) and connection requests (CR) ------------------------------------------------ */

typedef enum dat_psp_flags {
    DAT_PSP_CONSUMER_FLAG = 0, /* the program gives the EP in dat_cr_accept */
    DAT_PSP_PROVIDER_FLAG = 1  /* the provider creates one */
} DAT_PSP_FLAGS;

typedef enum dat_psp_param_mask {
    DAT_PSP_FIELD_IA_HANDLE  = 1,
    DAT_PSP_FIELD_CONN_QUAL  = 2,
    DAT_PSP_FIELD_EVD_HANDLE = 4,
    DAT_PSP_FIELD_PSP_FLAGS  = 8,
    DAT_PSP_FIELD_ALL        = 15
} DAT_PSP_PARAM_MASK;

typedef struct dat_psp_param {
    DAT_IA_HANDLE  ia_handle;
    DAT_CONN_QUAL  conn_qual;
    DAT_EVD_HANDLE evd_handle;
    DAT_PSP_FLAGS  psp_flags;
} DAT_PSP_PARAM;

/* Listens on conn_qual. Requests are reported by events on evd_handle until the PSP is freed. */
extern DAT_RETURN dat_psp_create(
    IN  DAT_IA_HANDLE  ia_handle,
    IN  DAT_CONN_QUAL  conn_qual,
    IN  DAT_EVD_HANDLE evd_handle,
    IN  DAT_PSP_FLAGS  psp_flags,
    OUT DAT_PSP_HANDLE *psp_handle);

/* As dat_psp_create, on a qualifier that the provider chooses. */
extern DAT_RETURN dat_psp_create_any(
    IN  DAT_IA_HANDLE  ia_handle,
    OUT DAT_CONN_QUAL  *conn_qual,
    IN  DAT_EVD_HANDLE evd_handle,
    IN  DAT_PSP_FLAGS  psp_flags,
    OUT DAT_PSP_HANDLE *psp_handle);

extern DAT_RETURN dat_psp_query(
    IN  DAT_PSP_HANDLE     psp_handle,
    IN  DAT_PSP_PARAM_MASK psp_param_mask,
    OUT DAT_PSP_PARAM      *psp_param);

/* Stops listening. Requests that have arrived can still be answered; connections are not affected. */
extern DAT_RETURN dat_psp_free(IN DAT_PSP_HANDLE psp_handle);

typedef enum dat_rsp_param_mask {
    DAT_RSP_FIELD_IA_HANDLE  = 1,
    DAT_RSP_FIELD_CONN_QUAL  = 2,
    DAT_RSP_FIELD_EVD_HANDLE = 4,
    DAT_RSP_FIELD_EP_HANDLE  = 8,
    DAT_RSP_FIELD_ALL        = 15
} DAT_RSP_PARAM_MASK;

typedef struct dat_rsp_param {
    DAT_IA_HANDLE  ia_handle;
    DAT_CONN_QUAL  conn_qual;
    DAT_EVD_HANDLE evd_handle;
    DAT_EP_HANDLE  ep_handle;
} DAT_RSP_PARAM;

/* Listens on conn_qual for one request, to be accepted with ep_handle. */
extern DAT_RETURN dat_rsp_create(
    IN  DAT_IA_HANDLE  ia_handle,
    IN  DAT_CONN_QUAL  conn_qual,
    IN  DAT_EP_HANDLE  ep_handle,
    IN  DAT_EVD_HANDLE evd_handle,
    OUT DAT_RSP_HANDLE *rsp_handle);

extern DAT_RETURN dat_rsp_query(
    IN  DAT_RSP_HANDLE     rsp_handle,
    IN  DAT_RSP_PARAM_MASK rsp_param_mask,
    OUT DAT_RSP_PARAM      *rsp_param);

extern DAT_RETURN dat_rsp_free(IN DAT_RSP_HANDLE rsp_handle);

typedef enum dat_csp_param_mask {
    DAT_CSP_FIELD_IA_HANDLE  = 1,
    DAT_CSP_FIELD_COMM       = 2,
    DAT_CSP_FIELD_IA_ADDRESS = 4,
    DAT_CSP_FIELD_EVD_HANDLE = 8,
    DAT_CSP_FIELD_ALL        = 15
} DAT_CSP_PARAM_MASK;

typedef struct dat_csp_param {
    DAT_IA_HANDLE      ia_handle;
    DAT_COMM           *comm;
    DAT_IA_ADDRESS_PTR address_ptr; /* with the port of the listener */
    DAT_EVD_HANDLE     evd_handle;
} DAT_CSP_PARAM;

/* Not exported by libdat2, like dat_csp_query and dat_csp_free. Listens on the port of an address. */
extern DAT_RETURN dat_csp_create(
    IN  DAT_IA_HANDLE      ia_handle,
    IN  DAT_COMM           *communicator,
    IN  DAT_IA_ADDRESS_PTR address,
    IN  DAT_EVD_HANDLE     evd_handle,
    OUT DAT_CSP_HANDLE     *csp_handle);

extern DAT_RETURN dat_csp_query(
    IN  DAT_CSP_HANDLE     csp_handle,
    IN  DAT_CSP_PARAM_MASK csp_param_mask,
    OUT DAT_CSP_PARAM      *csp_param);

extern DAT_RETURN dat_csp_free(IN DAT_CSP_HANDLE csp_handle);

typedef enum dat_cr_param_mask {
    DAT_CR_FIELD_REMOTE_IA_ADDRESS_PTR = 0x01,
    DAT_CR_FIELD_REMOTE_PORT_QUAL      = 0x02,
    DAT_CR_FIELD_PRIVATE_DATA_SIZE     = 0x04,
    DAT_CR_FIELD_PRIVATE_DATA          = 0x08,
    DAT_CR_FIELD_LOCAL_EP_HANDLE       = 0x10,
    DAT_CR_FIELD_ALL                   = 0x1f
} DAT_CR_PARAM_MASK;

typedef struct dat_cr_param {
    DAT_IA_ADDRESS_PTR remote_ia_address_ptr;
    DAT_PORT_QUAL      remote_port_qual;
    DAT_COUNT          private_data_size;
    DAT_PVOID          private_data;          /* private data of the request; writable until it is answered */
    DAT_EP_HANDLE      local_ep_handle;       /* null, unless the service point provides one */
} DAT_CR_PARAM;

extern DAT_RETURN dat_cr_query(
    IN  DAT_CR_HANDLE     cr_handle,
    IN  DAT_CR_PARAM_MASK cr_param_mask,
    OUT DAT_CR_PARAM      *cr_param);

/*
 * The EP must be UNCONNECTED. Pass DAT_HANDLE_NULL if the request already has an EP. An event on the connect EVD
 * reports the result.
 */
extern DAT_RETURN dat_cr_accept(
    IN DAT_CR_HANDLE   cr_handle,
    IN DAT_EP_HANDLE   ep_handle,
    IN DAT_COUNT       private_data_size,
    IN const DAT_PVOID private_data);

/* The private data arrive in the peer's event about the rejection. */
extern DAT_RETURN dat_cr_reject(
    IN DAT_CR_HANDLE   cr_handle,
    IN DAT_COUNT       private_data_size,
    IN const DAT_PVOID private_data);

/*
 * Passes the request to the listener on another qualifier. Over sm and usnic it may be in any process of this user on
 * this host; over verbs it must be on the same IA.
 */
extern DAT_RETURN dat_cr_handoff(IN DAT_CR_HANDLE cr_handle, IN DAT_CONN_QUAL handoff);

/* ---- Events ----------------------------------------------------------------------------------------------------- */

/* Kinds of events (event streams) that an EVD accepts. */
typedef enum dat_evd_flags {
    DAT_EVD_SOFTWARE_FLAG   = 0x001, /* dat_evd_post_se */
    DAT_EVD_CR_FLAG         = 0x010, /* connection requests */
    DAT_EVD_DTO_FLAG        = 0x020, /* completions of transfers */
    DAT_EVD_CONNECTION_FLAG = 0x040, /* events of connections */
    DAT_EVD_RMR_BIND_FLAG   = 0x080, /* completions of binds */
    DAT_EVD_ASYNC_FLAG      = 0x100, /* asynchronous errors */
    DAT_EVD_DEFAULT_FLAG    = 0x1f0, /* all but software */
    DAT_EVD_EXTENSION_BASE  = 0x200  /* streams of extensions start here */
} DAT_EVD_FLAGS;

/* Number of an event; it determines the valid member of DAT_EVENT_DATA. */
typedef enum dat_event_number {
    DAT_DTO_COMPLETION_EVENT                     = 0x00001,
    DAT_RMR_BIND_COMPLETION_EVENT                = 0x01001,
    DAT_CONNECTION_REQUEST_EVENT                 = 0x02001,
    DAT_CONNECTION_EVENT_ESTABLISHED             = 0x04001,
    DAT_CONNECTION_EVENT_PEER_REJECTED           = 0x04002, /* rejected by the program of the peer */
    DAT_CONNECTION_EVENT_NON_PEER_REJECTED       = 0x04003, /* no program listens, or its EVD is full */
    DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR = 0x04004, /* accepted, but the requester has ended */
    DAT_CONNECTION_EVENT_DISCONNECTED            = 0x04005, /* by either side */
    DAT_CONNECTION_EVENT_BROKEN                  = 0x04006, /* by an error */
    DAT_CONNECTION_EVENT_TIMED_OUT               = 0x04007, /* the timeout of dat_ep_connect */
    DAT_CONNECTION_EVENT_UNREACHABLE             = 0x04008, /* no such host, no route to it, or no reply */
    DAT_ASYNC_ERROR_EVD_OVERFLOW                 = 0x08001, /* events were lost */
    DAT_ASYNC_ERROR_IA_CATASTROPHIC              = 0x08002,
    DAT_ASYNC_ERROR_EP_BROKEN                    = 0x08003,
    DAT_ASYNC_ERROR_TIMED_OUT                    = 0x08004,
    DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR      = 0x08005,
    DAT_HA_DOWN_TO_1                             = 0x08101, /* only one of several paths is up */
    DAT_HA_UP_TO_MULTI_PATH                      = 0x08102,
    DAT_SOFTWARE_EVENT                           = 0x10001,
    DAT_EXTENSION_EVENT                          = 0x20000,
    DAT_IB_EXTENSION_RANGE_BASE                  = 0x40000, /* dat_ib_extensions.h */
    DAT_IW_EXTENSION_RANGE_BASE                  = 0x80000
} DAT_EVENT_NUMBER;

/* DTO_COMPLETION. The spelling "transfered" is that of the standard. */
typedef struct dat_dto_completion_event_data {
    DAT_EP_HANDLE             ep_handle;
    DAT_DTO_COOKIE            user_cookie;
    DAT_DTO_COMPLETION_STATUS status;
    DAT_SEG_LENGTH            transfered_length; /* bytes; only after success */
    DAT_DTOS                  operation;
    DAT_RMR_CONTEXT           rmr_context;       /* RECEIVE_WITH_INVALIDATE: the RMR */
} DAT_DTO_COMPLETION_EVENT_DATA;

/* RMR_BIND_COMPLETION. */
typedef struct dat_rmr_bind_completion_event_data {
    DAT_RMR_HANDLE            rmr_handle;
    DAT_RMR_COOKIE            user_cookie;
    DAT_DTO_COMPLETION_STATUS status;
} DAT_RMR_BIND_COMPLETION_EVENT_DATA;

/* CONNECTION_REQUEST. */
typedef struct dat_cr_arrival_event_data {
    DAT_SP_HANDLE      sp_handle;
    DAT_IA_ADDRESS_PTR local_ia_address_ptr;
    DAT_CONN_QUAL      conn_qual;
    DAT_CR_HANDLE      cr_handle;
    DAT_BOOLEAN        truncate_flag;        /* the private data was too long */
} DAT_CR_ARRIVAL_EVENT_DATA;

/* CONNECTION_EVENT_*. */
typedef struct dat_connection_event_data {
    DAT_EP_HANDLE ep_handle;
    DAT_COUNT     private_data_size; /* 0 on the side that accepted */
    DAT_PVOID     private_data;      /* valid until the EP's next connection event, or its free */
} DAT_CONNECTION_EVENT_DATA;

/* ASYNC_ERROR_*. The type of dat_handle determines which of the reasons below is valid. */
typedef struct dat_asynch_error_event_data {
    DAT_HANDLE dat_handle;
    DAT_COUNT  reason;
} DAT_ASYNCH_ERROR_EVENT_DATA;

typedef enum ia_async_error_reason {
    DAT_IA_CATASTROPHIC_ERROR = 0,
    DAT_IA_OTHER_ERROR        = 1
} DAT_IA_ASYNC_ERROR_REASON;

typedef enum ep_async_error_reason {
    DAT_EP_TRANSFER_TO_ERROR          = 0,
    DAT_EP_OTHER_ERROR                = 1,
    DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT = 2  /* dat_ep_set_watermark */
} DAT_EP_ASYNC_ERROR_REASON;

typedef enum evd_async_error_reason {
    DAT_EVD_OVERFLOW_ERROR = 0,
    DAT_EVD_OTHER_ERROR    = 1
} DAT_EVD_ASYNC_ERROR_REASON;

typedef enum srq_async_error_reason {
    DAT_SRQ_TRANSFER_TO_ERROR   = 0,
    DAT_SRQ_OTHER_ERROR         = 1,
    DAT_SRQ_LOW_WATERMARK_EVENT = 2  /* dat_srq_set_lw */
} DAT_SRQ_ASYNC_ERROR_REASON;

typedef enum lmr_async_error_reason {
    DAT_LMR_OTHER_ERROR = 0
} DAT_LMR_ASYNC_ERROR_REASON;

typedef enum rmr_async_error_reason {
    DAT_RMR_OTHER_ERROR = 0
} DAT_RMR_ASYNC_ERROR_REASON;

typedef enum pz_async_error_reason {
    DAT_PZ_OTHER_ERROR = 0
} DAT_PZ_ASYNC_ERROR_REASON;

/* SOFTWARE_EVENT: the pointer that the program passed to dat_evd_post_se. */
typedef struct dat_software_event_data {
    DAT_PVOID pointer;
} DAT_SOFTWARE_EVENT_DATA;

typedef union dat_event_data {
    DAT_DTO_COMPLETION_EVENT_DATA      dto_completion_event_data;
    DAT_RMR_BIND_COMPLETION_EVENT_DATA rmr_completion_event_data;
    DAT_CR_ARRIVAL_EVENT_DATA          cr_arrival_event_data;
    DAT_CONNECTION_EVENT_DATA          connect_event_data;
    DAT_ASYNCH_ERROR_EVENT_DATA        asynch_error_event_data;
    DAT_SOFTWARE_EVENT_DATA            software_event_data;
} DAT_EVENT_DATA;

typedef struct dat_event {
    DAT_EVENT_NUMBER event_number;
    DAT_EVD_HANDLE   evd_handle;              /* the EVD in which it was queued */
    DAT_EVENT_DATA   event_data;
    DAT_UINT64       event_extension_data[8]; /* of an extension's event */
} DAT_EVENT;

typedef struct dat_evd_param DAT_EVD_PARAM; /* udat.h */

extern DAT_RETURN dat_evd_query(
    IN  DAT_EVD_HANDLE     evd_handle,
    IN  DAT_EVD_PARAM_MASK evd_param_mask,
    OUT DAT_EVD_PARAM      *evd_param);

/* Dequeues the oldest event. Without an event it returns DAT_QUEUE_EMPTY without the class bit, and does not wait. */
extern DAT_RETURN dat_evd_dequeue(IN DAT_EVD_HANDLE evd_handle, OUT DAT_EVENT *event);

/* Queues an event of the program (event_number DAT_SOFTWARE_EVENT), for example to wake another thread. */
extern DAT_RETURN dat_evd_post_se(IN DAT_EVD_HANDLE evd_handle, IN const DAT_EVENT *event);
extern DAT_RETURN dat_evd_resize(IN DAT_EVD_HANDLE evd_handle, IN DAT_COUNT evd_min_qlen);

/*
 * Fails while an EP, a service point, or an IA (as its asynchronous EVD) uses the EVD. Queued events are dropped;
 * connection requests among them are rejected.
 */
extern DAT_RETURN dat_evd_free(IN DAT_EVD_HANDLE evd_handle);

/* ---- Extensions ------------------------------------------------------------------------------------------------- */

/* The number of an operation; the extension's header has the numbers and a macro for each. */
typedef int DAT_EXTENDED_OP;
#define DAT_OPEN_EXTENSION_BASE  0x1000 /* operations that open an extension without an object */
#define DAT_CLOSE_EXTENSION_BASE 0x2000 /* operations that close such an extension */

/* Executes an operation of an extension. Its number determines the arguments that follow. */
extern DAT_RETURN dat_extension_op(IN DAT_HANDLE handle, IN DAT_EXTENDED_OP operation, IN ...);

/* ---- Names of DAT 1.0 and 1.1 ----------------------------------------------------------------------------------- */

/* Caution: the first two rename every identifier of that spelling in the program. */
#define max_mtu_size         max_message_size
#define max_rdma_read_per_ep max_rdma_read_per_ep_in

#define DAT_IA_ALL                     DAT_IA_FIELD_ALL
#define DAT_IA_FIELD_IA_MAX_MTU_SIZE   DAT_IA_FIELD_IA_MAX_MESSAGE_SIZE
#define DAT_IA_FIELD_IA_MAX_DTO_PER_OP DAT_IA_FIELD_IA_MAX_DTO_PER_EP_IN /* invalid: no version defines the value */

#define DAT_MEM_PRIV_READ_FLAG  (DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG)
#define DAT_MEM_PRIV_WRITE_FLAG (DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG)

#define DAT_EP_STATE_ERROR DAT_EP_STATE_DISCONNECTED

#define DAT_DTO_LENGTH_ERROR DAT_DTO_ERR_LOCAL_LENGTH
#define DAT_DTO_FAILURE      DAT_DTO_ERR_FLUSHED

#define DAT_RMR_BIND_COMPLETION_STATUS DAT_DTO_COMPLETION_STATUS
#define DAT_RMR_BIND_SUCCESS           DAT_DTO_SUCCESS
#define DAT_RMR_BIND_FAILURE           DAT_DTO_ERR_FLUSHED

#ifdef __cplusplus
}
#endif

#include <dat2/dat_vendor_specific.h>

#endif /* _DAT_H_ */
