/*
 * udat.h - the Direct Access Transport API 1.2 for programs in user space. This is the header to include.
 *
 *     #include <dat/udat.h>          cc program.c -ldat
 *
 * A program opens an interface adapter (IA) by its name in dat.conf, creates a protection zone (PZ), event dispatchers
 * (EVDs) and an endpoint (EP) on it, registers memory (LMRs), connects or accepts, posts transfers, and gets their
 * completions as events from the EVDs.
 *
 *   dat_platform_specific.h   plain types
 *   dat_error.h               results
 *   dat.h                     most types and calls
 *   udat.h                    user space only: waiting (CNOs, dat_evd_wait), registering virtual memory
 *   udat_redirection.h,
 *   dat_redirection.h         the provider table, for providers
 *   dat_registry.h            how a provider registers; not included here
 *
 * Every call may be made from any thread at any time. Handles that are null, stale or of another kind are refused.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _UDAT_H_
#define _UDAT_H_

#include <dat/udat_config.h>
#include <dat/dat_platform_specific.h>
#include <dat/dat_error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Definitions that dat.h needs ------------------------------------------------------------------------------ */

/*
 * Memory types for an LMR. The values are not single bits, but the specification defines lmr_mem_types_supported as
 * their bitwise OR: 3 if all are supported.
 */
typedef enum dat_mem_type {
    DAT_MEM_TYPE_VIRTUAL        = 0, /* ordinary memory of this process */
    DAT_MEM_TYPE_LMR            = 1, /* the memory of another LMR, registered once more */
    DAT_MEM_TYPE_SHARED_VIRTUAL = 2  /* memory shared between processes */
} DAT_MEM_TYPE;

/* Results of dat_get_handle_type. */
typedef enum dat_handle_type {
    DAT_HANDLE_TYPE_CR  = 0,
    DAT_HANDLE_TYPE_EP  = 1,
    DAT_HANDLE_TYPE_EVD = 2,
    DAT_HANDLE_TYPE_IA  = 3,
    DAT_HANDLE_TYPE_LMR = 4,
    DAT_HANDLE_TYPE_PSP = 5,
    DAT_HANDLE_TYPE_PZ  = 6,
    DAT_HANDLE_TYPE_RMR = 7,
    DAT_HANDLE_TYPE_RSP = 8,
    DAT_HANDLE_TYPE_CNO = 9,
    DAT_HANDLE_TYPE_SRQ = 10
} DAT_HANDLE_TYPE;

/*
 * State of an EVD: the OR of one of the first two values, one of the next two, and one CONFIG value or none.
 * CONFIG_THRESHOLD is a value of its own, not CONFIG_NOTIFY and CONFIG_SOLICITED at once.
 */
typedef enum dat_evd_state {
    DAT_EVD_STATE_ENABLED          = 0x01, /* events trigger the CNO */
    DAT_EVD_STATE_DISABLED         = 0x02, /* events do not trigger the CNO */
    DAT_EVD_STATE_WAITABLE         = 0x04, /* dat_evd_wait is allowed */
    DAT_EVD_STATE_UNWAITABLE       = 0x08, /* dat_evd_wait is not allowed */
    DAT_EVD_STATE_CONFIG_NOTIFY    = 0x10, /* some receives or requests do not wake a waiter (UNSIGNALLED) */
    DAT_EVD_STATE_CONFIG_SOLICITED = 0x20, /* of some EP, only solicited messages and failures wake a waiter */
    DAT_EVD_STATE_CONFIG_THRESHOLD = 0x30  /* every event wakes a waiter */
} DAT_EVD_STATE;

typedef enum dat_evd_param_mask {
    DAT_EVD_FIELD_IA_HANDLE = 0x01,
    DAT_EVD_FIELD_EVD_QLEN  = 0x02,
    DAT_EVD_FIELD_EVD_STATE = 0x04,
    DAT_EVD_FIELD_CNO       = 0x08,
    DAT_EVD_FIELD_EVD_FLAGS = 0x10,
    DAT_EVD_FIELD_ALL       = 0x1f
} DAT_EVD_PARAM_MASK;

typedef DAT_UINT64 DAT_PROVIDER_ATTR_MASK;

#ifdef __cplusplus
}
#endif

#include <dat/dat.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Consumer notification objects (CNO): to wait for many EVDs ------------------------------------------------- */

typedef DAT_HANDLE DAT_CNO_HANDLE;

/*
 * A function that is called once, when a CNO is triggered; dat_cno_modify_agent arms it again. When the last EVD of the
 * CNO is freed or the IA is closed, an armed function is called with a null EVD. It runs on a thread of the provider or
 * on the thread that caused the call, so it must not block.
 */
typedef void (*DAT_AGENT_FUNC)(DAT_PVOID instance_data, DAT_EVD_HANDLE event_dispatcher);

typedef struct dat_os_wait_proxy_agent {
    DAT_PVOID      instance_data;    /* argument of the function */
    DAT_AGENT_FUNC proxy_agent_func;
} DAT_OS_WAIT_PROXY_AGENT;

/* No agent. */
#ifdef __cplusplus
#define DAT_OS_WAIT_PROXY_AGENT_NULL DAT_OS_WAIT_PROXY_AGENT()
#else
#define DAT_OS_WAIT_PROXY_AGENT_NULL ((DAT_OS_WAIT_PROXY_AGENT){NULL, NULL})
#endif

typedef enum dat_cno_param_mask {
    DAT_CNO_FIELD_IA_HANDLE = 1,
    DAT_CNO_FIELD_AGENT     = 2,
    DAT_CNO_FIELD_ALL       = 3
} DAT_CNO_PARAM_MASK;

typedef struct dat_cno_param {
    DAT_IA_HANDLE           ia_handle;
    DAT_OS_WAIT_PROXY_AGENT agent;     /* as armed now */
} DAT_CNO_PARAM;

/* The agent may be DAT_OS_WAIT_PROXY_AGENT_NULL. */
extern DAT_RETURN dat_cno_create(
    IN  DAT_IA_HANDLE           ia_handle,
    IN  DAT_OS_WAIT_PROXY_AGENT agent,
    OUT DAT_CNO_HANDLE          *cno_handle);

/* Arms another agent for the next trigger; DAT_OS_WAIT_PROXY_AGENT_NULL disarms. */
extern DAT_RETURN dat_cno_modify_agent(IN DAT_CNO_HANDLE cno_handle, IN DAT_OS_WAIT_PROXY_AGENT agent);

extern DAT_RETURN dat_cno_query(
    IN  DAT_CNO_HANDLE     cno_handle,
    IN  DAT_CNO_PARAM_MASK cno_param_mask,
    OUT DAT_CNO_PARAM      *cno_param);

/* Fails while an EVD uses the CNO or a thread waits on it. */
extern DAT_RETURN dat_cno_free(IN DAT_CNO_HANDLE cno_handle);

/*
 * Waits until an event triggers the CNO, and writes the handle of its EVD. No event is dequeued: dequeue until the EVD
 * is empty. After the timeout it returns DAT_QUEUE_EMPTY, without the class bit, and a null EVD. DAT_SUCCESS with a
 * null EVD: the last EVD of the CNO was freed, or the IA was closed.
 */
extern DAT_RETURN dat_cno_wait(
    IN  DAT_CNO_HANDLE cno_handle,
    IN  DAT_TIMEOUT    timeout,
    OUT DAT_EVD_HANDLE *evd_handle);

/* ---- Event dispatchers (EVD): queues of events ------------------------------------------------------------------ */

/*
 * For dat_ia_open: create no EVD; asynchronous errors go to the existing ones. OUT_OF_SCOPE: what dat_ia_open and
 * dat_ia_query return for such an IA.
 */
#define DAT_EVD_ASYNC_EXISTS ((DAT_EVD_HANDLE)0x1)
#define DAT_EVD_OUT_OF_SCOPE ((DAT_EVD_HANDLE)0x2)

struct dat_evd_param {
    DAT_IA_HANDLE  ia_handle;
    DAT_COUNT      evd_qlen;   /* actual length, which may be more than was requested */
    DAT_EVD_STATE  evd_state;
    DAT_CNO_HANDLE cno_handle;
    DAT_EVD_FLAGS  evd_flags;
};

/* Creates an EVD for at least evd_min_qlen events of the streams in evd_flags. The CNO may be DAT_HANDLE_NULL. */
extern DAT_RETURN dat_evd_create(
    IN  DAT_IA_HANDLE  ia_handle,
    IN  DAT_COUNT      evd_min_qlen,
    IN  DAT_CNO_HANDLE cno_handle,
    IN  DAT_EVD_FLAGS  evd_flags,
    OUT DAT_EVD_HANDLE *evd_handle);

/* Sets the CNO that future events trigger; DAT_HANDLE_NULL sets none. */
extern DAT_RETURN dat_evd_modify_cno(IN DAT_EVD_HANDLE evd_handle, IN DAT_CNO_HANDLE cno_handle);

/*
 * Waits until threshold events are queued, dequeues the oldest one, and returns the number of the remaining ones. Only
 * one thread at a time may wait. If fewer events are queued at the timeout, it returns DAT_TIMEOUT_EXPIRED and their
 * number, and dequeues none.
 */
extern DAT_RETURN dat_evd_wait(
    IN  DAT_EVD_HANDLE evd_handle,
    IN  DAT_TIMEOUT    timeout,
    IN  DAT_COUNT      threshold,
    OUT DAT_EVENT      *event,
    OUT DAT_COUNT      *n_more_events);

/*
 * Enables or disables triggering of the CNO and of an armed descriptor (dapl_descriptor.h). Waits on the EVD itself and
 * dequeues are not affected.
 */
extern DAT_RETURN dat_evd_enable(IN DAT_EVD_HANDLE evd_handle);
extern DAT_RETURN dat_evd_disable(IN DAT_EVD_HANDLE evd_handle);

/* Forbids or permits dat_evd_wait on the EVD. Forbidding it ends a wait in progress with DAT_INVALID_STATE. */
extern DAT_RETURN dat_evd_set_unwaitable(IN DAT_EVD_HANDLE evd_handle);
extern DAT_RETURN dat_evd_clear_unwaitable(IN DAT_EVD_HANDLE evd_handle);

/* ---- Local memory regions (LMR) --------------------------------------------------------------------------------- */

/* The name under which several processes register the same shared memory: any 40 bytes. */
#define DAT_LMR_COOKIE_SIZE 40
typedef char (*DAT_LMR_COOKIE)[DAT_LMR_COOKIE_SIZE];

typedef struct dat_shared_memory {
    DAT_PVOID      virtual_address;  /* address of the mapping in this process */
    DAT_LMR_COOKIE shared_memory_id; /* the same 40 bytes in all processes */
} DAT_SHARED_MEMORY;

/* The memory to register; the memory type determines the member. Passed by value. */
typedef union dat_region_description {
    DAT_PVOID         for_va;            /* VIRTUAL: the first byte */
    DAT_LMR_HANDLE    for_lmr_handle;    /* LMR: the existing LMR */
    DAT_SHARED_MEMORY for_shared_memory; /* SHARED_VIRTUAL */
} DAT_REGION_DESCRIPTION;

struct dat_lmr_param {
    DAT_IA_HANDLE          ia_handle;
    DAT_MEM_TYPE           mem_type;
    DAT_REGION_DESCRIPTION region_desc;
    DAT_VLEN               length;
    DAT_PZ_HANDLE          pz_handle;
    DAT_MEM_PRIV_FLAGS     mem_priv;
    DAT_LMR_CONTEXT        lmr_context;        /* for local segments */
    DAT_RMR_CONTEXT        rmr_context;        /* for peers; 0 without a remote privilege */
    DAT_VLEN               registered_size;
    DAT_VADDR              registered_address;
};

/*
 * Registers memory. Every out pointer but lmr_handle may be NULL. With a remote privilege, peers can use rmr_context
 * without an RMR; otherwise it is 0.
 */
extern DAT_RETURN dat_lmr_create(
    IN  DAT_IA_HANDLE          ia_handle,
    IN  DAT_MEM_TYPE           mem_type,
    IN  DAT_REGION_DESCRIPTION region_description,
    IN  DAT_VLEN               length,
    IN  DAT_PZ_HANDLE          pz_handle,
    IN  DAT_MEM_PRIV_FLAGS     privileges,
    OUT DAT_LMR_HANDLE         *lmr_handle,
    OUT DAT_LMR_CONTEXT        *lmr_context,
    OUT DAT_RMR_CONTEXT        *rmr_context,
    OUT DAT_VLEN               *registered_length,
    OUT DAT_VADDR              *registered_address);

/* ---- Attributes of a provider ----------------------------------------------------------------------------------- */

typedef enum dat_pz_support {
    DAT_PZ_UNIQUE    = 0, /* a PZ belongs to one IA */
    DAT_PZ_SHAREABLE = 1  /* PZs can be shared by processes */
} DAT_PZ_SUPPORT;

/* Selects fields of DAT_PROVIDER_ATTR; a bit per field, in their order. */
#define DAT_PROVIDER_FIELD_PROVIDER_NAME                  UINT64_C(0x0000001)
#define DAT_PROVIDER_FIELD_PROVIDER_VERSION_MAJOR         UINT64_C(0x0000002)
#define DAT_PROVIDER_FIELD_PROVIDER_VERSION_MINOR         UINT64_C(0x0000004)
#define DAT_PROVIDER_FIELD_DAPL_VERSION_MAJOR             UINT64_C(0x0000008)
#define DAT_PROVIDER_FIELD_DAPL_VERSION_MINOR             UINT64_C(0x0000010)
#define DAT_PROVIDER_FIELD_LMR_MEM_TYPE_SUPPORTED         UINT64_C(0x0000020)
#define DAT_PROVIDER_FIELD_IOV_OWNERSHIP                  UINT64_C(0x0000040)
#define DAT_PROVIDER_FIELD_DAT_QOS_SUPPORTED              UINT64_C(0x0000080)
#define DAT_PROVIDER_FIELD_COMPLETION_FLAGS_SUPPORTED     UINT64_C(0x0000100)
#define DAT_PROVIDER_FIELD_IS_THREAD_SAFE                 UINT64_C(0x0000200)
#define DAT_PROVIDER_FIELD_MAX_PRIVATE_DATA_SIZE          UINT64_C(0x0000400)
#define DAT_PROVIDER_FIELD_SUPPORTS_MULTIPATH             UINT64_C(0x0000800)
#define DAT_PROVIDER_FIELD_EP_CREATOR                     UINT64_C(0x0001000)
#define DAT_PROVIDER_FIELD_PZ_SUPPORT                     UINT64_C(0x0002000)
#define DAT_PROVIDER_FIELD_OPTIMAL_BUFFER_ALIGNMENT       UINT64_C(0x0004000)
#define DAT_PROVIDER_FIELD_EVD_STREAM_MERGING_SUPPORTED   UINT64_C(0x0008000)
#define DAT_PROVIDER_FIELD_SRQ_SUPPORTED                  UINT64_C(0x0010000)
#define DAT_PROVIDER_FIELD_SRQ_WATERMARKS_SUPPORTED       UINT64_C(0x0020000)
#define DAT_PROVIDER_FIELD_SRQ_EP_PZ_DIFFERENCE_SUPPORTED UINT64_C(0x0040000)
#define DAT_PROVIDER_FIELD_SRQ_INFO_SUPPORTED             UINT64_C(0x0080000)
#define DAT_PROVIDER_FIELD_EP_RECV_INFO_SUPPORTED         UINT64_C(0x0100000)
#define DAT_PROVIDER_FIELD_LMR_SYNC_REQ                   UINT64_C(0x0200000)
#define DAT_PROVIDER_FIELD_DTO_ASYNC_RETURN_GUARANTEED    UINT64_C(0x0400000)
#define DAT_PROVIDER_FIELD_RDMA_WRITE_FOR_RDMA_READ_REQ   UINT64_C(0x0800000)
#define DAT_PROVIDER_FIELD_NUM_PROVIDER_SPECIFIC_ATTR     UINT64_C(0x1000000)
#define DAT_PROVIDER_FIELD_PROVIDER_SPECIFIC_ATTR         UINT64_C(0x2000000)
#define DAT_PROVIDER_FIELD_ALL                            UINT64_C(0x3ffffff)
#define DAT_PROVIDER_FIELD_NONE                           UINT64_C(0x0000000)

/*
 * In C++ a variable of this type must be initialised (DAT_PROVIDER_ATTR attr = {};), because of the const member.
 */
struct dat_provider_attr {
    char                   provider_name[DAT_NAME_MAX_LENGTH];
    DAT_UINT32             provider_version_major;
    DAT_UINT32             provider_version_minor;
    DAT_UINT32             dapl_version_major;
    DAT_UINT32             dapl_version_minor;
    DAT_MEM_TYPE           lmr_mem_types_supported;            /* OR of the numbers */
    DAT_IOV_OWNERSHIP      iov_ownership_on_return;
    DAT_QOS                dat_qos_supported;                  /* OR of the flags */
    DAT_COMPLETION_FLAGS   completion_flags_supported;         /* OR of the flags */
    DAT_BOOLEAN            is_thread_safe;
    DAT_COUNT              max_private_data_size;              /* for connecting, in bytes */
    DAT_BOOLEAN            supports_multipath;
    DAT_EP_CREATOR_FOR_PSP ep_creator;
    DAT_PZ_SUPPORT         pz_support;
    DAT_UINT32             optimal_buffer_alignment;           /* in bytes */
    const DAT_BOOLEAN      evd_stream_merging_supported[6][6]; /* software, cr, dto, connection, rmr, async */
    DAT_BOOLEAN            srq_supported;
    DAT_COUNT              srq_watermarks_supported;           /* 0x1 low, 0x10 soft high, 0x100 hard high */
    DAT_BOOLEAN            srq_ep_pz_difference_supported;
    DAT_COUNT              srq_info_supported;                 /* 0x1 available, 0x10 outstanding */
    DAT_COUNT              ep_recv_info_supported;             /* 0x1 count, 0x10 span */
    DAT_BOOLEAN            lmr_sync_req;                       /* dat_lmr_sync_* must be called */
    DAT_BOOLEAN            dto_async_return_guaranteed;        /* memory errors always come as completions */
    DAT_BOOLEAN            rdma_write_for_rdma_read_req;       /* a read needs REMOTE_WRITE at its sink */
    DAT_COUNT              num_provider_specific_attr;
    DAT_NAMED_ATTR         *provider_specific_attr;
};

#ifdef __cplusplus
}
#endif

#include <dat/udat_vendor_specific.h>
#include <dat/udat_redirection.h>

#endif /* _UDAT_H_ */
