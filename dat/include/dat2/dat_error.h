/*
 * dat_error.h - results of DAT calls.
 *
 *      31   30   29            16 15             0
 *     +----+----+----------------+----------------+
 *     | E  | W  |      type      |    subtype     |
 *     +----+----+----------------+----------------+
 *
 * E is set for errors, W for warnings. The type constants below contain neither bit, so compare DAT_GET_TYPE(ret) with
 * them, not ret itself. There are three exceptions: DAT_SUCCESS is 0. dat_evd_dequeue and dat_cno_wait return
 * DAT_QUEUE_EMPTY without E. DAT_NOT_IMPLEMENTED is always returned without E. For the last two, ret itself can be
 * compared too.
 *
 * The subtypes from DAT_INVALID_HANDLE1 on are one larger than in DAT 1.2, those from DAT_PRIVILEGES_READ on two.
 *
 * dat_strerror (dat.h) returns the names of a result.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _DAT_ERROR_H_
#define _DAT_ERROR_H_

#include <dat2/dat_platform_specific.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef DAT_UINT32 DAT_RETURN;

/* Masks of class, type and subtype. */
#define DAT_CLASS_ERROR   0x80000000
#define DAT_CLASS_WARNING 0x40000000
#define DAT_CLASS_SUCCESS 0x00000000
#define DAT_TYPE_MASK     0x3fff0000
#define DAT_SUBTYPE_MASK  0x0000ffff

/* DAT_IS_WARNING returns the bit itself, not 0 or 1. */
#define DAT_IS_WARNING(status)  ((DAT_UINT32)(status) & DAT_CLASS_WARNING)
#define DAT_GET_TYPE(status)    ((DAT_UINT32)(status) & DAT_TYPE_MASK)
#define DAT_GET_SUBTYPE(status) ((DAT_UINT32)(status) & DAT_SUBTYPE_MASK)

/* Types: what failed. */
typedef enum dat_return_type {
    DAT_SUCCESS                     = 0x00000000, /* success */
    DAT_ABORT                       = 0x00010000, /* the wait ended because its object was freed */
    DAT_CONN_QUAL_IN_USE            = 0x00020000, /* another listener has the qualifier */
    DAT_INSUFFICIENT_RESOURCES      = 0x00030000, /* subtype: the resource */
    DAT_INTERNAL_ERROR              = 0x00040000, /* the provider failed; see its log */
    DAT_INVALID_HANDLE              = 0x00050000, /* null, stale, or of another kind; subtype: the handle */
    DAT_INVALID_PARAMETER           = 0x00060000, /* subtype: the number of the argument */
    DAT_INVALID_STATE               = 0x00070000, /* not in this state; subtype: the state */
    DAT_LENGTH_ERROR                = 0x00080000, /* an invalid length */
    DAT_MODEL_NOT_SUPPORTED         = 0x00090000, /* an optional feature that is not supported */
    DAT_PROVIDER_NOT_FOUND          = 0x000a0000, /* no such IA; subtype: the reason */
    DAT_PRIVILEGES_VIOLATION        = 0x000b0000, /* memory, a directory or a port does not permit the access */
    DAT_PROTECTION_VIOLATION        = 0x000c0000, /* the memory belongs to another PZ */
    DAT_QUEUE_EMPTY                 = 0x000d0000, /* no event; returned without the class bit */
    DAT_QUEUE_FULL                  = 0x000e0000, /* the queue is full */
    DAT_TIMEOUT_EXPIRED             = 0x000f0000, /* no event before the timeout */
    DAT_PROVIDER_ALREADY_REGISTERED = 0x00100000, /* the name is registered already */
    DAT_PROVIDER_IN_USE             = 0x00110000, /* an IA of that name is open */
    DAT_INVALID_ADDRESS             = 0x00120000, /* subtype: the error */
    DAT_INTERRUPTED_CALL            = 0x00130000, /* a signal interrupted the wait */
    DAT_CONN_QUAL_UNAVAILABLE       = 0x00140000, /* no qualifier is free, or this one cannot be used */
    DAT_RESERVED_LMR                = 0x00150000, /* not returned by this library */
    DAT_PORT_IN_USE                 = 0x00160000, /* another listener has the port of the address */
    DAT_COMM_NOT_SUPPORTED          = 0x00170000, /* the transport lacks this kind of DAT_COMM */
    DAT_EXTENSION_BASE              = 0x10000000, /* results of extensions start here */
    DAT_NOT_IMPLEMENTED             = 0x3fff0000  /* the provider lacks this call; returned without the class bit */
} DAT_RETURN_TYPE;

/* The name of DAT_PROVIDER_NOT_FOUND in DAT 1.0. */
#define DAT_NAME_NOT_FOUND DAT_PROVIDER_NOT_FOUND

/* Subtypes: which handle, argument, resource or state. The numbers are consecutive. */
typedef enum dat_return_subtype {
    DAT_NO_SUBTYPE                         = 0,
    DAT_SUB_INTERRUPTED                    = 1,   /* INTERRUPTED_CALL */
    DAT_RESOURCE_MEMORY                    = 2,   /* from here to SRQ: of INSUFFICIENT_RESOURCES */
    DAT_RESOURCE_DEVICE                    = 3,
    DAT_RESOURCE_TEP                       = 4,
    DAT_RESOURCE_TEVD                      = 5,
    DAT_RESOURCE_PROTECTION_DOMAIN         = 6,
    DAT_RESOURCE_MEMORY_REGION             = 7,
    DAT_RESOURCE_ERROR_HANDLER             = 8,
    DAT_RESOURCE_CREDITS                   = 9,
    DAT_RESOURCE_SRQ                       = 10,
    DAT_INVALID_HANDLE_IA                  = 11,  /* from here to HANDLE10: of INVALID_HANDLE */
    DAT_INVALID_HANDLE_EP                  = 12,
    DAT_INVALID_HANDLE_LMR                 = 13,
    DAT_INVALID_HANDLE_RMR                 = 14,
    DAT_INVALID_HANDLE_PZ                  = 15,
    DAT_INVALID_HANDLE_PSP                 = 16,
    DAT_INVALID_HANDLE_RSP                 = 17,
    DAT_INVALID_HANDLE_CR                  = 18,
    DAT_INVALID_HANDLE_CNO                 = 19,
    DAT_INVALID_HANDLE_EVD_CR              = 20,
    DAT_INVALID_HANDLE_EVD_REQUEST         = 21,
    DAT_INVALID_HANDLE_EVD_RECV            = 22,
    DAT_INVALID_HANDLE_EVD_CONN            = 23,
    DAT_INVALID_HANDLE_EVD_ASYNC           = 24,
    DAT_INVALID_HANDLE_SRQ                 = 25,
    DAT_INVALID_HANDLE_CSP                 = 26,
    DAT_INVALID_HANDLE1                    = 27,
    DAT_INVALID_HANDLE2                    = 28,
    DAT_INVALID_HANDLE3                    = 29,
    DAT_INVALID_HANDLE4                    = 30,
    DAT_INVALID_HANDLE5                    = 31,
    DAT_INVALID_HANDLE6                    = 32,
    DAT_INVALID_HANDLE7                    = 33,
    DAT_INVALID_HANDLE8                    = 34,
    DAT_INVALID_HANDLE9                    = 35,
    DAT_INVALID_HANDLE10                   = 36,
    DAT_INVALID_ARG1                       = 37,  /* INVALID_PARAMETER: counted from 1 */
    DAT_INVALID_ARG2                       = 38,
    DAT_INVALID_ARG3                       = 39,
    DAT_INVALID_ARG4                       = 40,
    DAT_INVALID_ARG5                       = 41,
    DAT_INVALID_ARG6                       = 42,
    DAT_INVALID_ARG7                       = 43,
    DAT_INVALID_ARG8                       = 44,
    DAT_INVALID_ARG9                       = 45,
    DAT_INVALID_ARG10                      = 46,
    DAT_INVALID_STATE_EP_UNCONNECTED       = 47,  /* from here to SRQ_SHUTDOWN: of INVALID_STATE */
    DAT_INVALID_STATE_EP_ACTCONNPENDING    = 48,
    DAT_INVALID_STATE_EP_PASSCONNPENDING   = 49,
    DAT_INVALID_STATE_EP_TENTCONNPENDING   = 50,
    DAT_INVALID_STATE_EP_CONNECTED         = 51,
    DAT_INVALID_STATE_EP_DISCONNECTED      = 52,
    DAT_INVALID_STATE_EP_RESERVED          = 53,
    DAT_INVALID_STATE_EP_COMPLPENDING      = 54,
    DAT_INVALID_STATE_EP_DISCPENDING       = 55,
    DAT_INVALID_STATE_EP_PROVIDERCONTROL   = 56,
    DAT_INVALID_STATE_EP_NOTREADY          = 57,
    DAT_INVALID_STATE_EP_RECV_WATERMARK    = 58,
    DAT_INVALID_STATE_EP_PZ                = 59,
    DAT_INVALID_STATE_EP_EVD_REQUEST       = 60,
    DAT_INVALID_STATE_EP_EVD_RECV          = 61,
    DAT_INVALID_STATE_EP_EVD_CONNECT       = 62,
    DAT_INVALID_STATE_EP_UNCONFIGURED      = 63,
    DAT_INVALID_STATE_EP_UNCONFRESERVED    = 64,
    DAT_INVALID_STATE_EP_UNCONFPASSIVE     = 65,
    DAT_INVALID_STATE_EP_UNCONFTENTATIVE   = 66,
    DAT_INVALID_STATE_CNO_IN_USE           = 67,
    DAT_INVALID_STATE_CNO_DEAD             = 68,
    DAT_INVALID_STATE_EVD_OPEN             = 69,
    DAT_INVALID_STATE_EVD_ENABLED          = 70,
    DAT_INVALID_STATE_EVD_DISABLED         = 71,
    DAT_INVALID_STATE_EVD_WAITABLE         = 72,
    DAT_INVALID_STATE_EVD_UNWAITABLE       = 73,
    DAT_INVALID_STATE_EVD_IN_USE           = 74,
    DAT_INVALID_STATE_EVD_CONFIG_NOTIFY    = 75,
    DAT_INVALID_STATE_EVD_CONFIG_SOLICITED = 76,
    DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD = 77,
    DAT_INVALID_STATE_EVD_WAITER           = 78,
    DAT_INVALID_STATE_EVD_ASYNC            = 79,
    DAT_INVALID_STATE_IA_IN_USE            = 80,
    DAT_INVALID_STATE_LMR_IN_USE           = 81,
    DAT_INVALID_STATE_LMR_FREE             = 82,
    DAT_INVALID_STATE_PZ_IN_USE            = 83,
    DAT_INVALID_STATE_PZ_FREE              = 84,
    DAT_INVALID_STATE_SRQ_OPERATIONAL      = 85,
    DAT_INVALID_STATE_SRQ_ERROR            = 86,
    DAT_INVALID_STATE_SRQ_IN_USE           = 87,
    DAT_INVALID_STATE_SRQ_SHUTDOWN         = 88,
    DAT_PRIVILEGES_READ                    = 89,  /* PRIVILEGES_VIOLATION */
    DAT_PRIVILEGES_WRITE                   = 90,
    DAT_PRIVILEGES_RDMA_READ               = 91,
    DAT_PRIVILEGES_RDMA_WRITE              = 92,
    DAT_PROTECTION_READ                    = 93,  /* PROTECTION_VIOLATION */
    DAT_PROTECTION_WRITE                   = 94,
    DAT_PROTECTION_RDMA_READ               = 95,
    DAT_PROTECTION_RDMA_WRITE              = 96,
    DAT_INVALID_ADDRESS_UNSUPPORTED        = 97,  /* INVALID_ADDRESS */
    DAT_INVALID_ADDRESS_UNREACHABLE        = 98,
    DAT_INVALID_ADDRESS_MALFORMED          = 99,
    DAT_NAME_NOT_REGISTERED                = 100, /* PROVIDER_NOT_FOUND: no dat.conf line has the name */
    DAT_MAJOR_NOT_FOUND                    = 101, /* there are lines of that name, but none for this major version */
    DAT_MINOR_NOT_FOUND                    = 102, /* ... none for this minor version */
    DAT_THREAD_SAFETY_NOT_FOUND            = 103  /* ... none with this thread safety */
} DAT_RETURN_SUBTYPE;

#ifdef __cplusplus
}
#endif

#endif /* _DAT_ERROR_H_ */
