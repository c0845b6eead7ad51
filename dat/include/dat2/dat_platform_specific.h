/*
 * dat_platform_specific.h - basic types, for Linux with LP64.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _DAT_PLATFORM_SPECIFIC_H_
#define _DAT_PLATFORM_SPECIFIC_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/socket.h>

/* The direction of a parameter, for the reader; the macros are empty. */
#define IN
#define OUT
#define INOUT

/* Linkage macros, for programs that use them in declarations. */
#define DAT_EXPORT extern
#define DAT_API

/* Permits one declaration that is not ISO C, without a warning under -pedantic. */
#ifdef __GNUC__
#define DAT_EXTENSION_ __extension__
#else
#define DAT_EXTENSION_
#endif

typedef uint32_t           DAT_UINT32;
typedef uint64_t           DAT_UINT64;
typedef unsigned long long DAT_UVERYLONG; /* the widest integer that fits a cookie */

typedef void              *DAT_PVOID;
typedef int                DAT_COUNT;     /* a number; -1 and -2 have names, see dat.h */
typedef DAT_UINT64         DAT_PADDR;     /* a physical address */

/*
 * Addresses. DAT_SOCK_ADDR6 is complete only where <netinet/in.h> is included; an IPv6 address is passed as a pointer
 * to DAT_SOCK_ADDR too, and recognised by sa_family.
 */
typedef struct sockaddr     DAT_SOCK_ADDR;
typedef struct sockaddr_in6 DAT_SOCK_ADDR6;

#define DAT_AF_INET  AF_INET
#define DAT_AF_INET6 AF_INET6

/* A file descriptor. */
typedef int DAT_FD;

/* Type of a connection: the three arguments of socket(2). */
typedef struct dat_comm {
    int domain;
    int type;
    int protocol;
} DAT_COMM;

/* The IA handle that libdat gives to a program is a small number. */
#define DAT_IA_HANDLE_TO_UL(a) ((unsigned long)(a))
#define DAT_UL_TO_IA_HANDLE(a) ((DAT_IA_HANDLE)(unsigned long)(a))

/* Alignment of buffers in bytes for the best speed. */
#define DAT_OPTIMAL_ALIGNMENT 256

#endif /* _DAT_PLATFORM_SPECIFIC_H_ */
